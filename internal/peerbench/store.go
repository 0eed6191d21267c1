package main

import (
	"dcache/internal/dcache"
	"errors"
	"fmt"
)

// store is the subject: the package dcache.
type store struct {
	synchronous int
	path        string
	jobs        []string
	db          *dcache.DB
}

func newStore(synchronous int) func() Peer {
	return func() Peer { return &store{synchronous: synchronous} }
}

func (p *store) Name() string { return "dcache " + level(p.synchronous) }

func (p *store) Prepare(dir string, w *Work) (err error) {
	p.jobs = w.JobIDs
	if p.path, err = fill(dir, w); err != nil {
		return err
	}
	p.db, err = dcache.Open(p.path, 0, dcache.WithSynchronous(dcache.Synchronous(p.synchronous)))
	return err
}

func (p *store) Finish(op Op, now int64, result string) error {
	return p.db.UpdateBatchTarget(p.jobs[op.Job], op.Idx, now, dcache.TargetDone, &result, nil, nil)
}

func (p *store) Verify(w *Work) error {
	stats := p.db.Stats()
	if want := int64(len(w.Ops)); stats.Operations != want {
		return fmt.Errorf("%w: the store counted %d operations, not %d", errWrong, stats.Operations, want)
	}
	return errors.Join(verifyFile(p.path, w, p.db.BatchNbytes()), p.db.Check())
}

func (p *store) Close() error {
	if p.db == nil {
		return nil
	}
	return p.db.Close()
}
