package main

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// badgerPeer stores the work in badger with SyncWrites: a log-structured tree that syncs its log once for each transaction.
//
// Two transactions that touch one job conflict, and the later has to begin again. Its callers therefore take turns: with all of
// them on one job, that halved the time. Conflicts that remain are tried again.
type badgerPeer struct {
	jobs  []string
	turns []sync.Mutex // one a job
	db    *badger.DB
	total atomic.Int64
}

func newBadger() Peer { return &badgerPeer{} }

func (p *badgerPeer) Name() string { return "badger SyncWrites" }

func (p *badgerPeer) Prepare(dir string, w *Work) (err error) {
	p.jobs = w.JobIDs
	p.turns = make([]sync.Mutex, len(p.jobs))
	opts := badger.DefaultOptions(dir).WithSyncWrites(true).WithLogger(nil).WithMetricsEnabled(false)
	// Noise does not compress.
	opts = opts.WithCompression(options.None)
	if p.db, err = badger.Open(opts); err != nil {
		return err
	}
	batch := p.db.NewWriteBatch()
	defer batch.Cancel()
	for i, id := range w.JobIDs {
		if err := batch.Set(jobKey(id), JobState{Lease: filledAt}.record()); err != nil {
			return err
		}
		for idx := range w.Targets {
			if err := batch.Set(targetKey(id, idx), []byte(w.URL(Op{Job: i, Idx: idx})+targetOptions)); err != nil {
				return err
			}
		}
	}
	return batch.Flush()
}

func (p *badgerPeer) Finish(op Op, now int64, result string) error {
	turn := &p.turns[op.Job]
	turn.Lock()
	defer turn.Unlock()
	for {
		grown, err := p.try(op, now, result)
		if errors.Is(err, badger.ErrConflict) {
			continue
		}
		if err == nil {
			p.total.Add(grown)
		}
		return err
	}
}

func (p *badgerPeer) try(op Op, now int64, result string) (grown int64, err error) {
	id := p.jobs[op.Job]
	err = p.db.Update(func(tx *badger.Txn) error {
		if _, err := tx.Get(targetKey(id, op.Idx)); err != nil {
			return err
		}
		old, err := value(tx, resultKey(id, op.Idx))
		if err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
		record, err := value(tx, jobKey(id))
		if err != nil {
			return err
		}
		job, err := parseJob(record)
		if err != nil {
			return err
		}
		job, grown = job.finish(old, now, result)
		if err := tx.Set(resultKey(id, op.Idx), TargetState{done, result}.record()); err != nil {
			return err
		}
		return tx.Set(jobKey(id), job.record())
	})
	return grown, err
}

// value is nil with ErrKeyNotFound.
func value(tx *badger.Txn, key []byte) ([]byte, error) {
	item, err := tx.Get(key)
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(nil)
}

func (p *badgerPeer) Verify(w *Work) error {
	s := NewState()
	s.Total = p.total.Load()
	err := p.db.View(func(tx *badger.Txn) error {
		it := tx.NewIterator(badger.DefaultIteratorOptions)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			err := it.Item().Value(func(v []byte) error { return s.readRecord(it.Item().Key(), v) })
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.Check(w)
}

func (p *badgerPeer) Close() error {
	if p.db == nil {
		return nil
	}
	return p.db.Close()
}
