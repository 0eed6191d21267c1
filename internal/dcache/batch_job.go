package dcache

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// The statuses of a job. A job is live while it is queued or running.
const (
	JobQueued    = "queued"
	JobRunning   = "running"
	JobDone      = "done"      // every target is done
	JobPartial   = "partial"   // some targets are done, some failed
	JobFailed    = "failed"    // no target is done, or a restart found it unfinished
	JobCancelled = "cancelled" // stopped by its caller
)

// BatchJob is a batch: one row, with a row for each of its targets below it.
type BatchJob struct {
	ID           string `db:"id"`
	Caller       string `db:"caller"`
	CallerClass  string `db:"caller_class"` // ClassFleet, ClassRestricted or empty
	IDemKey      string `db:"idem_key"`     // idempotency key; empty is none
	Status       string `db:"status"`       // JobQueued, …
	Error        string `db:"error"`
	TargetsTotal int    `db:"targets_total"`
	TargetsDone  int    `db:"targets_done"` // targets that are done or failed
	CreatedAt    int64  `db:"created_at"`   // unix seconds
	Lease        int64  `db:"lease"`        // unix seconds of the last sign of life
	NBytes       int64  `db:"nbytes"`       // bytes of the stored results
}

const jobColumns = `id, caller, caller_class, idem_key, status, error, targets_total, targets_done, created_at, lease, nbytes`

// jobRow is a job with the name that SQLite has for its row, valid within one transaction.
type jobRow struct {
	RowID int64 `db:"rowid"`
	BatchJob
}

func (j BatchJob) live() bool { return j.Status == JobQueued || j.Status == JobRunning }

// jobStatus checks a status; an empty one is the first state.
func jobStatus(s string) (string, error) {
	switch s {
	case "":
		return JobQueued, nil
	case JobQueued, JobRunning, JobDone, JobPartial, JobFailed, JobCancelled:
		return s, nil
	}
	return "", fmt.Errorf("job status %.64q: %w", s, ErrInvalid)
}

// checked returns the job as it may be stored, its empty status filled in.
func (j BatchJob) checked() (BatchJob, error) {
	var err error
	switch {
	case j.ID == "":
		err = fmt.Errorf("empty job id: %w", ErrInvalid)
	case j.CallerClass != "" && !knownClass(j.CallerClass):
		err = fmt.Errorf("caller class %.64q: %w", j.CallerClass, ErrInvalid)
	case j.TargetsTotal < 0 || j.TargetsDone < 0 || j.NBytes < 0:
		err = fmt.Errorf("negative counter: %w", ErrInvalid)
	default:
		j.Status, err = jobStatus(j.Status)
	}
	return j, err
}

// CreateBatchJob stores a job as given, its lease and counters included (rule 1). An id that is there already is ErrExists; an
// empty id, an unknown status or class, and a negative counter are ErrInvalid. SubmitBatch stores a job together with its targets.
func (d *DB) CreateBatchJob(j BatchJob) error {
	j, err := j.checked()
	if err == nil {
		err = d.writeBatch(1, func(t *tx) error { return t.insertJob(j) })
	}
	return opError("create batch job", j.ID, err)
}

func (t *tx) insertJob(j BatchJob) error {
	if _, err := t.bear(jobRow{}, j.NBytes, 0); err != nil {
		return err
	}
	n, err := t.exec(`
		INSERT INTO batch_job (`+jobColumns+`)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO NOTHING`,
		j.ID, j.Caller, j.CallerClass, j.IDemKey, j.Status, j.Error, j.TargetsTotal, j.TargetsDone, j.CreatedAt, j.Lease, j.NBytes)
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrExists
	}
	t.account(BatchJob{}, j)
	return nil
}

// SQLite reads what it can of a row from the index that led to it, and so can't tell that a damaged one has led to another row. The
// selects that serve or change rows therefore have the index give a rowid alone, and compare the row that they find there.
const (
	selectJob    = `SELECT ` + jobColumns + ` FROM batch_job WHERE rowid = (SELECT rowid FROM batch_job WHERE id = +?)`
	selectJobRow = `SELECT rowid, ` + jobColumns + ` FROM batch_job WHERE rowid = (SELECT rowid FROM batch_job WHERE id = +?)`
)

