package dcache

import (
	"context"

	"github.com/jmoiron/sqlx"
)

// Progress tells how far a job has got.
type Progress struct {
	Pending int   `json:"pending"`
	Running int   `json:"running"`
	Done    int   `json:"done"`
	Failed  int   `json:"failed"`
	NBytes  int64 `json:"nbytes"` // bytes of the stored results
}

func (p *Progress) add(status string, n int) {
	switch status {
	case TargetPending:
		p.Pending += n
	case TargetRunning:
		p.Running += n
	case TargetDone:
		p.Done += n
	case TargetFailed:
		p.Failed += n
	}
}

func (p Progress) open() int { return p.Pending + p.Running }

// outcome is the status of a job whose targets have all finished.
func (p Progress) outcome() string {
	switch {
	case p.Failed == 0:
		return JobDone
	case p.Done == 0:
		return JobFailed
	}
	return JobPartial
}

const countTargets = `SELECT status, count(*) FROM batch_target WHERE job_id = +? GROUP BY status`

// progress counts a job's targets, through a connection or inside a transaction.
func progress(q sqlx.QueryerContext, jobID string) (p Progress, err error) {
	rows, err := q.QueryContext(context.Background(), countTargets, jobID)
	if err != nil {
		return p, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is what tells.
	for rows.Next() {
		var status string
		var n int
		if err := rows.Scan(&status, &n); err != nil {
			return p, err
		}
		p.add(status, n)
	}
	return p, rows.Err()
}

// BatchProgress counts a job's targets by status, without reading any result. It is false when there is no such job. The lease does
// not move.
func (d *DB) BatchProgress(id string) (Progress, bool) {
	var p Progress
	err := d.hold(func(c *sqlx.Conn) error {
		var nbytes int64
		err := c.GetContext(context.Background(), &nbytes, `SELECT nbytes FROM batch_job WHERE id = +?`, id)
		if err != nil {
			return err
		}
		p, err = progress(c, id)
		p.NBytes = nbytes
		return err
	})
	d.report("read progress of batch job", id, err)
	if !d.stats.job.found(err == nil) {
		return Progress{}, false
	}
	return p, true
}
