package dcache

import (
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestBatchJobLease(t *testing.T) {
	t.Run("a read returns the row before its own bump", func(t *testing.T) {
		is := is.New(t)
		d := open(t, clockAt(1000))
		addJob(t, d, "j", JobQueued, 5, 1)
		j, ok := d.BatchJob("j")
		is.True(ok)
		is.Equal(j.Lease, int64(5))
		is.Equal(peek(t, d, "j").Lease, int64(1000))
	})
	t.Run("a read in the same second writes nothing", func(t *testing.T) {
		is := is.New(t)
		d := open(t, clockAt(1000))
		addJob(t, d, "j", JobQueued, 1000, 1)
		before := d.Stats()
		for range 1000 {
			_, ok := d.BatchJob("j")
			is.True(ok)
			_, ok = d.BatchJob("absent")
			is.True(!ok)
		}
		after := d.Stats()
		is.Equal(after.Transactions, before.Transactions)
		is.Equal(after.WALBytes, before.WALBytes)
		is.Equal(after.BatchJobH-before.BatchJobH, int64(1000))
		is.Equal(after.BatchJobM-before.BatchJobM, int64(1000))
	})
	t.Run("a bump that fails does not hide the row", func(t *testing.T) {
		is := is.New(t)
		d := open(t, clockAt(1000), quiet())
		addJob(t, d, "j", JobQueued, 5, 1)
		behind(t, d, `PRAGMA query_only = 1`)
		j, ok := d.BatchJob("j")
		behind(t, d, `PRAGMA query_only = 0`)
		is.True(ok)
		is.Equal(j.ID, "j")
		is.Equal(peek(t, d, "j").Lease, int64(5))
		is.Equal(d.Stats().Errors, int64(1))
	})
	t.Run("moves by assignment, also backwards", func(t *testing.T) {
		is := is.New(t)
		d := open(t, clockAt(7))
		addJob(t, d, "j", JobQueued, 100, 1)
		for _, now := range []int64{40, 100, -3, math.MaxInt64, math.MinInt64, 0} {
			is.NoErr(d.TouchBatchJob("j", now))
			is.Equal(peek(t, d, "j").Lease, now)
			is.NoErr(d.SetBatchJobStatus("j", JobRunning, "", now-1))
			is.Equal(peek(t, d, "j").Lease, now-1)
			is.NoErr(d.UpdateBatchTarget("j", 0, now, TargetRunning, nil, nil, nil))
			is.Equal(peek(t, d, "j").Lease, now)
		}
		is.Equal(d.MarkInFlightFailed("stop", -9), 1)
		is.Equal(peek(t, d, "j").Lease, int64(-9))
	})
	t.Run("a peek, a listing and a look at the progress do not move it", func(t *testing.T) {
		is := is.New(t)
		d := open(t, clockAt(1000))
		addJob(t, d, "j", JobQueued, 5, 1)
		peek(t, d, "j")
		_, ok := d.BatchProgress("j")
		is.True(ok)
		_, _, err := d.ListBatchJobs("c", Cursor{}, 10)
		is.NoErr(err)
		targetsOf(t, d, "j")
		_, ok = d.BatchJobByIDem("c", "k", 5, time.Hour)
		is.True(!ok)
		is.Equal(peek(t, d, "j").Lease, int64(5))
	})
}

func TestCreateBatchJob(t *testing.T) {
	t.Run("stores counters as given, and rows add to them", func(t *testing.T) {
		is := is.New(t)
		d, err := Open(":memory:", 0) // not audited: counters that no row accounts for
		is.NoErr(err)
		defer d.Close()
		want := BatchJob{
			ID: "j", Caller: "c", Status: JobRunning, Error: "e", TargetsTotal: 9, TargetsDone: 4, CreatedAt: -1, Lease: -2, NBytes: 50,
		}
		is.NoErr(d.CreateBatchJob(want))
		is.Equal(peek(t, d, "j"), want)
		is.NoErr(d.Check()) // no rows yet: nothing to compare with
		is.NoErr(d.PutBatchTargets("j", pending(1)))
		is.NoErr(d.UpdateBatchTarget("j", 0, 3, TargetDone, str("12345"), nil, nil))
		j := peek(t, d, "j")
		is.Equal(j.TargetsDone, 5)
		is.Equal(j.NBytes, int64(55))
		is.Equal(d.BatchNbytes(), int64(55))
		is.True(d.Check() != nil) // now there are rows, and they disagree
	})
	t.Run("an id that is taken stays as it is", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addDone(t, d, "j", 1, 55)
		before := dump(t, d)
		for i := range 32 {
			mustBe(t, d.CreateBatchJob(BatchJob{ID: "j", Caller: fmt.Sprint(i)}), ErrExists)
		}
		is.Equal(dump(t, d), before)
	})
	t.Run("one of many at once wins", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		errs := make([]error, 32)
		together(32, func(i int) {
			errs[i] = d.CreateBatchJob(BatchJob{ID: "j", Caller: fmt.Sprint(i)})
		})
		won := slices.IndexFunc(errs, func(err error) bool { return err == nil })
		is.True(won >= 0)
		for i, err := range errs {
			if i != won {
				mustBe(t, err, ErrExists)
			}
		}
		is.Equal(peek(t, d, "j").Caller, fmt.Sprint(won))
		is.Equal(d.LiveBatchJobsTotal(), 1)
	})
	t.Run("an empty status is queued", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		is.NoErr(d.CreateBatchJob(BatchJob{ID: "j"}))
		is.Equal(peek(t, d, "j").Status, JobQueued)
		is.NoErr(d.SetBatchJobStatus("j", JobDone, "", 1))
		is.NoErr(d.SetBatchJobStatus("j", "", "", 1))
		is.Equal(peek(t, d, "j").Status, JobQueued)
	})
}

