package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

// bolt stores the work in bbolt, through DB.Batch, which lets callers share a transaction: a B+tree that syncs its pages in place.
type bolt struct {
	delay time.Duration
	batch int
	jobs  []string
	db    *bbolt.DB
	total atomic.Int64
}

// newBolt waits for at most delay, or until batch calls have come: with one for each caller nobody waits for a caller that can't come.
func newBolt(delay time.Duration, batch int) func() Peer {
	return func() Peer { return &bolt{delay: delay, batch: batch} }
}

func (p *bolt) Name() string { return "bbolt Batch" }

// A bucket for each kind of row: the small ones stay together.
var (
	boltJobs    = []byte("job")
	boltTargets = []byte("target")
	boltResults = []byte("result")
)

func (p *bolt) Prepare(dir string, w *Work) (err error) {
	p.jobs = w.JobIDs
	p.db, err = bbolt.Open(filepath.Join(dir, "bolt.db"), 0o600, &bbolt.Options{
		// What makes writes cheaper: the free list is not stored, only rebuilt by Open, and it is looked up by hash. The map is
		// large enough from the beginning.
		NoFreelistSync:  true,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: 1 << 30,
		NoStatistics:    true,
		NoSync:          true, // while it is filled
	})
	if err != nil {
		return err
	}
	p.db.MaxBatchDelay, p.db.MaxBatchSize = p.delay, p.batch
	err = p.db.Update(func(tx *bbolt.Tx) error { return boltFill(tx, w) })
	p.db.NoSync = false
	return errors.Join(err, p.db.Sync())
}

func boltFill(tx *bbolt.Tx, w *Work) error {
	jobs, err1 := tx.CreateBucket(boltJobs)
	targets, err2 := tx.CreateBucket(boltTargets)
	_, err3 := tx.CreateBucket(boltResults)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	for i, id := range w.JobIDs {
		if err := jobs.Put(jobKey(id), JobState{Lease: filledAt}.record()); err != nil {
			return err
		}
		for idx := range w.Targets {
			if err := targets.Put(targetKey(id, idx), []byte(w.URL(Op{Job: i, Idx: idx})+targetOptions)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *bolt) Finish(op Op, now int64, result string) error {
	id := p.jobs[op.Job]
	var grown int64
	err := p.db.Batch(func(tx *bbolt.Tx) error {
		jobs, results := tx.Bucket(boltJobs), tx.Bucket(boltResults)
		if tx.Bucket(boltTargets).Get(targetKey(id, op.Idx)) == nil {
			return fmt.Errorf("no target %s/%d", id, op.Idx)
		}
		job, err := parseJob(jobs.Get(jobKey(id)))
		if err != nil {
			return err
		}
		key := resultKey(id, op.Idx)
		job, grown = job.finish(results.Get(key), now, result)
		if err := results.Put(key, TargetState{done, result}.record()); err != nil {
			return err
		}
		return jobs.Put(jobKey(id), job.record())
	})
	if err == nil {
		p.total.Add(grown)
	}
	return err
}

func (p *bolt) Verify(w *Work) error {
	s := NewState()
	s.Total = p.total.Load()
	err := p.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return b.ForEach(s.readRecord) })
	})
	if err != nil {
		return err
	}
	return s.Check(w)
}

func (p *bolt) Close() error {
	if p.db == nil {
		return nil
	}
	return p.db.Close()
}

// boltDelays are tried before the first round.
var boltDelays = []time.Duration{50 * time.Microsecond, 200 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond}

// tuneBolt returns the delay with which bbolt does the work soonest.
func tuneBolt(w *Work, callers int, dir string, progress Progress) (time.Duration, error) {
	var best time.Duration
	var least float64
	for _, delay := range boltDelays {
		s, err := runCandidate(Finishing(w, callers, newBolt(delay, callers)), dir)
		if err != nil {
			return 0, fmt.Errorf("tune bbolt: %w", err)
		}
		progress("bbolt, delay "+delay.String(), s)
		if best == 0 || s.NsPerOp < least {
			best, least = delay, s.NsPerOp
		}
	}
	return best, nil
}
