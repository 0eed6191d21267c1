package dcache

import (
	"context"
	"fmt"
	"maps"
	"math"
	"sync"

	"github.com/jmoiron/sqlx"
)

// totals are the sums over batch_job and content_body that are asked for too often to be scanned for. A transaction collects
// what it changes in totals of its own, which are added to the store's after its commit.
type totals struct {
	mu       sync.RWMutex
	batch    int64          // bytes: sum of batch_job.nbytes
	finished int64          // bytes of it under jobs that are not live: what an eviction can free
	content  int64          // bytes: sum of content_body.nbytes
	live     map[string]int // live jobs of each caller that has any
	liveJobs int            // their sum
}

// add applies what a transaction has committed.
func (s *totals) add(delta *totals) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch += delta.batch
	s.finished += delta.finished
	s.content += delta.content
	for caller, n := range delta.live {
		s.addLive(caller, n)
	}
}

func (s *totals) addLive(caller string, n int) {
	if n == 0 {
		return
	}
	if s.live == nil {
		s.live = map[string]int{}
	}
	s.liveJobs += n
	if s.live[caller] += n; s.live[caller] == 0 {
		delete(s.live, caller)
	}
}

// loadTotals reads the sums when the store is opened. Nothing in it grows with the number of targets.
func (d *DB) loadTotals() error {
	return d.hold(func(c *sqlx.Conn) error {
		s, err := sumTotals(c)
		if err != nil {
			return err
		}
		d.totals.add(s)
		return nil
	})
}

const (
	countLive = `
		SELECT caller, count(*) AS n
		FROM batch_job
		WHERE status IN ('queued', 'running')
		GROUP BY caller`
	sumContent = `SELECT coalesce(sum(nbytes), 0) FROM content_body`
)

// sumTotals computes the totals from the rows.
func sumTotals(c *sqlx.Conn) (*totals, error) {
	s := &totals{}
	err := c.QueryRowxContext(context.Background(), `
		SELECT coalesce(sum(nbytes), 0),
		       coalesce(sum(CASE WHEN status IN ('queued', 'running') THEN 0 ELSE nbytes END), 0)
		FROM batch_job`).Scan(&s.batch, &s.finished)
	if err != nil {
		return nil, err
	}
	err = c.GetContext(context.Background(), &s.content, sumContent)
	if err != nil {
		return nil, err
	}
	var live []struct {
		Caller string
		N      int
	}
	err = c.SelectContext(context.Background(), &live, countLive)
	for _, l := range live {
		s.addLive(l.Caller, l.N)
	}
	return s, err
}

// BatchNbytes returns the bytes of all stored results, without a scan (rule 7).
func (d *DB) BatchNbytes() int64 {
	return readTotal(d, func(s *totals) int64 { return s.batch })
}

// LiveBatchJobs returns the number of a caller's jobs that are queued or running, without a scan.
func (d *DB) LiveBatchJobs(caller string) int {
	return readTotal(d, func(s *totals) int { return s.live[caller] })
}

// LiveBatchJobsTotal returns the number of all jobs that are queued or running, without a scan.
func (d *DB) LiveBatchJobsTotal() int {
	return readTotal(d, func(s *totals) int { return s.liveJobs })
}

// Size returns the bytes of the stored content bodies, each counted once, whatever its number of entries. Batch results are not in it.
func (d *DB) Size() int64 {
	return readTotal(d, func(s *totals) int64 { return s.content })
}

func readTotal[T int | int64](d *DB, read func(*totals) T) T {
	if d.enter() != nil {
		return 0
	}
	defer d.leave()
	d.totals.mu.RLock()
	defer d.totals.mu.RUnlock()
	return read(&d.totals)
}

// batchBytes and the two below are totals as the transaction sees them, with its own changes. Only the holder of the connection
// changes the store's totals, so they need no lock here.
func (t *tx) batchBytes() int64    { return t.db.totals.batch + t.delta.batch }
func (t *tx) finishedBytes() int64 { return t.db.totals.finished + t.delta.finished }
func (t *tx) contentBytes() int64  { return t.db.totals.content + t.delta.content }

// account lets the totals follow a job from one state to another. The zero BatchJob stands for no job: before it was created,
// after it was deleted.
func (t *tx) account(from, to BatchJob) {
	t.delta.batch += to.NBytes - from.NBytes
	if from.live() && to.live() {
		return
	}
	if from.live() {
		t.delta.addLive(from.Caller, -1)
	} else {
		t.delta.finished -= from.NBytes
	}
	if to.live() {
		t.delta.addLive(to.Caller, 1)
	} else {
		t.delta.finished += to.NBytes
	}
}

// endAllLive lets the totals follow when every live job ends at once.
func (t *tx) endAllLive() {
	t.delta.finished += t.batchBytes() - t.finishedBytes()
	live := maps.Clone(t.db.totals.live)
	for caller, n := range t.delta.live {
		if live == nil {
			live = map[string]int{}
		}
		live[caller] += n
	}
	for caller, n := range live {
		t.delta.addLive(caller, -n)
	}
}

// bear returns the job with so many more result bytes and finished targets, or an error if a counter can't hold them. No job has
// more bytes than all together.
func (t *tx) bear(j jobRow, bytes int64, finished int) (jobRow, error) {
	if overflows(t.batchBytes(), bytes) || overflows(int64(j.TargetsDone), int64(finished)) {
		return j, fmt.Errorf("a counter would pass the range of int64: %w", ErrInvalid)
	}
	j.NBytes += bytes
	j.TargetsDone += finished
	return j, nil
}

func overflows(a, b int64) bool {
	return b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b
}

// weight is what one target contributes to its job's counters.
func weight(status string, result *string) (bytes int64, finished int) {
	if result != nil {
		bytes = int64(len(*result))
	}
	if terminalTarget(status) {
		finished = 1
	}
	return bytes, finished
}

// storeJob writes a job's changed state, and lets the totals follow. It writes no column that stays: the lease's index moves once
// a second for a busy job, not with each of its results.
func (t *tx) storeJob(from, to jobRow) error {
	var err error
	switch {
	case from.Status != to.Status || from.Error != to.Error:
		_, err = t.exec(`
			UPDATE batch_job SET status = ?, error = ?, targets_done = ?, nbytes = ?, lease = ?
			WHERE rowid = ?`, to.Status, to.Error, to.TargetsDone, to.NBytes, to.Lease, to.RowID)
	case from.Lease != to.Lease:
		_, err = t.exec(updateJobLease, to.TargetsDone, to.NBytes, to.Lease, to.RowID)
	case from.TargetsDone != to.TargetsDone || from.NBytes != to.NBytes:
		_, err = t.exec(updateJobCounters, to.TargetsDone, to.NBytes, to.RowID)
	}
	if err != nil {
		return err
	}
	if !to.live() {
		delete(t.db.openHint, to.ID)
	}
	t.account(from.BatchJob, to.BatchJob)
	return nil
}

const (
	updateJobLease    = `UPDATE batch_job SET targets_done = ?, nbytes = ?, lease = ? WHERE rowid = ?`
	updateJobCounters = `UPDATE batch_job SET targets_done = ?, nbytes = ? WHERE rowid = ?`
)