// BatchJob returns a job, and moves its lease to the wall clock's second so that a slow consumer's reads keep the job alive
// (rule 1). What is returned is the row as it stood before that move. Where the lease stands at the current second already,
// nothing is written.
func (d *DB) BatchJob(id string) (BatchJob, bool) {
	j, ok := d.PeekBatchJob(id)
	if !ok {
		return BatchJob{}, false
	}
	if now := d.clock().Unix(); j.Lease != now {
		err := d.write(func(t *tx) error { return t.touch(id, now) })
		d.report("move the lease of a batch job that was read", id, err)
	}
	return j, true
}

// PeekBatchJob returns a job without moving its lease: a dashboard must not keep jobs alive.
func (d *DB) PeekBatchJob(id string) (BatchJob, bool) {
	var j BatchJob
	err := d.get(&j, selectJob, id)
	if err == nil && j.ID != id {
		err = errStray
		d.stats.databaseError(err)
	}
	d.report("read batch job", id, err)
	if !d.stats.job.found(err == nil) {
		return BatchJob{}, false
	}
	return j, true
}

const selectIDem = `
	SELECT id
	FROM (SELECT rowid AS found FROM batch_job WHERE caller = +?1 AND idem_key = +?2)
	CROSS JOIN batch_job ON batch_job.rowid = found
	WHERE lease > ?3 AND caller = +?1 AND idem_key = +?2
	ORDER BY lease DESC, created_at DESC, id DESC
	LIMIT 1`

// BatchJobByIDem returns the id of the caller's unexpired job under an idempotency key: the one with the newest lease, then the
// newest created_at, then the last id. An empty key matches nothing. The lease does not move.
func (d *DB) BatchJobByIDem(caller, idemKey string, now int64, ttl time.Duration) (string, bool) {
	id := ""
	if idemKey != "" {
		err := d.get(&id, selectIDem, caller, idemKey, cutoff(now, ttl))
		d.report("look up the idempotency key", idemKey, err)
	}
	return id, d.stats.idem.found(id != "")
}

// SetBatchJobStatus sets a job's status and error, and moves its lease to now (rule 1). An unknown id is ErrNotFound, an unknown
// status ErrInvalid; an empty status is JobQueued. The job's targets stay as they are.
func (d *DB) SetBatchJobStatus(id, status, errMsg string, now int64) error {
	status, err := jobStatus(status)
	if err == nil {
		err = d.writeBatch(1, func(t *tx) error {
			from, err := t.job(id)
			if err != nil {
				return err
			}
			to := from
			to.Status, to.Error, to.Lease = status, errMsg, now
			return t.storeJob(from, to)
		})
	}
	return opError("set status of batch job", id, err)
}

// TouchBatchJob moves a job's lease to now, also backwards. An unknown id is ErrNotFound.
func (d *DB) TouchBatchJob(id string, now int64) error {
	err := d.write(func(t *tx) error { return t.touch(id, now) })
	return opError("touch batch job", id, err)
}

func (t *tx) touch(id string, now int64) error {
	from, err := t.job(id)
	if err != nil {
		return err
	}
	to := from
	to.Lease = now
	return t.storeJob(from, to)
}

func (t *tx) job(id string) (jobRow, error) {
	var j jobRow
	err := t.get(&j, selectJobRow, id)
	if err == nil && j.ID != id {
		err = errStray
	}
	return j, err
}

// liveJob is job for one that must be live.
func (t *tx) liveJob(id string) (jobRow, error) {
	j, err := t.job(id)
	if err == nil && !j.live() {
		err = fmt.Errorf("%w: it is %s", ErrNotLive, j.Status)
	}
	return j, err
}

// CancelBatchJob ends a live job: it becomes cancelled with the reason as its error and now as its lease, and its open targets
// become failed with the reason. Finished results stay. A job that is not live is ErrNotLive, an unknown id ErrNotFound.
func (d *DB) CancelBatchJob(id, reason string, now int64) error {
	err := d.writeBatch(maxGroup, func(t *tx) error {
		from, err := t.liveJob(id)
		if err != nil {
			return err
		}
		p, err := progress(t.conn, id)
		if err != nil {
			return t.fail(err)
		}
		to, err := t.bear(from, 0, p.open())
		if err != nil {
			return err
		}
		if _, err := t.exec(`
			UPDATE batch_target SET status = 'failed', error = ?
			WHERE job_id = +? AND status IN ('pending', 'running')`, reason, id); err != nil {
			return err
		}
		to.Status, to.Error, to.Lease = JobCancelled, reason, now
		return t.storeJob(from, to)
	})
	return opError("cancel batch job", id, err)
}

