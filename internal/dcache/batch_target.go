package dcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// The statuses of a target. It is open while it is pending or running, and finished when it is done or failed.
const (
	TargetPending = "pending"
	TargetRunning = "running"
	TargetDone    = "done"
	TargetFailed  = "failed"
)

// BatchTarget is one URL of a batch and what became of it. Result, Error and Hint are nil until it finishes.
type BatchTarget struct {
	JobID   string  `db:"job_id"`
	Idx     int     `db:"idx"` // order within the job
	URL     string  `db:"url"`
	Options string  `db:"options"` // JSON
	Status  string  `db:"status"`  // TargetPending, …
	Result  *string `db:"result"`  // JSON envelope
	Error   *string `db:"error"`
	Hint    *string `db:"hint"`
}

const targetColumns = `job_id, idx, url, options, status, result, error, hint`

func terminalTarget(status string) bool { return status == TargetDone || status == TargetFailed }

// targetStatus checks a status; an empty one is the first state.
func targetStatus(s string) (string, error) {
	switch s {
	case "":
		return TargetPending, nil
	case TargetPending, TargetRunning, TargetDone, TargetFailed:
		return s, nil
	}
	return "", fmt.Errorf("target status %.64q: %w", s, ErrInvalid)
}

const selectTargets = `
	SELECT ` + targetColumns + `
	FROM (SELECT rowid AS found, idx AS place FROM batch_target WHERE job_id = +?)
	CROSS JOIN batch_target ON batch_target.rowid = found
	ORDER BY place`

// BatchTargets returns a job's targets in idx order. It is false only when there is no such job: a job without targets has an empty
// slice. All of them are read into memory; BatchTargetsPage reads as many bytes as it is told.
func (d *DB) BatchTargets(jobID string) ([]BatchTarget, bool) {
	var targets []BatchTarget
	err := d.hold(func(c *sqlx.Conn) error {
		var err error
		if targets, err = readTargets(c, selectTargets, jobID); err != nil {
			return err
		}
		if len(targets) == 0 {
			return jobExists(c, jobID)
		}
		return checkOwn(targets, jobID)
	})
	d.report("read targets of batch job", jobID, err)
	if !d.stats.targets.found(err == nil) {
		return nil, false
	}
	return targets, true
}

