package main

/*
#include "floor.h"
*/
import "C"

import (
	"dcache/internal/dcache"
	"errors"
	"fmt"
	"strconv"
)

// The case of a large batch: the targets of a few jobs, each job's in one call and one transaction.

const putJobs = 5 // jobs to a run: one alone is over too soon to be measured well

func putJobID(i int) string { return "put-" + strconv.Itoa(i) }

// putFile makes a file with jobs that have no targets yet.
func putFile(dir string) (path string, err error) {
	path = dir + "/dcache.db"
	db, err := dcache.Open(path, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for i := range putJobs {
		if err := db.CreateBatchJob(dcache.BatchJob{ID: putJobID(i), Caller: caller, Status: dcache.JobRunning, Lease: filledAt}); err != nil {
			return "", err
		}
	}
	return path, nil
}

// putStore is the subject: one PutBatchTargets a job.
func putStore(targets int) Candidate {
	const name = "dcache PutBatchTargets"
	return Candidate{Name: name, Run: func(dir string) (s Sample, err error) {
		path, err := putFile(dir)
		if err != nil {
			return s, err
		}
		db, err := dcache.Open(path, 0)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		batch := make([]dcache.BatchTarget, targets)
		for i := range batch {
			batch[i] = dcache.BatchTarget{Idx: i, URL: targetURL("00000000", i), Options: targetOptions}
		}
		s, err = timed(name, putJobs, func() error {
			for i := range putJobs {
				if err := db.PutBatchTargets(putJobID(i), batch); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return s, err
		}
		return s, verifyPut(path, targets)
	}}
}

// insertTarget is the plain statement, a row at a time.
const insertTarget = `INSERT INTO batch_target (job_id, idx, url, options, status, result, error, hint) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

// putFloor is the C floor: a loop over a prepared insert. It doesn't touch the job.
func putFloor(targets int) Candidate {
	const name = "C insert loop"
	return Candidate{Name: name, Run: func(dir string) (s Sample, err error) {
		path, err := putFile(dir)
		if err != nil {
			return s, err
		}
		db, err := openFloor(path, full)
		if err != nil {
			return s, err
		}
		var m arena
		defer m.free()
		defer func() { err = errors.Join(err, closeFloor(db)) }()
		urls := make([]string, targets)
		for i := range urls {
			urls[i] = targetURL("00000000", i)
		}
		pool, insert, options := m.pool(urls), m.text(insertTarget), m.text(targetOptions)
		var jobs []*C.char
		for i := range putJobs {
			jobs = append(jobs, m.text(putJobID(i)))
		}
		s, err = timed(name, putJobs, func() error {
			for _, job := range jobs {
				if err := floorError(db, C.floor_insert(db, insert, job, pool, options, C.int(targets))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return s, err
		}
		return s, verifyPut(path, targets)
	}}
}

// verifyPut reads every row back.
func verifyPut(path string, targets int) error {
	db, err := openSQL(path, full)
	if err != nil {
		return err
	}
	n := 0
	err = each(db.DB, `SELECT job_id, idx, url, options, status FROM batch_target ORDER BY job_id, idx`,
		func(scan func(...any) error) error {
			var t dcache.BatchTarget
			if err := scan(&t.JobID, &t.Idx, &t.URL, &t.Options, &t.Status); err != nil {
				return err
			}
			i := n % targets
			if t.JobID != putJobID(n/targets) || t.Idx != i || t.URL != targetURL("00000000", i) || t.Options != targetOptions ||
				t.Status != pending {
				return fmt.Errorf("%w: row %d is %+v", errWrong, n, t)
			}
			n++
			return nil
		})
	if err == nil && n != putJobs*targets {
		err = fmt.Errorf("%w: %d targets, not %d", errWrong, n, putJobs*targets)
	}
	return errors.Join(err, db.Close())
}