// DeleteBatchJob deletes a job, live or not, and its targets, at once. An unknown id is ErrNotFound.
func (d *DB) DeleteBatchJob(id string) error {
	err := d.weigh(maxGroup, func(t *tx) error {
		j, err := t.job(id)
		if err != nil {
			return err
		}
		_, err = t.deleteJob(j)
		return err
	})
	if err == nil {
		d.reclaim()
	}
	return opError("delete batch job", id, err)
}

const deleteTargets = `DELETE FROM batch_target WHERE job_id = +?`

// deleteJob deletes a job whole, and returns the number of its targets.
func (t *tx) deleteJob(j jobRow) (targets int64, err error) {
	targets, err = t.exec(deleteTargets, j.ID)
	if err != nil {
		return 0, err
	}
	if err := t.execOne(`DELETE FROM batch_job WHERE rowid = ?`, j.RowID); err != nil {
		return 0, err
	}
	delete(t.db.openHint, j.ID)
	t.account(j.BatchJob, BatchJob{})
	return targets, nil
}

// Cursor is a place in a listing of jobs. Its zero value is the beginning, and what the last page returns.
type Cursor struct {
	CreatedAt int64
	ID        string
}

const (
	selectNewest = `
		SELECT ` + jobColumns + `
		FROM (SELECT rowid AS found, created_at AS since, id AS name FROM batch_job WHERE caller = +?1)
		CROSS JOIN batch_job ON batch_job.rowid = found
		WHERE caller = +?1
		ORDER BY since DESC, name DESC
		LIMIT +?2`
	selectNewestAfter = `
		SELECT ` + jobColumns + `
		FROM (SELECT rowid AS found, created_at AS since, id AS name FROM batch_job WHERE caller = +?1 AND (created_at, id) < (?2, ?3))
		CROSS JOIN batch_job ON batch_job.rowid = found
		WHERE caller = +?1
		ORDER BY since DESC, name DESC
		LIMIT +?4`
	selectNewestOfAll = `
		SELECT ` + jobColumns + `
		FROM (SELECT rowid AS found, created_at AS since, id AS name FROM batch_job)
		CROSS JOIN batch_job ON batch_job.rowid = found
		ORDER BY since DESC, name DESC
		LIMIT +?`
	selectNewestOfAllAfter = `
		SELECT ` + jobColumns + `
		FROM (SELECT rowid AS found, created_at AS since, id AS name FROM batch_job WHERE (created_at, id) < (?, ?))
		CROSS JOIN batch_job ON batch_job.rowid = found
		ORDER BY since DESC, name DESC
		LIMIT +?`
)

// ListBatchJobs returns up to limit jobs of a caller, or of all callers for an empty one, the newest first (created_at, then id),
// and the cursor to go on from; a zero cursor says that there are no more. Leases do not move. Jobs that come and go between the
// pages do not shift it. A limit below 1 is ErrInvalid.
func (d *DB) ListBatchJobs(caller string, after Cursor, limit int) ([]BatchJob, Cursor, error) {
	if limit < 1 {
		return nil, Cursor{}, opError("list batch jobs of", caller, fmt.Errorf("limit %d: %w", limit, ErrInvalid))
	}
	query, args := selectNewestOfAll, []any{}
	switch first := after == (Cursor{}); {
	case caller != "" && first:
		query, args = selectNewest, []any{caller}
	case caller != "":
		query, args = selectNewestAfter, []any{caller, after.CreatedAt, after.ID}
	case !first:
		query, args = selectNewestOfAllAfter, []any{after.CreatedAt, after.ID}
	}
	jobs := []BatchJob{}
	err := d.hold(func(c *sqlx.Conn) error {
		return c.SelectContext(context.Background(), &jobs, query, append(args, oneMore(limit))...)
	})
	if err != nil {
		return nil, Cursor{}, opError("list batch jobs of", caller, err)
	}
	if len(jobs) <= limit {
		return jobs, Cursor{}, nil
	}
	jobs = jobs[:limit]
	last := jobs[limit-1]
	return jobs, Cursor{CreatedAt: last.CreatedAt, ID: last.ID}, nil
}

// oneMore is a page's limit and one, which tells whether there is a next page.
func oneMore(limit int) int64 {
	if overflows(int64(limit), 1) {
		return int64(limit)
	}
	return int64(limit) + 1
}
