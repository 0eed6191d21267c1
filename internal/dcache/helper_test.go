package dcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"
)

// open opens a store on a file of its own. When the test ends, the store is audited and closed.
func open(t testing.TB, opts ...Option) *DB {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "dcache.db"), 0, opts...)
}

// openAt is open for a path and a content budget.
func openAt(t testing.TB, path string, maxBytes int64, opts ...Option) *DB {
	t.Helper()
	d, err := Open(path, maxBytes, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { audit(t, d) })
	return d
}

// audit checks every invariant and closes the store, unless the test has closed it.
func audit(t testing.TB, d *DB) {
	t.Helper()
	if err := d.Check(); err != nil && !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// clockAt is a clock that stands still.
func clockAt(sec int64) Option {
	return WithClock(func() time.Time { return time.Unix(sec, 0) })
}

// quiet drops what a test makes the store log.
func quiet() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

// must stops the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mustBe stops the test when an error is not of this kind.
func mustBe(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want %v", err, kind)
	}
}

// pending makes n targets.
func pending(n int) []BatchTarget {
	targets := make([]BatchTarget, n)
	for i := range targets {
		targets[i] = BatchTarget{Idx: i, URL: fmt.Sprintf("https://example.org/%d", i), Options: `{"render":false}`}
	}
	return targets
}

// addJob creates a job with n pending targets.
func addJob(t testing.TB, d *DB, id, status string, lease int64, n int) {
	t.Helper()
	must(t, d.CreateBatchJob(BatchJob{
		ID: id, Caller: "c", CallerClass: ClassFleet, Status: status, TargetsTotal: n, CreatedAt: lease, Lease: lease,
	}))
	must(t, d.PutBatchTargets(id, pending(n)))
}

// addDone creates a finished job of one target with a result of n bytes.
func addDone(t testing.TB, d *DB, id string, lease int64, n int) {
	t.Helper()
	addJob(t, d, id, JobDone, lease, 1)
	must(t, d.UpdateBatchTarget(id, 0, lease, TargetDone, bytesOf(n), nil, nil))
}

// bytesOf is a result of n bytes.
func bytesOf(n int) *string {
	s := string(make([]byte, n))
	return &s
}

// peek reads a job that must be there, without moving its lease.
func peek(t testing.TB, d *DB, id string) BatchJob {
	t.Helper()
	j, ok := d.PeekBatchJob(id)
	if !ok {
		t.Fatalf("no job %q", id)
	}
	return j
}

func exists(d *DB, id string) bool {
	_, ok := d.PeekBatchJob(id)
	return ok
}

// targetsOf reads a job's targets, which must be there.
func targetsOf(t testing.TB, d *DB, id string) []BatchTarget {
	t.Helper()
	targets, ok := d.BatchTargets(id)
	if !ok {
		t.Fatalf("no job %q", id)
	}
	return targets
}

// together runs fn(0) to fn(n-1) at the same time, and waits for all. A call that never returns fails the test with all stacks,
// by the time limit of go test.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			fn(i)
		})
	}
	close(start)
	wg.Wait()
}

// raw runs fn on the driver's connection.
func raw(t testing.TB, d *DB, fn func(*sqlite3.SQLiteConn) error) {
	t.Helper()
	must(t, d.rawHold(fn))
}

// behind runs a statement behind the store's back.
func behind(t testing.TB, d *DB, query string) {
	t.Helper()
	if _, err := d.sql.Exec(query); err != nil {
		t.Fatal(err)
	}
}

// dump is everything that the tables hold, to see that a refused call has changed nothing.
func dump(t testing.TB, d *DB) string {
	t.Helper()
	var all string
	for _, query := range []string{
		`SELECT quote(id) || quote(caller) || quote(caller_class) || quote(idem_key) || quote(status) || quote(error) ||
		   targets_total || '/' || targets_done || '/' || created_at || '/' || lease || '/' || nbytes FROM batch_job ORDER BY id`,
		`SELECT quote(job_id) || idx || quote(url) || quote(options) || quote(status) || quote(result) || quote(error) || quote(hint)
		   FROM batch_target ORDER BY job_id, idx`,
		`SELECT quote(class) || quote(key) || digest || used_at FROM content_entry ORDER BY class, key`,
		`SELECT digest || nbytes || quote(body) FROM content_body ORDER BY digest`,
	} {
		var rows []string
		must(t, d.sql.Select(&rows, query))
		for _, r := range rows {
			all += r + "\n"
		}
	}
	return all + fmt.Sprint(d.BatchNbytes(), d.Size(), d.LiveBatchJobsTotal())
}

// deadContext is a context that has ended.
func deadContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx, cancel
}

// openRaw opens a connection of the driver's own, as another program would.
func openRaw(dsn string) (*sqlite3.SQLiteConn, error) {
	c, err := (&sqlite3.SQLiteDriver{}).Open(dsn)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*sqlite3.SQLiteConn)
	if !ok {
		return nil, fmt.Errorf("unexpected connection %T", c)
	}
	return conn, nil
}
