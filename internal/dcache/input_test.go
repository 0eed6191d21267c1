package dcache

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/mattn/go-sqlite3"
)

var inputFull = flag.Bool("input.full", false, "let TestBadInput pass SQLite's real limit of a gigabyte; takes 4 GB of memory")

// hostile are texts that a store may take for something else. Each is as good an id, caller, key, URL or result as any.
var hostile = map[string]string{
	"one byte":          "k",
	"other case":        "K",
	"trailing space":    "k ",
	"NUL":               "k\x00x",
	"only NUL":          "\x00",
	"quote":             "k'",
	"drop":              `'); DROP TABLE batch_job; --`,
	"double quote":      `k"`,
	"like":              "k%",
	"like one":          "k_",
	"glob":              "k*",
	"invalid UTF-8":     "k\xff\xfe",
	"cut UTF-8":         "k\xe2\x82",
	"surrogate":         "k\xed\xa0\x80",
	"composed":          "\u00e9",
	"decomposed":        "e\u0301",
	"right to left":     "\u202ek",
	"colon":             ":name",
	"question":          "?1",
	"dollar":            "$1",
	"newline":           "k\n",
	"number":            "1",
	"number with point": "1.0",
	"NULL":              "NULL",
	"blob":              "x'00'",
	"a mebibyte":        strings.Repeat("k", 1<<20),
}

// TestHostileText gives each text to every place that takes one, and expects it back to the byte.
func TestHostileText(t *testing.T) {
	is := is.New(t)
	d := open(t, clockAt(1))
	for name, s := range hostile {
		t.Log(name)
		j := BatchJob{ID: s, Caller: s, IDemKey: s, Error: s, CreatedAt: 1}
		targets := []BatchTarget{{URL: s, Options: s, Result: &s, Error: &s, Hint: &s}}
		id, created, err := d.SubmitBatch(j, targets, 1, time.Hour)
		is.NoErr(err)
		is.True(created && id == s)
		id, created, err = d.SubmitBatch(j, targets, 1, time.Hour)
		is.NoErr(err)
		is.True(!created && id == s)
		_, err = d.Put(ClassFleet, s, []byte(s), 1)
		is.NoErr(err)
	}
	is.Equal(d.LiveBatchJobsTotal(), len(hostile)) // each its own
	for _, s := range hostile {
		is.Equal(d.LiveBatchJobs(s), 1)
		id, ok := d.BatchJobByIDem(s, s, 1, time.Hour)
		is.True(ok && id == s)
		j, ok := d.BatchJob(s)
		is.True(ok)
		is.Equal([]string{j.ID, j.Caller, j.IDemKey, j.Error}, []string{s, s, s, s})
		is.Equal(j.NBytes, int64(len(s))) // bytes, whatever they spell
		got := targetsOf(t, d, s)[0]
		is.Equal([]string{got.JobID, got.URL, got.Options, *got.Result, *got.Error, *got.Hint}, []string{s, s, s, s, s, s})
		body, ok := d.Get(ClassFleet, s, 1)
		is.True(ok && string(body) == s)
		jobs, _, err := d.ListBatchJobs(s, Cursor{}, 10)
		is.NoErr(err)
		is.Equal(len(jobs), 1)
	}
	var lease int64 = 100
	for _, s := range hostile { // only the one that is addressed
		lease++
		is.NoErr(d.TouchBatchJob(s, lease))
		for _, other := range hostile {
			is.True(other == s || peek(t, d, other).Lease != lease)
		}
	}
	for _, s := range hostile {
		is.NoErr(d.DeleteBatchJob(s))
		is.NoErr(d.Delete(ClassFleet, s))
	}
	is.Equal(dump(t, d), "0 0 0")
}

