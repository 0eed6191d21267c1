package dcache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// cutoff is the newest lease that has expired: lease + ttl <= now is lease <= now - ttl, and written so an index serves. A part of
// a second in ttl is never rounded down. It is minus infinity where the difference lies below int64: then no lease has expired.
func cutoff(now int64, ttl time.Duration) any {
	seconds := int64(ttl / time.Second)
	if ttl%time.Second > 0 {
		seconds++
	}
	if seconds > 0 && now < math.MinInt64+seconds {
		return math.Inf(-1)
	}
	if seconds < 0 && now > math.MaxInt64+seconds {
		return int64(math.MaxInt64)
	}
	return now - seconds
}

// SweepBatch deletes every job whose lease + ttl <= now, live or not, with its targets, and returns their number (rule 4). A job
// that is touched before its turn survives. Other calls go on meanwhile: each job is deleted at once, but not all of them. After
// an error, which is logged, it returns the number of jobs deleted before it.
func (d *DB) SweepBatch(now int64, ttl time.Duration) int {
	cut := cutoff(now, ttl)
	n := d.deleteJobs("sweep", func(t *tx) ([]jobRow, error) {
		var jobs []jobRow
		err := t.selectAll(&jobs, selectExpired, cut)
		return jobs, err
	}, func(*tx) bool { return true })
	d.stats.swept.Add(int64(n))
	return n
}

const (
	// What a deletion has to know of a job.
	deletedColumns = `batch_job.rowid, id, caller, status, nbytes`

	selectExpired = `
		SELECT ` + deletedColumns + `
		FROM (SELECT rowid AS found, lease AS expired FROM batch_job WHERE lease <= ?1)
		CROSS JOIN batch_job ON batch_job.rowid = found
		WHERE +lease <= ?1 -- the row's own: what a damaged index says must not cost a job its life
		ORDER BY expired
		LIMIT 64`

	selectEvictable = `
		SELECT ` + deletedColumns + `
		FROM (SELECT rowid AS found, lease AS oldest, created_at AS since, id AS name FROM batch_job
		      WHERE status IN ('done', 'partial', 'failed', 'cancelled') AND nbytes > 0)
		CROSS JOIN batch_job ON batch_job.rowid = found
		ORDER BY oldest, since, name
		LIMIT 64`
)

// EvictBatchOldest deletes whole jobs with their targets, the oldest lease first (then created_at, then id), until BatchNbytes is at
// most maxBytes, and returns their number (rule 5). A live job is never evicted, and a job without bytes neither, since it frees
// none; so the total may stay above maxBytes: Stats().BatchOverBudget says by how much. Other calls go on meanwhile.
func (d *DB) EvictBatchOldest(maxBytes int64) int {
	d.stats.budget.Store(&maxBytes)
	over := func(t *tx) bool { return t.batchBytes() > maxBytes && t.finishedBytes() > 0 }
	n := 0
	if d.overBudget(maxBytes) {
		n = d.deleteJobs("evict", func(t *tx) ([]jobRow, error) {
			var jobs []jobRow
			if !over(t) {
				return nil, nil
			}
			err := t.selectAll(&jobs, selectEvictable)
			if slices.ContainsFunc(jobs, func(j jobRow) bool { return j.live() }) {
				err = errors.Join(err, errStray)
			}
			return jobs, err
		}, over)
	}
	d.stats.evictedJobs.Add(int64(n))
	return n
}

// overBudget reports whether an eviction down to maxBytes would find something.
func (d *DB) overBudget(maxBytes int64) bool {
	d.totals.mu.RLock()
	defer d.totals.mu.RUnlock()
	return d.totals.batch > maxBytes && d.totals.finished > 0
}

