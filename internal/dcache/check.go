package dcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// invariants are what must hold between the rows, each a query for the rows that break it. A job without target rows is left out
// of the counters: CreateBatchJob stores what it is given.
var invariants = []struct{ name, violations string }{
	{"a target belongs to a job", `
		SELECT printf('%s/%d', job_id, idx)
		FROM batch_target
		WHERE job_id NOT IN (SELECT id FROM batch_job)`},
	{"targets_done is the number of targets that are done or failed, and nbytes the bytes of their results", `
		SELECT printf('%s: targets_done %d, counted %d; nbytes %d, counted %d', id, targets_done, done, nbytes, bytes)
		FROM batch_job JOIN (
			SELECT job_id,
			       count(CASE WHEN status IN ('done', 'failed') THEN 1 END) AS done,
			       coalesce(sum(octet_length(result)), 0)                  AS bytes
			FROM batch_target
			GROUP BY job_id) ON job_id = id
		WHERE targets_done != done OR nbytes != bytes`},
	{"a job has a known status and class, an id, and counters that are integers from 0 on", `
		SELECT printf('%s', id)
		FROM batch_job
		WHERE status NOT IN ('queued', 'running', 'done', 'partial', 'failed', 'cancelled')
		   OR caller_class NOT IN ('fleet', 'restricted', '')
		   OR id = '' OR id IS NULL
		   OR typeof(targets_total) != 'integer' OR targets_total < 0
		   OR typeof(targets_done)  != 'integer' OR targets_done < 0
		   OR typeof(nbytes)        != 'integer' OR nbytes < 0
		   OR typeof(lease)         != 'integer'
		   OR typeof(created_at)    != 'integer'`},
	{"a target has a known status and an idx from 0 on", `
		SELECT printf('%s/%d', job_id, idx)
		FROM batch_target
		WHERE status NOT IN ('pending', 'running', 'done', 'failed')
		   OR typeof(idx) != 'integer' OR idx < 0`},
	{"an entry names a body, in a known class", `
		SELECT printf('%s %s', class, key)
		FROM content_entry
		WHERE digest NOT IN (SELECT digest FROM content_body)
		   OR class NOT IN ('fleet', 'restricted')`},
	{"a body is named by an entry, and is as long as it says", `
		SELECT digest
		FROM content_body
		WHERE digest NOT IN (SELECT digest FROM content_entry)
		   OR nbytes != octet_length(body)`},
}

// maxViolations bounds what Check reports of one invariant.
const maxViolations = 10

// Check audits the store: SQLite's own integrity check, every invariant between the rows, the digests of the bodies, and the totals
// that are kept in memory. It returns nil, or an error that names each violation. It reads the whole file, and other calls
// wait meanwhile.
func (d *DB) Check() error {
	err := d.hold(func(c *sqlx.Conn) error {
		return errors.Join(
			d.checkIntegrity(c),
			checkInvariants(c),
			checkDigests(c),
			d.checkTotals(c),
		)
	})
	if err != nil {
		return fmt.Errorf("dcache: check: %w", err)
	}
	return nil
}

func (d *DB) checkIntegrity(c *sqlx.Conn) error {
	var found []string
	if err := c.SelectContext(context.Background(), &found, `PRAGMA integrity_check(10)`); err != nil {
		return err
	}
	if len(found) == 1 && found[0] == "ok" {
		return nil
	}
	errs := []error{}
	for _, f := range found {
		errs = append(errs, fmt.Errorf("integrity check: %s: %w", f, ErrCorrupt))
	}
	return errors.Join(errs...)
}

func checkInvariants(c *sqlx.Conn) error {
	var errs []error
	for _, v := range invariants {
		var found []string
		query := fmt.Sprintf(`%s LIMIT %d`, v.violations, maxViolations)
		if err := c.SelectContext(context.Background(), &found, query); err != nil {
			return err
		}
		for _, f := range found {
			errs = append(errs, fmt.Errorf("not so: %s: %.200q", v.name, f))
		}
	}
	return errors.Join(errs...)
}

func checkDigests(c *sqlx.Conn) error {
	rows, err := c.QueryContext(context.Background(), `SELECT digest, body FROM content_body`)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is what tells.
	var errs []error
	for rows.Next() {
		var digest string
		var body []byte
		if err := rows.Scan(&digest, &body); err != nil {
			return err
		}
		if digestOf(body) != digest {
			errs = append(errs, fmt.Errorf("not so: a body has its digest: %q", digest))
		}
	}
	return errors.Join(append(errs, rows.Err())...)
}

func (d *DB) checkTotals(c *sqlx.Conn) error {
	rows, err := sumTotals(c)
	if err != nil {
		return err
	}
	kept := &d.totals
	kept.mu.RLock()
	defer kept.mu.RUnlock()
	var errs []error
	differ := func(name string, kept, counted int64) {
		if kept != counted {
			errs = append(errs, fmt.Errorf("not so: %s in memory is %d, in the rows %d", name, kept, counted))
		}
	}
	differ("BatchNbytes", kept.batch, rows.batch)
	differ("bytes of finished jobs", kept.finished, rows.finished)
	differ("Size", kept.content, rows.content)
	differ("LiveBatchJobsTotal", int64(kept.liveJobs), int64(rows.liveJobs))
	for caller, n := range rows.live {
		differ(fmt.Sprintf("LiveBatchJobs(%.64q)", caller), int64(kept.live[caller]), int64(n))
	}
	differ("the number of callers with live jobs", int64(len(kept.live)), int64(len(rows.live)))
	return errors.Join(errs...)
}