func TestBatchJobByIDemPicks(t *testing.T) {
	is := is.New(t)
	d := open(t)
	add := func(id string, created, lease int64) {
		is.NoErr(d.CreateBatchJob(BatchJob{ID: id, Caller: "c", IDemKey: "k", CreatedAt: created, Lease: lease}))
	}
	look := func(now int64, ttl time.Duration) string {
		id, ok := d.BatchJobByIDem("c", "k", now, ttl)
		is.Equal(ok, id != "")
		return id
	}
	is.Equal(look(0, time.Hour), "")
	add("old", 9, 10)
	add("new", 1, 20)
	is.Equal(look(20, time.Hour), "new") // the newest lease
	add("new-created", 2, 20)
	is.Equal(look(20, time.Hour), "new-created") // then the newest created_at
	add("zz", 2, 20)
	is.Equal(look(20, time.Hour), "zz") // then the last id
	is.Equal(look(30, 10*time.Second), "")
	is.Equal(look(29, 10*time.Second), "zz")
	is.NoErr(d.CreateBatchJob(BatchJob{ID: "keyless", Caller: "c", Lease: 20}))
	_, ok := d.BatchJobByIDem("c", "", 20, time.Hour) // keyless submits do not collide
	is.True(!ok)
}

func TestExpiry(t *testing.T) {
	tests := []struct {
		name       string
		lease, now int64
		ttl        time.Duration
		expired    bool
	}{
		{"before", 100, 109, 10 * time.Second, false},
		{"at the second", 100, 110, 10 * time.Second, true},
		{"no ttl", 100, 100, 0, true},
		{"no ttl, before", 101, 100, 0, false},
		{"1 ns is not rounded down", 100, 100, 1, false},
		{"1 ns", 100, 101, 1, true},
		{"1.5 s is not rounded down", 100, 101, 1500 * time.Millisecond, false},
		{"1.5 s", 100, 102, 1500 * time.Millisecond, true},
		{"negative ttl", 105, 100, -5 * time.Second, true},
		{"negative ttl, not yet", 106, 100, -5 * time.Second, false},
		{"a negative part of a second", 101, 100, -1500 * time.Millisecond, true},
		{"a negative part of a second, not yet", 102, 100, -1500 * time.Millisecond, false},
		{"longest ttl", 0, math.MaxInt64, math.MaxInt64, true},
		{"longest ttl at the first second", math.MinInt64, math.MinInt64, math.MaxInt64, false},
		{"first second", math.MinInt64, math.MinInt64, 0, true},
		{"first second, 1 ns", math.MinInt64, math.MinInt64, 1, false},
		{"last second", math.MaxInt64, math.MaxInt64, 0, true},
		{"last second, 1 ns", math.MaxInt64, math.MaxInt64, 1, false},
		{"last lease, shortest ttl", math.MaxInt64, math.MaxInt64, math.MinInt64, true},
		{"lease in the future", math.MaxInt64, 0, time.Hour, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			d := open(t)
			is.NoErr(d.CreateBatchJob(BatchJob{ID: "j", Caller: "c", IDemKey: "k", Lease: tt.lease}))
			_, ok := d.BatchJobByIDem("c", "k", tt.now, tt.ttl)
			is.Equal(ok, !tt.expired)
			n := d.SweepBatch(tt.now, tt.ttl) // the same rule
			is.Equal(n == 1, tt.expired)
			is.Equal(exists(d, "j"), !tt.expired)
		})
	}
}

// TestPollers: many poll one job within a second; all find it, and one of them writes the lease.
func TestPollers(t *testing.T) {
	is := is.New(t)
	d := open(t, clockAt(1000))
	addJob(t, d, "j", JobRunning, 5, 1)
	before := d.Stats().Operations
	together(16, func(int) {
		for range 500 {
			if _, ok := d.BatchJob("j"); !ok {
				t.Error("gone")
			}
		}
	})
	is.Equal(peek(t, d, "j").Lease, int64(1000))
	is.True(d.Stats().Operations-before <= 16) // those that read before the first bump was committed
}