// deleteJobs deletes the jobs that next finds, in turns, while more says so, and gives the space back.
func (d *DB) deleteJobs(op string, next func(*tx) ([]jobRow, error), more func(*tx) bool) int {
	total := 0
	for {
		var n int
		err := d.turn(maxGroup, func(t *tx) (err error) {
			n, err = t.deleteJobs(next, more)
			return err
		})
		if err != nil {
			d.report(op+" batch jobs", "", err)
			break
		}
		total += n
		if n == 0 {
			break
		}
	}
	if total > 0 {
		d.reclaim()
		d.logger.Debug("dcache: "+op, "jobs", total)
	}
	return total
}

// deleteJobs is one turn of it.
func (t *tx) deleteJobs(next func(*tx) ([]jobRow, error), more func(*tx) bool) (n int, err error) {
	for weight := int64(0); ; {
		jobs, err := next(t)
		if err != nil || len(jobs) == 0 {
			return n, err
		}
		for _, j := range jobs {
			if !t.mayGoOn(weight) || !more(t) {
				return n, nil
			}
			rows, err := t.deleteJob(j)
			if err != nil {
				return n, err
			}
			weight += 1 + rows + j.NBytes/pageBytes
			n++
		}
	}
}

// writeBatch is weigh for what may store results or end a job: with WithBatchBudget, the eviction follows it.
func (d *DB) writeBatch(weight int, fn func(*tx) error) error {
	err := d.weigh(weight, fn)
	if err == nil && d.hasBatchBudget && d.overBudget(d.batchBudget) {
		d.EvictBatchOldest(d.batchBudget)
	}
	return err
}

// MarkInFlightFailed makes every live job failed, with reason as its error and now as its lease, and returns their number (rule 6):
// what a restart does that does not resume. Target rows stay as the crash left them. It returns 0 after an error, which is
// logged. See RequeueInFlight for the restart that resumes.
func (d *DB) MarkInFlightFailed(reason string, now int64) int {
	var n int64
	err := d.writeBatch(maxGroup, func(t *tx) (err error) {
		n, err = t.exec(markFailed, reason, now)
		if err != nil {
			return err
		}
		t.endAllLive()
		return nil
	})
	if err != nil {
		d.report("mark batch jobs failed", "", err)
		return 0
	}
	return int(n)
}

const markFailed = `
	UPDATE batch_job SET status = 'failed', error = ?, lease = ?
	WHERE status IN ('queued', 'running')`

// RequeueInFlight makes what a crash interrupted ready to run again: running targets are pending, running jobs queued, finished
// targets keep their results, and every live job's lease moves to now. It returns the ids of the jobs to run, oldest first
// (created_at, then id). A live job without an open target is closed as FinishBatchTarget would have; one without any target
// becomes failed; neither is returned.
func (d *DB) RequeueInFlight(now int64) ([]string, error) {
	var ids []string
	err := d.writeBatch(maxGroup, func(t *tx) error {
		ids = []string{}
		var jobs []jobRow
		if err := t.selectAll(&jobs, selectLive); err != nil {
			return err
		}
		for _, j := range jobs {
			open, err := t.requeue(j, now)
			if err != nil {
				return err
			}
			if open {
				ids = append(ids, j.ID)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("dcache: requeue batch jobs: %w", err)
	}
	return ids, nil
}

// Left alone, the planner would walk all jobs in the order asked for, to save sorting the live ones.
const selectLive = `SELECT rowid, ` + jobColumns + ` FROM batch_job INDEXED BY batch_job_live
	WHERE status IN ('queued', 'running')
	ORDER BY created_at, id`

// requeue makes one live job ready to run, and reports whether it has something left to run.
func (t *tx) requeue(from jobRow, now int64) (open bool, err error) {
	p, err := progress(t.conn, from.ID)
	if err != nil {
		return false, t.fail(err)
	}
	to := from
	to.Lease = now
	switch {
	case p == Progress{}:
		to.Status, to.Error = JobFailed, "the job has no targets"
	case p.open() == 0:
		to.Status = p.outcome()
	default:
		open = true
		to.Status = JobQueued
		if _, err := t.exec(`UPDATE batch_target SET status = 'pending' WHERE job_id = +? AND status = 'running'`, from.ID); err != nil {
			return false, err
		}
	}
	return open, t.storeJob(from, to)
}