// readTargets scans by hand what there may be tens of thousands of: sqlx looks every field up again for each row.
func readTargets(c *sqlx.Conn, query string, args ...any) ([]BatchTarget, error) {
	rows, err := c.QueryContext(context.Background(), query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is what tells.
	targets := []BatchTarget{}
	for rows.Next() {
		var t BatchTarget
		if err := rows.Scan(&t.JobID, &t.Idx, &t.URL, &t.Options, &t.Status, &t.Result, &t.Error, &t.Hint); err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return targets, rows.Err()
}

// checkOwn sees to it that a damaged index has not led to rows of another job, or to one row for another.
func checkOwn(targets []BatchTarget, jobID string) error {
	for i := range targets {
		if targets[i].JobID != jobID || i > 0 && targets[i].Idx <= targets[i-1].Idx {
			return errStray
		}
	}
	return nil
}

func jobExists(c *sqlx.Conn, id string) error {
	var one int
	return c.GetContext(context.Background(), &one, `SELECT 1 FROM batch_job WHERE id = +?`, id)
}

const (
	// octet_length leaves a result's overflow pages unread.
	selectTargetSizes = `
		SELECT idx, coalesce(octet_length(result), 0)
		FROM batch_target
		WHERE job_id = +? AND idx >= ?
		ORDER BY idx
		LIMIT +?`
	selectTargetRange = `
		SELECT ` + targetColumns + `
		FROM (SELECT rowid AS found, idx AS place FROM batch_target WHERE job_id = +? AND idx BETWEEN ? AND ?)
		CROSS JOIN batch_target ON batch_target.rowid = found
		ORDER BY place`
)

// BatchTargetsPage returns a job's targets from idx from on, in idx order, finished or not: at most maxTargets, and only as many as
// have maxBytes of results together, but at least one. next is the idx to go on from, or -1 at the end. It is false when there is
// no such job. A maxTargets below 1 is taken for 1. No result is read that is not returned, and the cost does not depend on from.
func (d *DB) BatchTargetsPage(jobID string, from, maxTargets int, maxBytes int64) (page []BatchTarget, next int, ok bool) {
	page, next = []BatchTarget{}, -1
	err := d.hold(func(c *sqlx.Conn) error {
		n, last, following, err := measurePage(c, jobID, from, max(maxTargets, 1), maxBytes)
		if err != nil {
			return err
		}
		next = following
		if n == 0 {
			return jobExists(c, jobID)
		}
		if page, err = readTargets(c, selectTargetRange, jobID, from, last); err != nil {
			return err
		}
		if len(page) != n || page[n-1].Idx != last {
			return errStray
		}
		return checkOwn(page, jobID)
	})
	d.report("read targets of batch job", jobID, err)
	if !d.stats.targets.found(err == nil) {
		return nil, -1, false
	}
	return page, next, true
}

// measurePage finds where a page ends: the number of its targets, the idx of the last, and that of the one after it or -1.
func measurePage(c *sqlx.Conn, jobID string, from, maxTargets int, maxBytes int64) (n, last, next int, err error) {
	rows, err := c.QueryContext(context.Background(), selectTargetSizes, jobID, from, oneMore(maxTargets))
	if err != nil {
		return 0, 0, 0, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is what tells.
	var sum int64
	for ; rows.Next(); n++ {
		var idx int
		var size int64
		if err := rows.Scan(&idx, &size); err != nil {
			return 0, 0, 0, err
		}
		if sum += size; n > 0 && sum > maxBytes || n == maxTargets {
			return n, last, idx, nil
		}
		last = idx
	}
	return n, last, -1, rows.Err()
}

// UpdateBatchTarget stores what became of a target (rule 3). The job's targets_done moves with the number of its finished targets,
// in whatever order the calls come; its nbytes by the difference that the result makes, a nil one giving its bytes back; its
// lease to now. An unknown job or idx is ErrNotFound, an unknown status ErrInvalid, a result that SQLite can't hold ErrTooLarge.
// The job's own status is neither looked at nor changed: see FinishBatchTarget.
func (d *DB) UpdateBatchTarget(jobID string, idx int, now int64, status string, result, errMsg, hint *string) error {
	status, err := targetStatus(status)
	if err == nil {
		err = d.writeBatch(resultWeight(result), func(t *tx) error {
			_, err := t.setTarget(jobID, idx, now, status, result, errMsg, hint)
			return err
		})
	}
	return targetError("update batch target", jobID, idx, err)
}

// resultWeight is what writing a result weighs in a group.
func resultWeight(result *string) int {
	if result == nil {
		return 1
	}
	return 1 + len(*result)/pageBytes
}

// text binds a string or NULL, without the reflection that a pointer would cost.
func text(s *string) any {
	if s == nil {
		return nil
	}
	return *s
}

// selectTargetState reads what an update has to know of the target and its job: all of it lies before the result.
const selectTargetState = `
	SELECT t.rowid, t.status, coalesce(octet_length(t.result), 0),
	       j.rowid, j.status, j.targets_done, j.nbytes, j.lease,
	       t.job_id = ?1 AND t.idx = ?2 AND j.id = ?1
	FROM batch_target t CROSS JOIN batch_job j
	WHERE t.rowid = (SELECT rowid FROM batch_target WHERE job_id = +?1 AND idx = +?2)
	  AND j.rowid = (SELECT rowid FROM batch_job WHERE id = +?1)`

const updateTarget = `UPDATE batch_target SET status = ?, result = ?, error = ?, hint = ? WHERE rowid = ?`

// setTarget writes a target, and returns what has become of its job: status, counters and lease.
func (t *tx) setTarget(jobID string, idx int, now int64, status string, result, errMsg, hint *string) (jobRow, error) {
	var from jobRow
	var rowID, oldBytes int64
	var oldStatus string
	var own bool
	err := t.conn.QueryRowContext(context.Background(), selectTargetState, jobID, idx).Scan(&rowID, &oldStatus, &oldBytes,
		&from.RowID, &from.Status, &from.TargetsDone, &from.NBytes, &from.Lease, &own)
	if err != nil {
		return from, t.fail(err)
	}
	if !own {
		return from, errStray
	}
	bytes, finished := weight(status, result)
	if terminalTarget(oldStatus) {
		finished--
	}
	to, err := t.bear(from, bytes-oldBytes, finished)
	if err != nil {
		return from, err
	}
	to.Lease = now
	if err := t.execOne(updateTarget, status, text(result), text(errMsg), text(hint), rowID); err != nil {
		return from, err
	}
	return to, t.storeJob(from, to)
}

// FinishBatchTarget is UpdateBatchTarget with a status of TargetDone or TargetFailed (another is ErrInvalid) for a live job; one that
// isn't live any more is ErrNotLive, and nothing changes: a late worker overwrites nothing. When no target of the job is open any
// more, the job ends in the same transaction: JobDone if all are done, JobFailed if all failed, else JobPartial. The job is
// returned as it now stands.
func (d *DB) FinishBatchTarget(jobID string, idx int, now int64, status string, result, errMsg, hint *string) (BatchJob, error) {
	if !terminalTarget(status) {
		return BatchJob{}, targetError("finish batch target", jobID, idx, fmt.Errorf("status %.64q: %w", status, ErrInvalid))
	}
	var job jobRow
	err := d.writeBatch(resultWeight(result), func(t *tx) (err error) {
		if job, err = t.liveJob(jobID); err != nil {
			return err
		}
		set, err := t.setTarget(jobID, idx, now, status, result, errMsg, hint)
		if err != nil {
			return err
		}
		job.TargetsDone, job.NBytes, job.Lease = set.TargetsDone, set.NBytes, set.Lease
		open, err := t.anyOpen(jobID, idx)
		if err != nil || open {
			return err
		}
		job, err = t.closeJob(job, now)
		return err
	})
	if err != nil {
		return BatchJob{}, targetError("finish batch target", jobID, idx, err)
	}
	return job.BatchJob, nil
}

// selectOpenFrom finds the first open target at or after an idx.
const selectOpenFrom = `
	SELECT idx FROM batch_target
	WHERE job_id = +? AND idx >= ? AND status IN ('pending', 'running')
	ORDER BY idx
	LIMIT 1`

// anyOpen reports whether a job has an open target. An index of the open targets would be one more page to write for each result;
// instead the search goes on from where the last one found an open target. That place is only a hint: it moves up through the
// job, so that all searches together pass each row about once, and the end is believed only after a search from the beginning.
func (t *tx) anyOpen(jobID string, idx int) (bool, error) {
	hint, ok := t.db.openHint[jobID]
	if !ok {
		hint = idx
	}
	for {
		var open int
		err := t.get(&open, selectOpenFrom, jobID, hint)
		switch {
		case err == nil:
			t.db.openHint[jobID] = open
			return true, nil
		case !errors.Is(err, ErrNotFound):
			return false, err
		case hint == 0:
			delete(t.db.openHint, jobID)
			return false, nil
		}
		hint = 0
	}
}

// closeJob gives a job without open targets its final status.
func (t *tx) closeJob(from jobRow, now int64) (jobRow, error) {
	p, err := progress(t.conn, from.ID)
	if err != nil {
		return from, t.fail(err)
	}
	to := from
	to.Status, to.Lease = p.outcome(), now
	return to, t.storeJob(from, to)
}
