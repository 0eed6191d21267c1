package dcache

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
)

// Stats is a reading of the store's counters, which start at zero with Open, and of its sizes.
type Stats struct {
	ContentH      int64 `json:"content_hits"`   // Get
	ContentM      int64 `json:"content_misses"` //
	BatchJobH     int64 `json:"batch_job_hits"` // BatchJob, PeekBatchJob, BatchProgress
	BatchJobM     int64 `json:"batch_job_misses"`
	BatchIDemH    int64 `json:"batch_idem_hits"` // BatchJobByIDem, SubmitBatch under a key
	BatchIDemM    int64 `json:"batch_idem_misses"`
	BatchTargetsH int64 `json:"batch_targets_hits"` // BatchTargets, BatchTargetsPage
	BatchTargetsM int64 `json:"batch_targets_misses"`

	JobsSwept      int64 `json:"jobs_swept"`      // by SweepBatch
	JobsEvicted    int64 `json:"jobs_evicted"`    // by EvictBatchOldest
	EntriesEvicted int64 `json:"entries_evicted"` // of the content cache
	Corrupt        int64 `json:"corrupt"`         // bodies that no longer had their digest, and were removed

	ContentBytes    int64 `json:"content_bytes"`     // Size
	BatchBytes      int64 `json:"batch_bytes"`       // BatchNbytes
	BatchOverBudget int64 `json:"batch_over_budget"` // of it, bytes above the last budget that was asked for or set: live jobs hold them
	LiveJobs        int64 `json:"live_jobs"`         // LiveBatchJobsTotal

	Transactions int64 `json:"transactions"` // committed
	Operations   int64 `json:"operations"`   // writing calls that they carried; operations/transactions is the size of a commit group
	Errors       int64 `json:"errors"`       // database errors, returned or logged

	FileBytes int64 `json:"file_bytes"` // of the database file; 0 in memory
	FreeBytes int64 `json:"free_bytes"` // of it, pages that hold nothing
	WALBytes  int64 `json:"wal_bytes"`  // of the write-ahead log beside it
}

// counters are what Stats reads, kept while calls run.
type counters struct {
	content, job, idem, targets      lookups
	swept, evictedJobs, evictedItems atomic.Int64
	corrupt                          atomic.Int64
	budget                           atomic.Pointer[int64] // the last that EvictBatchOldest was told
	transactions, operations, errors atomic.Int64
}

type lookups struct{ hits, misses atomic.Int64 }

// found counts one look-up, and passes its outcome on.
func (l *lookups) found(ok bool) bool {
	if ok {
		l.hits.Add(1)
	} else {
		l.misses.Add(1)
	}
	return ok
}

// refusals are the errors that say no to a caller; any other is the database's.
var refusals = []error{ErrNotFound, ErrExists, ErrInvalid, ErrTooLarge, ErrConflict, ErrNotLive, ErrClosed}

// operation counts the outcome of a writing call.
func (c *counters) operation(err error) {
	if err == nil {
		c.operations.Add(1)
	}
	c.databaseError(err)
}

// databaseError counts an error, unless it is a refusal.
func (c *counters) databaseError(err error) {
	if err == nil {
		return
	}
	for _, r := range refusals {
		if errors.Is(err, r) {
			return
		}
	}
	c.errors.Add(1)
}

// Stats reads the counters, and asks the database for the sizes. After Close, all is zero.
func (d *DB) Stats() Stats {
	var free, pageSize int64
	err := d.hold(func(c *sqlx.Conn) error {
		if err := c.GetContext(context.Background(), &free, `PRAGMA freelist_count`); err != nil {
			return err
		}
		return c.GetContext(context.Background(), &pageSize, `PRAGMA page_size`)
	})
	if errors.Is(err, ErrClosed) {
		return Stats{}
	}
	d.report("stats", "", err)
	c := &d.stats
	s := Stats{
		ContentH:      c.content.hits.Load(),
		ContentM:      c.content.misses.Load(),
		BatchJobH:     c.job.hits.Load(),
		BatchJobM:     c.job.misses.Load(),
		BatchIDemH:    c.idem.hits.Load(),
		BatchIDemM:    c.idem.misses.Load(),
		BatchTargetsH: c.targets.hits.Load(),
		BatchTargetsM: c.targets.misses.Load(),

		JobsSwept:      c.swept.Load(),
		JobsEvicted:    c.evictedJobs.Load(),
		EntriesEvicted: c.evictedItems.Load(),
		Corrupt:        c.corrupt.Load(),

		ContentBytes: d.Size(),
		BatchBytes:   d.BatchNbytes(),
		LiveJobs:     int64(d.LiveBatchJobsTotal()),

		Transactions: c.transactions.Load(),
		Operations:   c.operations.Load(),
		Errors:       c.errors.Load(),

		FreeBytes: free * pageSize,
	}
	if budget := c.budget.Load(); budget != nil {
		s.BatchOverBudget = max(0, s.BatchBytes-max(*budget, 0))
	}
	if d.file != "" {
		s.FileBytes, s.WALBytes = fileSize(d.file), d.walBytes()
	}
	return s
}

// walBytes is the size of the WAL, 0 in memory.
func (d *DB) walBytes() int64 {
	if d.file == "" {
		return 0
	}
	return fileSize(d.file + "-wal")
}

// fileSize is 0 for no file. It asks the folder: opening the file would drop SQLite's locks when it is closed again.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
