package main

import (
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
)

// sqlxPeer is what one writes first: a transaction for each call, the store's statements and pragmas. It has the driver's cache of
// prepared statements and the write lock from BEGIN, which is more than most programs give it.
type sqlxPeer struct {
	synchronous int
	path        string
	jobs        []string
	db          *sqlx.DB
	total       atomic.Int64
}

func newSqlx(synchronous int) func() Peer {
	return func() Peer { return &sqlxPeer{synchronous: synchronous} }
}

func (p *sqlxPeer) Name() string { return "sqlx per call " + level(p.synchronous) }

func (p *sqlxPeer) Prepare(dir string, w *Work) (err error) {
	p.jobs = w.JobIDs
	if p.path, err = fill(dir, w); err != nil {
		return err
	}
	p.db, err = openSQL(p.path, p.synchronous)
	return err
}

// The statements of the operation. They are the store's, to the byte, and a test keeps them so.
const (
	selectTargetState = `
	SELECT t.rowid, t.status, coalesce(octet_length(t.result), 0),
	       j.rowid, j.status, j.targets_done, j.nbytes, j.lease,
	       t.job_id = ?1 AND t.idx = ?2 AND j.id = ?1
	FROM batch_target t CROSS JOIN batch_job j
	WHERE t.rowid = (SELECT rowid FROM batch_target WHERE job_id = +?1 AND idx = +?2)
	  AND j.rowid = (SELECT rowid FROM batch_job WHERE id = +?1)`
	updateTarget      = `UPDATE batch_target SET status = ?, result = ?, error = ?, hint = ? WHERE rowid = ?`
	updateJobLease    = `UPDATE batch_job SET targets_done = ?, nbytes = ?, lease = ? WHERE rowid = ?`
	updateJobCounters = `UPDATE batch_job SET targets_done = ?, nbytes = ? WHERE rowid = ?`
)

func (p *sqlxPeer) Finish(op Op, now int64, result string) (err error) {
	tx, err := p.db.Beginx()
	if err != nil {
		return err
	}
	grown, err := finishTx(tx, p.jobs[op.Job], op.Idx, now, result)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	p.total.Add(grown)
	return nil
}

// finishTx returns the bytes that the result adds.
func finishTx(tx *sqlx.Tx, jobID string, idx int, now int64, result string) (grown int64, err error) {
	var targetRow, size, jobRow, targetsDone, nbytes, lease int64
	var status, jobStatus string
	var own bool
	err = tx.QueryRowx(selectTargetState, jobID, idx).Scan(
		&targetRow, &status, &size, &jobRow, &jobStatus, &targetsDone, &nbytes, &lease, &own)
	if err != nil {
		return 0, err
	}
	if !own {
		return 0, errWrong
	}
	if status == pending {
		targetsDone++
	}
	grown = int64(len(result)) - size
	if err := changeOne(tx.Exec(updateTarget, done, result, nil, nil, targetRow)); err != nil {
		return 0, err
	}
	if lease == now {
		return grown, changeOne(tx.Exec(updateJobCounters, targetsDone, nbytes+grown, jobRow))
	}
	return grown, changeOne(tx.Exec(updateJobLease, targetsDone, nbytes+grown, now, jobRow))
}

func changeOne(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n != 1 {
		err = sql.ErrNoRows
	}
	return err
}

func (p *sqlxPeer) Verify(w *Work) error { return verifyFile(p.path, w, p.total.Load()) }

func (p *sqlxPeer) Close() error {
	if p.db == nil {
		return nil
	}
	return p.db.Close()
}