// TestBadInput gives arguments at and beyond the edges. What is refused leaves no trace; what is taken is there.
func TestBadInput(t *testing.T) {
	update := func(idx int, now int64, status string, n int) func(*DB) error {
		return func(d *DB) error {
			var result *string
			if n >= 0 {
				result = bytesOf(n)
			}
			return d.UpdateBatchTarget("j", idx, now, status, result, nil, nil)
		}
	}
	put := func(targets ...BatchTarget) func(*DB) error {
		return func(d *DB) error { return d.PutBatchTargets("new", targets) }
	}
	putMany := func(n int) func(*DB) error {
		return func(d *DB) error {
			err := d.PutBatchTargets("new", pending(n))
			if got, ok := d.BatchTargets("new"); err == nil && (!ok || len(got) != n) {
				return fmt.Errorf("%d of %d targets", len(got), n)
			}
			return err
		}
	}
	create := func(j BatchJob) func(*DB) error {
		return func(d *DB) error {
			err := d.CreateBatchJob(j)
			if got, ok := d.PeekBatchJob(j.ID); err == nil && (!ok || got.Lease != j.Lease || got.CreatedAt != j.CreatedAt) {
				return fmt.Errorf("stored as %+v", got)
			}
			return err
		}
	}
	submit := func(j BatchJob, targets []BatchTarget, now int64, ttl time.Duration) func(*DB) error {
		return func(d *DB) error { _, _, err := d.SubmitBatch(j, targets, now, ttl); return err }
	}
	sweep := func(now int64, ttl time.Duration, want int) func(*DB) error {
		return func(d *DB) error { return count("swept", d.SweepBatch(now, ttl), want) }
	}
	evict := func(maxBytes int64, want int) func(*DB) error {
		return func(d *DB) error { return count("evicted", d.EvictBatchOldest(maxBytes), want) }
	}
	// The store holds a live job "j" of three targets at lease 100, an empty one "new" at 100, and "done" at 50 with 10 bytes.
	for _, tt := range []struct {
		name string
		call func(*DB) error
		want error
	}{
		{"empty id", create(BatchJob{}), ErrInvalid},
		{"id of one byte", create(BatchJob{ID: "x"}), nil},
		{"id of 5 MiB", create(BatchJob{ID: strings.Repeat("x", 5<<20)}), nil},
		{"id that is taken", create(BatchJob{ID: "j"}), ErrExists},
		{"id that is taken but for its case", create(BatchJob{ID: "J"}), nil},
		{"unknown job status", create(BatchJob{ID: "x", Status: "finished"}), ErrInvalid},
		{"job status in capitals", create(BatchJob{ID: "x", Status: "DONE"}), ErrInvalid},
		{"target status for a job", create(BatchJob{ID: "x", Status: TargetPending}), ErrInvalid},
		{"unknown class", create(BatchJob{ID: "x", CallerClass: "admin"}), ErrInvalid},
		{"no class", create(BatchJob{ID: "x"}), nil},
		{"negative total", create(BatchJob{ID: "x", TargetsTotal: -1}), ErrInvalid},
		{"negative done", create(BatchJob{ID: "x", TargetsDone: -1}), ErrInvalid},
		{"negative bytes", create(BatchJob{ID: "x", NBytes: -1}), ErrInvalid},
		{"bytes past int64 together", create(BatchJob{ID: "x", NBytes: math.MaxInt64}), ErrInvalid},
		{"first lease", create(BatchJob{ID: "x", Lease: math.MinInt64}), nil},
		{"last lease", create(BatchJob{ID: "x", Lease: math.MaxInt64}), nil},
		{"first and last created_at", create(BatchJob{ID: "x", CreatedAt: math.MinInt64, Lease: math.MaxInt64}), nil},

		{"no targets", put(), nil},
		{"negative idx", put(BatchTarget{Idx: -1}), ErrInvalid},
		{"most negative idx", put(BatchTarget{Idx: math.MinInt}), ErrInvalid},
		{"largest idx", put(BatchTarget{Idx: math.MaxInt}), nil},
		{"idx twice", put(BatchTarget{Idx: 1}, BatchTarget{Idx: 1}), ErrInvalid},
		{"largest idx twice", put(BatchTarget{Idx: math.MaxInt}, BatchTarget{Idx: 0}, BatchTarget{Idx: math.MaxInt}), ErrInvalid},
		{"unknown target status", put(BatchTarget{Status: "ok"}), ErrInvalid},
		{"job status for a target", put(BatchTarget{Status: JobQueued}), ErrInvalid},
		{"target of another job", put(BatchTarget{JobID: "j"}), ErrInvalid},
		{"the last of many of another job", put(append(pending(100), BatchTarget{Idx: 100, JobID: "j"})...), ErrInvalid},
		{"no URL, no options", put(BatchTarget{}), nil},
		{"1 target", putMany(1), nil},
		{"64 targets", putMany(64), nil},
		{"73 targets, one in each size of statement", putMany(64 + 8 + 1), nil},
		{"4,095 targets", putMany(4095), nil},
		{"4,096 targets", putMany(4096), nil},
		{"32,767 targets", putMany(32767), nil},
		{"200,000 targets", putMany(200_000), nil},
		{"targets of no job", func(d *DB) error { return d.PutBatchTargets("absent", pending(1)) }, ErrNotFound},
		{"targets of an empty id", func(d *DB) error { return d.PutBatchTargets("", pending(1)) }, ErrNotFound},

		{"negative idx of an update", update(-1, 1, TargetDone, 1), ErrNotFound},
		{"huge idx of an update", update(math.MaxInt, 1, TargetDone, 1), ErrNotFound},
		{"idx behind the last", update(3, 1, TargetDone, 1), ErrNotFound},
		{"unknown status of an update", update(0, 1, "DONE", 1), ErrInvalid},
		{"first second", update(0, math.MinInt64, TargetDone, 1), nil},
		{"last second", update(0, math.MaxInt64, TargetDone, 1), nil},
		{"no result", update(0, 1, TargetDone, -1), nil},
		{"empty result", update(0, 1, TargetDone, 0), nil},
		{"result of a byte", update(0, 1, TargetDone, 1), nil},
		{"result of 16 MiB", update(0, 1, TargetDone, 16<<20), nil},
		{"result of the limit", update(0, 1, TargetDone, 20<<20), ErrTooLarge},
		{"result past the limit", update(0, 1, TargetDone, 20<<20+1), ErrTooLarge},
		{"two halves of a row past the limit", func(d *DB) error {
			return d.UpdateBatchTarget("j", 0, 1, TargetDone, bytesOf(12<<20), bytesOf(12<<20), nil)
		}, ErrTooLarge},
		{"hint past the limit", func(d *DB) error { return d.UpdateBatchTarget("j", 0, 1, TargetDone, nil, nil, bytesOf(21<<20)) }, ErrTooLarge},
		{"URL past the limit", put(BatchTarget{Idx: 0}, BatchTarget{Idx: 1, URL: *bytesOf(21 << 20)}), ErrTooLarge},
		{"id past the limit", create(BatchJob{ID: *bytesOf(21 << 20)}), ErrTooLarge},
		{"look-up past the limit", func(d *DB) error { return d.TouchBatchJob(*bytesOf(21 << 20), 1) }, ErrTooLarge},
		{"reason past the limit", func(d *DB) error { return d.CancelBatchJob("j", *bytesOf(21 << 20), 1) }, ErrTooLarge},
		{"body past the limit", func(d *DB) error { _, err := d.Put(ClassFleet, "k", make([]byte, 21<<20), 1); return err }, ErrTooLarge},
		{"key past the limit", func(d *DB) error { _, err := d.Put(ClassFleet, *bytesOf(21 << 20), nil, 1); return err }, ErrTooLarge},
		{"empty content key", func(d *DB) error { _, err := d.Put(ClassFleet, "", nil, 1); return err }, nil},
		{"empty content class", func(d *DB) error { _, err := d.Put("", "k", nil, 1); return err }, ErrInvalid},
		{"content at the last second", func(d *DB) error { _, err := d.Put(ClassFleet, "k", nil, math.MaxInt64); return err }, nil},

		{"finish as running", func(d *DB) error { _, err := d.FinishBatchTarget("j", 0, 1, TargetRunning, nil, nil, nil); return err }, ErrInvalid},
		{"finish of a finished job", func(d *DB) error { _, err := d.FinishBatchTarget("done", 0, 1, TargetDone, nil, nil, nil); return err }, ErrNotLive},
		{"cancel of a finished job", func(d *DB) error { return d.CancelBatchJob("done", "", 1) }, ErrNotLive},
		{"touch of no job", func(d *DB) error { return d.TouchBatchJob("absent", 1) }, ErrNotFound},
		{"status of no job", func(d *DB) error { return d.SetBatchJobStatus("absent", JobDone, "", 1) }, ErrNotFound},
		{"unknown status of no job", func(d *DB) error { return d.SetBatchJobStatus("absent", "x", "", 1) }, ErrInvalid},
		{"deletion of no job", func(d *DB) error { return d.DeleteBatchJob("") }, ErrNotFound},

		{"submit of nothing", submit(BatchJob{ID: "x"}, nil, 1, time.Hour), ErrInvalid},
		{"submit without an id", submit(BatchJob{}, pending(1), 1, time.Hour), ErrInvalid},
		{"submit of a finished job", submit(BatchJob{ID: "x", Status: JobFailed}, pending(1), 1, time.Hour), ErrInvalid},
		{"submit under a taken id", submit(BatchJob{ID: "j"}, pending(1), 1, time.Hour), ErrExists},
		{"submit with a negative idx", submit(BatchJob{ID: "x"}, []BatchTarget{{Idx: -1}}, 1, time.Hour), ErrInvalid},
		{"submit of too large a target", submit(BatchJob{ID: "x"}, []BatchTarget{{URL: *bytesOf(21 << 20)}}, 1, time.Hour), ErrTooLarge},
		{"submit at the first second", submit(BatchJob{ID: "x", IDemKey: "k"}, pending(1), math.MinInt64, math.MaxInt64), nil},
		{"submit with a negative ttl", submit(BatchJob{ID: "x", IDemKey: "k"}, pending(1), math.MaxInt64, math.MinInt64), nil},
		{"list of none", func(d *DB) error { _, _, err := d.ListBatchJobs("", Cursor{}, 0); return err }, ErrInvalid},
		{"list of less than none", func(d *DB) error { _, _, err := d.ListBatchJobs("", Cursor{}, math.MinInt); return err }, ErrInvalid},
		{"list from behind the end", func(d *DB) error {
			jobs, _, err := d.ListBatchJobs("", Cursor{CreatedAt: math.MinInt64, ID: "\x00"}, 10)
			return firstError(err, count("listed", len(jobs), 0))
		}, nil},

		{"sweep at the first second", sweep(math.MinInt64, 0, 0), nil},
		{"sweep at the last second", sweep(math.MaxInt64, 0, 3), nil},
		{"sweep with the longest ttl", sweep(math.MaxInt64, math.MaxInt64, 3), nil},
		{"sweep with the longest ttl now", sweep(100, math.MaxInt64, 0), nil},
		{"sweep with the shortest ttl", sweep(-100, math.MinInt64, 3), nil},
		{"sweep with a ttl of 1 ns", sweep(100, 1, 1), nil},
		{"sweep with none", sweep(100, 0, 3), nil},
		{"evict to the largest budget", evict(math.MaxInt64, 0), nil},
		{"evict to exactly what is there", evict(10, 0), nil},
		{"evict to a byte less", evict(9, 1), nil},
		{"evict to nothing", evict(0, 1), nil},
		{"evict to less than nothing", evict(math.MinInt64, 1), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			d := openAt(t, ":memory:", 0)
			addJob(t, d, "j", JobRunning, 100, 3)
			addJob(t, d, "new", JobQueued, 100, 0)
			addDone(t, d, "done", 50, 10)
			raw(t, d, func(c *sqlite3.SQLiteConn) error {
				c.SetLimit(sqlite3.SQLITE_LIMIT_LENGTH, 20<<20)
				return nil
			})
			before := dump(t, d)
			err := tt.call(d)
			if tt.want == nil {
				is.NoErr(err)
				return
			}
			mustBe(t, err, tt.want)
			is.True(len(err.Error()) < 500) // it names the id, not all of it
			is.Equal(dump(t, d), before)
			is.NoErr(d.UpdateBatchTarget("j", 1, 1, TargetDone, bytesOf(1), nil, nil)) // others are unharmed
		})
	}
	if !*inputFull {
		return
	}
	t.Run("past SQLite's own limit", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 2)
		is.NoErr(d.UpdateBatchTarget("j", 1, 2, TargetDone, bytesOf(100<<20), nil, nil))
		mustBe(t, d.UpdateBatchTarget("j", 0, 3, TargetDone, bytesOf(1_000_000_001), nil, nil), ErrTooLarge)
		j := peek(t, d, "j")
		is.Equal([]int64{j.NBytes, j.Lease, int64(j.TargetsDone)}, []int64{100 << 20, 2, 1})
	})
}

func count(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%s %d, want %d", what, got, want)
	}
	return nil
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// TestRealBatches stores the batches of testdata as a client would.
func TestRealBatches(t *testing.T) {
	is := is.New(t)
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "batches.jsonl"))
	is.NoErr(err)
	d := open(t)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	is.Equal(len(lines), 12)
	for i, line := range lines {
		id := fmt.Sprint(i)
		_, created, err := d.SubmitBatch(BatchJob{ID: id, IDemKey: id}, []BatchTarget{{URL: line, Options: line}}, 1, time.Hour)
		is.NoErr(err)
		is.True(created)
		j, err := d.FinishBatchTarget(id, 0, 2, TargetDone, &line, nil, nil)
		is.NoErr(err)
		is.Equal(j.NBytes, int64(len(line)))
		is.Equal(*targetsOf(t, d, id)[0].Result, line)
	}
}
