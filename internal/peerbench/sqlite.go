package main

import (
	"database/sql"
	"dcache/internal/dcache"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/mattn/go-sqlite3" // the driver
)

// The two levels of SQLite's synchronous.
const (
	normal = int(dcache.SyncNormal)
	full   = int(dcache.SyncFull)
)

func level(synchronous int) string {
	if synchronous == full {
		return "FULL"
	}
	return "NORMAL"
}

// fill makes the store's file in dir, with the jobs and targets of the work, by the store itself: the peers that use SQLite with
// the store's tables start from what it starts from.
func fill(dir string, w *Work) (path string, err error) {
	path = filepath.Join(dir, "dcache.db")
	// Nothing of this has to survive.
	store, err := dcache.Open(path, 0, dcache.WithSynchronous(dcache.SyncNormal))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for i, id := range w.JobIDs {
		job := dcache.BatchJob{ID: id, Caller: caller, CallerClass: dcache.ClassFleet, Status: dcache.JobRunning}
		targets := make([]dcache.BatchTarget, w.Targets)
		for idx := range targets {
			targets[idx] = dcache.BatchTarget{Idx: idx, URL: w.URL(Op{Job: i, Idx: idx}), Options: targetOptions}
		}
		if _, _, err := store.SubmitBatch(job, targets, filledAt, time.Hour); err != nil {
			return "", err
		}
	}
	return path, nil
}

// pragma is one that every SQLite candidate sets, and the value that it then reads.
type pragma struct{ name, value string }

// pragmas are the store's own; a test compares them with its source.
func pragmas(synchronous int) []pragma {
	return []pragma{
		{"busy_timeout", "5000"},
		{"journal_mode", "wal"},
		{"synchronous", strconv.Itoa(synchronous)},
		{"wal_autocheckpoint", "1000"},
		{"journal_size_limit", "8388608"},
		{"cache_size", "-16384"},
		{"mmap_size", "0"},
		{"temp_store", "2"},
		{"cell_size_check", "1"},
		{"trusted_schema", "0"},
	}
}

// openSQL opens a file through database/sql as the store does: one connection, which is never recycled, the write lock taken by
// BEGIN, the driver's cache of prepared statements on.
func openSQL(path string, synchronous int) (*sqlx.DB, error) {
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() + "?_txlock=immediate&_stmt_cache_size=64"
	db, err := sqlx.Open("sqlite3", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	for _, p := range pragmas(synchronous) {
		var got string
		if _, err = db.Exec("PRAGMA " + p.name + " = " + p.value); err == nil {
			err = db.Get(&got, "PRAGMA "+p.name)
		}
		if err == nil && got != p.value {
			err = fmt.Errorf("pragma %s is %s, not %s", p.name, got, p.value)
		}
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// verifyFile checks what a file of the store's tables holds, through a connection of its own.
func verifyFile(path string, w *Work, total int64) (err error) {
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=ro")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s := NewState()
	s.Total = total
	err = each(db, `SELECT id, targets_done, nbytes, lease FROM batch_job`, func(scan func(...any) error) error {
		var id string
		var j JobState
		err := scan(&id, &j.Done, &j.NBytes, &j.Lease)
		s.Jobs[id] = j
		return err
	})
	if err != nil {
		return err
	}
	err = each(db, `SELECT job_id, idx, status, coalesce(result, '') FROM batch_target`, func(scan func(...any) error) error {
		var id string
		var idx int
		var t TargetState
		err := scan(&id, &idx, &t.Status, &t.Result)
		s.Put(id, idx, t)
		return err
	})
	if err != nil {
		return err
	}
	return s.Check(w)
}

// each calls fn for every row of a query.
func each(db *sql.DB, query string, fn func(scan func(...any) error) error) (err error) {
	rows, err := db.Query(query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := fn(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
