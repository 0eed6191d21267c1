package main

import (
	"database/sql"
	"dcache/internal/dcache"
	"errors"
	"fmt"
	"time"
)

// The cases that read. Each candidate opens a file of its own, with one finished job in it.

const readJobID = "read"

var readLease = time.Unix(filledAt+1, 0)

// readFile makes a file with a job of finished targets, each with a result.
func readFile(dir string, targets int) (path string, err error) {
	path = dir + "/dcache.db"
	db, err := dcache.Open(path, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	job := dcache.BatchJob{
		ID: readJobID, Caller: caller, Status: dcache.JobDone, TargetsTotal: targets, CreatedAt: filledAt, Lease: readLease.Unix(),
	}
	if err := db.CreateBatchJob(job); err != nil {
		return "", err
	}
	results := NewWork(1, 1, 0, 1).Results
	batch := make([]dcache.BatchTarget, targets)
	for i := range batch {
		batch[i] = dcache.BatchTarget{
			Idx: i, URL: targetURL("00000000", i), Options: targetOptions, Status: dcache.TargetDone, Result: &results[i%len(results)],
		}
	}
	return path, db.PutBatchTargets(readJobID, batch)
}

// readStore times a read through the store, which must not write.
func readStore(name string, targets, reads int, read func(*dcache.DB) error) Candidate {
	return Candidate{Name: name, Run: func(dir string) (s Sample, err error) {
		path, err := readFile(dir, targets)
		if err != nil {
			return s, err
		}
		db, err := dcache.Open(path, 0, dcache.WithClock(func() time.Time { return readLease }))
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		before := db.Stats()
		s, err = repeat(name, reads, func() error { return read(db) })
		if after := db.Stats(); after.Transactions != before.Transactions || after.WALBytes != before.WALBytes {
			err = errors.Join(err, fmt.Errorf("%w: a read wrote", errWrong))
		}
		return s, err
	}}
}

// readSQL times a read by hand.
func readSQL(name string, targets, reads int, open func(path string) (read func() error, done func() error, err error)) Candidate {
	return Candidate{Name: name, Run: func(dir string) (s Sample, err error) {
		path, err := readFile(dir, targets)
		if err != nil {
			return s, err
		}
		read, done, err := open(path)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, done()) }()
		return repeat(name, reads, read)
	}}
}

// repeat times a read once the pages are in memory and the statement is prepared.
func repeat(name string, reads int, read func() error) (Sample, error) {
	for range min(reads, 10) {
		if err := read(); err != nil {
			return Sample{}, err
		}
	}
	return timed(name, reads, func() error {
		for range reads {
			if err := read(); err != nil {
				return err
			}
		}
		return nil
	})
}

// targetsStore is BatchTargets.
func targetsStore(targets, reads int) Candidate {
	return readStore("dcache BatchTargets", targets, reads, func(db *dcache.DB) error {
		got, ok := db.BatchTargets(readJobID)
		if !ok {
			return errors.New("the job is not there")
		}
		return checkTargets(got, targets)
	})
}

const selectTargets = `SELECT job_id, idx, url, options, status, result, error, hint FROM batch_target WHERE job_id = ? ORDER BY idx`

// targetsSQL is what one writes by hand: a prepared statement, and a scan into the fields.
func targetsSQL(targets, reads int) Candidate {
	return readSQL("database/sql by hand", targets, reads, func(path string) (func() error, func() error, error) {
		db, err := openSQL(path, full)
		if err != nil {
			return nil, nil, err
		}
		stmt, err := db.Prepare(selectTargets)
		if err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		read := func() error {
			got, err := scanTargets(stmt)
			if err != nil {
				return err
			}
			return checkTargets(got, targets)
		}
		return read, func() error { return errors.Join(stmt.Close(), db.Close()) }, nil
	})
}

func scanTargets(stmt *sql.Stmt) (targets []dcache.BatchTarget, err error) {
	rows, err := stmt.Query(readJobID)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var t dcache.BatchTarget
		if err := rows.Scan(&t.JobID, &t.Idx, &t.URL, &t.Options, &t.Status, &t.Result, &t.Error, &t.Hint); err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return targets, rows.Err()
}

// checkTargets looks at each row, but at no byte of it, which would cost both candidates the same.
func checkTargets(got []dcache.BatchTarget, targets int) error {
	if len(got) != targets {
		return fmt.Errorf("%w: %d targets, not %d", errWrong, len(got), targets)
	}
	for i, t := range got {
		if t.Idx != i || t.Status != done || t.Result == nil || len(*t.Result) != resultBytes || t.Error != nil {
			return fmt.Errorf("%w: target %d is not what was stored", errWrong, i)
		}
	}
	return nil
}

// pollStore is BatchJob of a job whose lease stands at the clock's second.
func pollStore(reads int) Candidate {
	return readStore("dcache BatchJob", 1, reads, func(db *dcache.DB) error {
		j, ok := db.BatchJob(readJobID)
		if !ok {
			return errors.New("the job is not there")
		}
		return checkJob(j)
	})
}

const selectJob = `SELECT id, caller, caller_class, idem_key, status, error, targets_total, targets_done, created_at, lease, nbytes
	FROM batch_job WHERE id = ?`

// pollSQL is a bare Get of the row.
func pollSQL(reads int) Candidate {
	return readSQL("sqlx Get", 1, reads, func(path string) (func() error, func() error, error) {
		db, err := openSQL(path, full)
		if err != nil {
			return nil, nil, err
		}
		read := func() error {
			var j dcache.BatchJob
			if err := db.Get(&j, selectJob, readJobID); err != nil {
				return err
			}
			return checkJob(j)
		}
		return read, db.Close, nil
	})
}

func checkJob(j dcache.BatchJob) error {
	if j.ID != readJobID || j.Status != dcache.JobDone || j.Lease != readLease.Unix() {
		return fmt.Errorf("%w: job is %+v", errWrong, j)
	}
	return nil
}