// TestOverview reads the operators' view.
func TestOverview(t *testing.T) {
	is := is.New(t)
	d := open(t)
	addJob(t, d, "j", JobRunning, 86400, 3)
	is.NoErr(d.UpdateBatchTarget("j", 0, 86460, TargetDone, str("12345"), nil, nil))
	var row struct {
		ID, Caller, Status, Progress, Created, Leased, Error string
		Class                                                string `db:"caller_class"`
		Age                                                  int64  `db:"age_seconds"`
		Idle                                                 int64  `db:"idle_seconds"`
		NBytes                                               int64  `db:"nbytes"`
	}
	is.NoErr(d.sql.Get(&row, `SELECT * FROM batch_overview`))
	is.Equal([]string{row.ID, row.Status, row.Progress, row.Created, row.Leased}, []string{"j", JobRunning, "1/3", "1970-01-02 00:00:00", "1970-01-02 00:01:00"})
	is.Equal(row.NBytes, int64(5))
	is.Equal(row.Age-row.Idle, int64(60))
	is.True(row.Age > 1e9)
	if shell, err := exec.LookPath("sqlite3"); err == nil { // an older SQLite than ours, as it is on many machines
		out, err := exec.Command(shell, "-readonly", d.file, `SELECT id, progress, leased FROM batch_overview`).CombinedOutput()
		is.NoErr(err)
		is.Equal(strings.TrimSpace(string(out)), "j|1/3|1970-01-02 00:01:00")
	}
}

func TestCancelBatchJob(t *testing.T) {
	is := is.New(t)
	d := open(t)
	addJob(t, d, "j", JobRunning, 1, 4)
	is.NoErr(d.UpdateBatchTarget("j", 0, 2, TargetDone, str("kept"), nil, nil))
	is.NoErr(d.UpdateBatchTarget("j", 1, 2, TargetFailed, nil, str("own error"), str("hint")))
	is.NoErr(d.UpdateBatchTarget("j", 2, 2, TargetRunning, nil, nil, nil))
	is.NoErr(d.CancelBatchJob("j", "by its caller", 9))
	j := peek(t, d, "j")
	is.Equal([]any{j.Status, j.Error, j.Lease, j.TargetsDone, j.NBytes}, []any{JobCancelled, "by its caller", int64(9), 4, int64(4)})
	got := targetsOf(t, d, "j")
	is.Equal(*got[0].Result, "kept")
	is.Equal(*got[1].Error, "own error")
	for _, g := range got[2:] {
		is.Equal(g.Status, TargetFailed)
		is.Equal(*g.Error, "by its caller")
	}
	before := dump(t, d)
	mustBe(t, d.CancelBatchJob("j", "again", 10), ErrNotLive)
	mustBe(t, d.CancelBatchJob("absent", "x", 10), ErrNotFound)
	_, err := d.FinishBatchTarget("j", 2, 11, TargetDone, str("late"), nil, nil)
	mustBe(t, err, ErrNotLive)
	is.Equal(dump(t, d), before)
	is.Equal(d.LiveBatchJobsTotal(), 0)
}

func TestDeleteBatchJob(t *testing.T) {
	is := is.New(t)
	d := open(t)
	addDone(t, d, "a", 1, 10)
	addJob(t, d, "b", JobRunning, 1, 3)
	is.NoErr(d.DeleteBatchJob("a"))
	is.NoErr(d.DeleteBatchJob("b"))
	mustBe(t, d.DeleteBatchJob("a"), ErrNotFound)
	is.Equal(dump(t, d), "0 0 0")
}

func TestListBatchJobs(t *testing.T) {
	is := is.New(t)
	d := open(t)
	for i := range 10 {
		is.NoErr(d.CreateBatchJob(BatchJob{ID: fmt.Sprint("j", i), Caller: []string{"a", "b"}[i%2], CreatedAt: int64(i / 3)}))
	}
	// list pages through a caller's jobs, and calls between each page.
	list := func(caller string, limit int, between func()) (ids []string) {
		var c Cursor
		for {
			jobs, next, err := d.ListBatchJobs(caller, c, limit)
			is.NoErr(err)
			is.True(len(jobs) <= limit)
			for _, j := range jobs {
				ids = append(ids, j.ID)
			}
			if next == (Cursor{}) {
				return ids
			}
			c = next
			between()
		}
	}
	all := "j9 j8 j7 j6 j5 j4 j3 j2 j1 j0"
	for limit := 1; limit <= 11; limit++ {
		is.Equal(strings.Join(list("", limit, func() {}), " "), all)
		is.Equal(strings.Join(list("a", limit, func() {}), " "), "j8 j6 j4 j2 j0")
	}
	is.Equal(len(list("nobody", 3, func() {})), 0)
	is.Equal(len(list("", math.MaxInt, func() {})), 10)

	newest := int64(100)
	ids := list("", 2, func() { // a job comes at the top, and the one that the page ended with goes
		newest++
		is.NoErr(d.CreateBatchJob(BatchJob{ID: fmt.Sprint("new", newest), Caller: "a", CreatedAt: newest}))
		is.NoErr(d.DeleteBatchJob([]string{"j8", "j6", "j4", "j2"}[newest-101]))
	})
	is.Equal(strings.Join(ids, " "), all) // nothing twice, nothing left out
	_, _, err := d.ListBatchJobs("", Cursor{}, 0)
	mustBe(t, err, ErrInvalid)
}
