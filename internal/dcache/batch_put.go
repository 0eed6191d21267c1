package dcache

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// PutBatchTargets stores targets under a job: all of them or, with an error, none. Targets that arrive finished or with a result are
// counted. An unknown job is ErrNotFound; an idx that the job has already is ErrExists; a negative or repeated idx, an unknown
// status and a JobID other than jobID (an empty one stands for it) are ErrInvalid. No targets on an existing job is no error.
// The targets must not change until it returns.
func (d *DB) PutBatchTargets(jobID string, targets []BatchTarget) error {
	targets, err := checkedTargets(jobID, targets)
	if err == nil {
		err = d.writeBatch(max(1, len(targets)), func(t *tx) error { return t.insertTargets(jobID, targets) })
	}
	return opError("put targets of batch job", jobID, err)
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
