package dcache

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// SubmitBatch stores a job and its targets at once, and returns its id. Where the caller has an unexpired job under the same
// non-empty idempotency key, whatever its status, it stores nothing, moves that job's lease to now, and returns its id with
// created false; if that job has other targets (URLs, options, their order or number), it is ErrConflict with that job's id,
// and no lease moves.
//
// The job's created_at and lease become now, its targets_total the number of targets; its other counters are ignored. Its status
// may be empty, JobQueued or JobRunning; where all targets arrive finished, the job ends at once. Targets are as for PutBatchTargets,
// but none is ErrInvalid. They must not change until it returns. A job of that id that is there for another reason is ErrExists.
func (d *DB) SubmitBatch(j BatchJob, targets []BatchTarget, now int64, ttl time.Duration) (id string, created bool, err error) {
	j.TargetsTotal, j.TargetsDone, j.NBytes = len(targets), 0, 0
	j.CreatedAt, j.Lease = now, now
	if j, err = j.checked(); err == nil {
		targets, err = checkedTargets(j.ID, targets)
	}
	switch {
	case err != nil:
	case !j.live():
		err = fmt.Errorf("submitted as %s: %w", j.Status, ErrInvalid)
	case len(targets) == 0:
		err = fmt.Errorf("no targets: %w", ErrInvalid)
	default:
		id, created, err = d.submit(j, targets, now, ttl)
	}
	if err != nil && !errors.Is(err, ErrConflict) {
		return "", false, opError("submit batch job", j.ID, err)
	}
	if j.IDemKey != "" {
		d.stats.idem.found(!created)
	}
	return id, created, opError("submit batch job", j.ID, err)
}

func (d *DB) submit(j BatchJob, targets []BatchTarget, now int64, ttl time.Duration) (id string, created bool, err error) {
	// A retry has its targets compared before it asks for the write lock: URLs and options never change, and the others would
	// wait for the comparison of tens of thousands of them.
	known := ""
	if j.IDemKey != "" {
		if known, err = d.compareSubmitted(j, targets, now, ttl); err != nil {
			return known, false, err
		}
	}
	weight := len(targets)
	if known != "" {
		weight = 1
	}
	err = d.writeBatch(weight, func(t *tx) (err error) {
		id, created, err = t.submit(j, targets, now, ttl, known)
		return err
	})
	return id, created, err
}

// compareSubmitted returns the id of the unexpired job under j's key, "" if there is none, and ErrConflict if it has other targets.
func (d *DB) compareSubmitted(j BatchJob, targets []BatchTarget, now int64, ttl time.Duration) (id string, err error) {
	err = d.hold(func(c *sqlx.Conn) error {
		err := c.GetContext(context.Background(), &id, selectIDem, j.Caller, j.IDemKey, cutoff(now, ttl))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		same, err := sameTargets(c, id, targets)
		if err == nil && !same {
			err = ErrConflict
		}
		return err
	})
	return id, err
}

// submit is SubmitBatch in a transaction. The job of the id known has been found to have these targets.
func (t *tx) submit(j BatchJob, targets []BatchTarget, now int64, ttl time.Duration, known string) (id string, created bool, err error) {
	if j.IDemKey != "" {
		err := t.get(&id, selectIDem, j.Caller, j.IDemKey, cutoff(now, ttl))
		if err == nil {
			same := id == known
			if !same { // submitted since
				if same, err = sameTargets(t.conn, id, targets); err != nil {
					return "", false, t.fail(err)
				}
			}
			if !same {
				return id, false, ErrConflict
			}
			return id, false, t.touch(id, now)
		}
		if !errors.Is(err, ErrNotFound) {
			return "", false, err
		}
	}
	if err := t.insertJob(j); err != nil {
		return "", false, err
	}
	if err := t.insertTargets(j.ID, targets); err != nil {
		return "", false, err
	}
	if slices.ContainsFunc(targets, func(g BatchTarget) bool { return !terminalTarget(g.Status) }) {
		return j.ID, true, nil
	}
	// Every target arrived finished: there is no last one to end the job.
	row, err := t.job(j.ID)
	if err == nil {
		_, err = t.closeJob(row, now)
	}
	return j.ID, true, err
}

// sameTargets reports whether a job has exactly these targets, which are in idx order: the same idx, URLs and options.
func sameTargets(q sqlx.QueryerContext, jobID string, targets []BatchTarget) (bool, error) {
	rows, err := q.QueryContext(context.Background(), `SELECT idx, url, options FROM batch_target WHERE job_id = +? ORDER BY idx`, jobID)
	if err != nil {
		return false, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is what tells.
	n := 0
	for ; rows.Next(); n++ {
		var idx int
		var url, options sql.RawBytes
		if err := rows.Scan(&idx, &url, &options); err != nil {
			return false, err
		}
		if n == len(targets) || idx != targets[n].Idx || string(url) != targets[n].URL || string(options) != targets[n].Options {
			return false, nil
		}
	}
	return n == len(targets), rows.Err()
}
