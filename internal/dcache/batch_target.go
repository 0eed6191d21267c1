package dcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// checkedTargets returns the targets of one job in idx order: the slice itself where it is in order, as it mostly is.
func checkedTargets(jobID string, targets []BatchTarget) ([]BatchTarget, error) {
	for i := range targets {
		t := &targets[i]
		if t.JobID != "" && t.JobID != jobID {
			return nil, fmt.Errorf("target %d belongs to job %.64q: %w", i, t.JobID, ErrInvalid)
		}
		if t.Idx < 0 {
			return nil, fmt.Errorf("target %d has idx %d: %w", i, t.Idx, ErrInvalid)
		}
		if _, err := targetStatus(t.Status); err != nil {
			return nil, fmt.Errorf("target %d: %w", i, err)
		}
	}
	byIdx := func(a, b BatchTarget) int { return cmp.Compare(a.Idx, b.Idx) }
	if !slices.IsSortedFunc(targets, byIdx) {
		targets = slices.Clone(targets)
		slices.SortFunc(targets, byIdx)
	}
	for i := 1; i < len(targets); i++ {
		if targets[i].Idx == targets[i-1].Idx {
			return nil, fmt.Errorf("idx %d twice: %w", targets[i].Idx, ErrInvalid)
		}
	}
	return targets, nil
}

// PutBatchTargets stores targets under a job: all of them or, with an error, none. Targets that arrive finished or with a result are
// counted. An unknown job is ErrNotFound; an idx that the job has already is ErrExists; a negative or repeated idx, an unknown
// status and a JobID other than jobID (an empty one stands for it) are ErrInvalid. No targets on an existing job is no error.
func (d *DB) PutBatchTargets(jobID string, targets []BatchTarget) error {
	targets, err := checkedTargets(jobID, targets)
	if err == nil {
		err = d.writeBatch(max(1, len(targets)), func(t *tx) error { return t.insertTargets(jobID, targets) })
	}
	return opError("put targets of batch job", jobID, err)
}

// insertRows are how many targets one statement inserts: enough to make the cost of a statement small beside that of its rows, far
// below SQLite's limit of 32,766 bound values, and of few sizes, so that each statement is prepared once.
var insertRows = []int{100, 10, 1}

// The statements by the number of their rows: of targets as they come from a client, all in one status and without a result, and of
// any others.
var insertFresh, insertTargets = insertStatements()

func insertStatements() (fresh, all map[int]string) {
	fresh, all = map[int]string{}, map[int]string{}
	for _, n := range insertRows {
		var rows []string
		for i := range n {
			rows = append(rows, fmt.Sprintf(`(?1, ?%d, ?%d, ?%d, ?2)`, 3+3*i, 4+3*i, 5+3*i))
		}
		fresh[n] = `INSERT INTO batch_target (job_id, idx, url, options, status) VALUES ` + strings.Join(rows, `, `)
		all[n] = `INSERT INTO batch_target (` + targetColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?)` +
			strings.Repeat(`, (?, ?, ?, ?, ?, ?, ?, ?)`, n-1)
	}
	return fresh, all
}

func (t *tx) insertTargets(jobID string, targets []BatchTarget) error {
	from, err := t.job(jobID)
	if err != nil {
		return err
	}
	to, fresh := from, true
	for i := range targets {
		g := &targets[i]
		bytes, finished := weight(g.Status, g.Result)
		if to, err = t.bear(to, bytes, finished); err != nil {
			return err
		}
		fresh = fresh && g.Status == targets[0].Status && g.Result == nil && g.Error == nil && g.Hint == nil
	}
	if err := t.checkFree(jobID, targets); err != nil {
		return err
	}
	args := make([]any, 0, 8*insertRows[0])
	for _, n := range insertRows {
		for ; len(targets) >= n; targets = targets[n:] {
			statement := insertTargets[n]
			args = args[:0]
			if fresh {
				statement = insertFresh[n]
				args = append(args, jobID, cmp.Or(targets[0].Status, TargetPending))
			}
			for i := range n {
				g := &targets[i]
				if fresh {
					args = append(args, g.Idx, g.URL, g.Options)
					continue
				}
				args = append(args, jobID, g.Idx, g.URL, g.Options, cmp.Or(g.Status, TargetPending), text(g.Result), text(g.Error), text(g.Hint))
			}
			if err := t.insert(statement, args...); err != nil {
				return err
			}
		}
	}
	return t.storeJob(from, to)
}

const selectTaken = `SELECT idx FROM batch_target WHERE job_id = +? AND idx BETWEEN ? AND ? ORDER BY idx`

// checkFree sees to it, before anything is written, that the job has none of these targets, which are in idx order.
func (t *tx) checkFree(jobID string, targets []BatchTarget) error {
	if len(targets) == 0 {
		return nil
	}
	rows, err := t.conn.QueryContext(context.Background(), selectTaken, jobID, targets[0].Idx, targets[len(targets)-1].Idx)
	if err != nil {
		return t.fail(err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err is what tells.
	for rows.Next() {
		var taken int
		if err := rows.Scan(&taken); err != nil {
			return t.fail(err)
		}
		for targets[0].Idx < taken {
			targets = targets[1:]
		}
		if targets[0].Idx == taken {
			return fmt.Errorf("idx %d: %w", taken, ErrExists)
		}
	}
	return t.fail(rows.Err())
}

// text binds a string or NULL, without the reflection that a pointer would cost.
func text(s *string) any {
	if s == nil {
		return nil
	}
	return *s
}

const selectTargets = `SELECT ` + targetColumns + ` FROM batch_target WHERE job_id = +? ORDER BY idx`

// BatchTargets returns a job's targets in idx order. It is false only when there is no such job: a job without targets has an empty
// slice. All of them are read into memory; BatchTargetsPage reads as many bytes as it is told.
func (d *DB) BatchTargets(jobID string) ([]BatchTarget, bool) {
	targets := []BatchTarget{}
	err := d.hold(func(c *sqlx.Conn) error {
		if err := c.SelectContext(context.Background(), &targets, selectTargets, jobID); err != nil {
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
		FROM batch_target
		WHERE job_id = +? AND idx BETWEEN ? AND ?
		ORDER BY idx`
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
		if err := c.SelectContext(context.Background(), &page, selectTargetRange, jobID, from, last); err != nil {
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

// selectTargetState reads what an update has to know of the target and its job: all of it lies before the result.
const selectTargetState = `
	SELECT t.rowid, t.status, coalesce(octet_length(t.result), 0),
	       j.rowid, j.status, j.targets_done, j.nbytes, j.lease,
	       t.job_id = ?1 AND t.idx = ?2 AND j.id = ?1
	FROM batch_target t JOIN batch_job j ON j.id = t.job_id
	WHERE t.job_id = +?1 AND t.idx = +?2`

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
