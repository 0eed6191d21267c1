package dcache

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestSweepBatch(t *testing.T) {
	t.Run("every expired job, live or not, whole", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for i, status := range []string{JobQueued, JobRunning, JobDone, JobPartial, JobFailed, JobCancelled} {
			addJob(t, d, fmt.Sprint("old", i), status, 100, 3)
			addJob(t, d, fmt.Sprint("new", i), status, 101, 3)
		}
		is.Equal(d.SweepBatch(110, 10*time.Second), 6)
		for i := range 6 {
			is.True(!exists(d, fmt.Sprint("old", i)))
			is.Equal(len(targetsOf(t, d, fmt.Sprint("new", i))), 3)
		}
		is.Equal(d.LiveBatchJobsTotal(), 2)
		is.Equal(d.Stats().JobsSwept, int64(6))
	})
	// swept sweeps 300 jobs of 10 targets, and returns the number of transactions.
	swept := func(t *testing.T, d *DB) int64 {
		t.Helper()
		is := is.New(t)
		for i := range 300 {
			addJob(t, d, fmt.Sprint(i), JobDone, int64(i), 10)
		}
		before := d.Stats().Transactions
		is.Equal(d.SweepBatch(299, 0), 300)
		return d.Stats().Transactions - before
	}
	t.Run("in short turns where somebody waits", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		must(t, d.enter())
		defer d.leave()
		is.True(swept(t, d) >= 3300/shortTurn)
	})
	t.Run("in long turns where nobody does", func(t *testing.T) {
		is := is.New(t)
		is.True(swept(t, open(t)) < 3300/shortTurn)
	})
	t.Run("an error takes back a short turn, not all that a long one had done", func(t *testing.T) {
		is := is.New(t)
		d := open(t, quiet())
		for i := range 1000 {
			addJob(t, d, fmt.Sprint(i), JobDone, int64(i), 1)
		}
		behind(t, d, `CREATE TRIGGER broken BEFORE DELETE ON batch_job WHEN old.id = '900' BEGIN SELECT RAISE(ABORT, 'broken'); END`)
		n := d.SweepBatch(1000, 0)
		is.True(n > 900-shortTurn && n <= 900)
		is.True(!exists(d, "0"))
		is.True(exists(d, "900"))
	})
	t.Run("a job larger than a transaction's weight goes whole", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "large", JobDone, 1, 3*shortTurn)
		addJob(t, d, "small", JobDone, 1, 1)
		is.Equal(d.SweepBatch(1, 0), 2)
	})
	t.Run("a job that is touched before its turn survives", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for i := range 500 {
			addJob(t, d, fmt.Sprintf("%03d", i), JobRunning, int64(i), 5)
		}
		// The touch comes in while the sweep is under way: as soon as its first step is seen to be committed.
		swept := make(chan int)
		go func() { swept <- d.SweepBatch(10_000, 0) }()
		for exists(d, "000") {
		}
		err := d.TouchBatchJob("499", 20_000)
		n := <-swept
		if err != nil { // the sweep was quicker
			mustBe(t, err, ErrNotFound)
			is.Equal(n, 500)
			return
		}
		is.Equal(n, 499)
		is.Equal(len(targetsOf(t, d, "499")), 5)
	})
}

func TestEvictBatchOldest(t *testing.T) {
	evicted := func(t *testing.T, d *DB, ids ...string) (gone []string) {
		t.Helper()
		for _, id := range ids {
			if !exists(d, id) {
				gone = append(gone, id)
			}
		}
		slices.Sort(gone)
		return gone
	}
	t.Run("oldest lease, then created_at, then id", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		add := func(id string, created, lease int64) {
			must(t, d.CreateBatchJob(BatchJob{ID: id, Status: JobDone, CreatedAt: created, Lease: lease}))
			must(t, d.PutBatchTargets(id, []BatchTarget{{Status: TargetDone, Result: bytesOf(10)}}))
		}
		add("t3", 5, 5)
		add("t2", 5, 5)
		add("t1", 5, 5)
		add("t0", 4, 5)
		add("tt", 9, 4)
		for n, want := range []string{"tt", "t0", "t1", "t2", "t3"} {
			is.True(exists(d, want))
			is.Equal(d.EvictBatchOldest(d.BatchNbytes()-1), 1)
			is.True(!exists(d, want))
			is.Equal(d.BatchNbytes(), int64(10*(4-n)))
		}
	})
	t.Run("stops at the first job that reaches the budget", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addDone(t, d, "a", 1, 10)
		addDone(t, d, "b", 2, 100)
		addDone(t, d, "c", 3, 5)
		is.Equal(d.EvictBatchOldest(115), 0)
		is.Equal(d.EvictBatchOldest(106), 1)
		is.Equal(d.EvictBatchOldest(104), 1)
		is.Equal(evicted(t, d, "a", "b", "c"), []string{"a", "b"})
	})
	t.Run("live jobs never", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "queued", JobQueued, 1, 1)
		addJob(t, d, "running", JobRunning, 1, 1)
		for _, id := range []string{"queued", "running"} {
			is.NoErr(d.UpdateBatchTarget(id, 0, 1, TargetDone, bytesOf(50), nil, nil))
		}
		addDone(t, d, "done", 99, 10)
		is.Equal(d.EvictBatchOldest(20), 1)
		is.Equal(d.EvictBatchOldest(0), 0)
		is.Equal(d.EvictBatchOldest(math.MinInt64), 0)
		is.Equal(evicted(t, d, "queued", "running", "done"), []string{"done"})
		is.Equal(d.Stats().BatchOverBudget, int64(100)) // what the live jobs hold
		is.Equal(d.Stats().JobsEvicted, int64(1))
		is.NoErr(d.SetBatchJobStatus("queued", JobFailed, "", 1))
		is.Equal(d.EvictBatchOldest(50), 1)
		is.Equal(d.Stats().BatchOverBudget, int64(0))
	})
	t.Run("finished jobs without bytes are skipped", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for i := range 1000 {
			must(t, d.CreateBatchJob(BatchJob{ID: fmt.Sprint(i), Status: JobFailed, Lease: 1}))
		}
		addDone(t, d, "bytes", 2, 100)
		is.Equal(d.EvictBatchOldest(100), 0)
		is.Equal(d.EvictBatchOldest(50), 1)
		is.True(!exists(d, "bytes"))
		is.Equal(d.EvictBatchOldest(-1), 0)
		is.Equal(d.SweepBatch(1, 0), 1000) // what clears them
	})
	t.Run("a job with counters but without rows", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		is.NoErr(d.CreateBatchJob(BatchJob{ID: "j", Status: JobDone, NBytes: 70}))
		is.Equal(d.BatchNbytes(), int64(70))
		is.Equal(d.EvictBatchOldest(69), 1)
		is.Equal(d.BatchNbytes(), int64(0))
	})
}

func TestBatchBudget(t *testing.T) {
	is := is.New(t)
	d := open(t, WithBatchBudget(25))
	addDone(t, d, "a", 1, 10)
	addDone(t, d, "b", 2, 10)
	addJob(t, d, "live", JobRunning, 0, 2)
	is.NoErr(d.UpdateBatchTarget("live", 0, 3, TargetDone, bytesOf(5), nil, nil))
	is.True(exists(d, "a") && exists(d, "b")) // 25 is not over 25
	is.NoErr(d.UpdateBatchTarget("live", 1, 3, TargetDone, bytesOf(1), nil, nil))
	is.True(!exists(d, "a") && exists(d, "b"))
	is.Equal(d.BatchNbytes(), int64(16))
	is.NoErr(d.PutBatchTargets("live", []BatchTarget{{Idx: 2, Status: TargetDone, Result: bytesOf(50)}}))
	is.True(!exists(d, "b") && exists(d, "live"))
	is.Equal(d.Stats().BatchOverBudget, int64(31))
	_, err := d.FinishBatchTarget("live", 0, 4, TargetDone, bytesOf(5), nil, nil)
	is.NoErr(err) // it ends the job, which is then over the budget by itself
	is.True(!exists(d, "live"))
	is.Equal(d.Stats().JobsEvicted, int64(3))
	is.NoErr(d.CreateBatchJob(BatchJob{ID: "arrives done", Status: JobDone, NBytes: 1000}))
	is.True(!exists(d, "arrives done"))
}

// TestBatchOverBudget: what live jobs hold above the budget is told as it stands, not as the last eviction found it.
func TestBatchOverBudget(t *testing.T) {
	is := is.New(t)
	d := open(t, WithBatchBudget(10))
	addJob(t, d, "live", JobRunning, 1, 1)
	is.NoErr(d.UpdateBatchTarget("live", 0, 1, TargetDone, bytesOf(100), nil, nil))
	is.Equal(d.Stats().BatchOverBudget, int64(90))
	is.NoErr(d.DeleteBatchJob("live"))
	is.Equal(d.Stats().BatchOverBudget, int64(0))
}

func TestMarkInFlightFailed(t *testing.T) {
	is := is.New(t)
	d := open(t)
	for i, status := range []string{JobQueued, JobRunning, JobDone, JobPartial, JobFailed, JobCancelled} {
		must(t, d.CreateBatchJob(BatchJob{ID: status, Caller: fmt.Sprint(i % 2), Status: status, Error: "own", Lease: 7}))
	}
	must(t, d.PutBatchTargets(JobRunning, pending(3)))
	is.NoErr(d.UpdateBatchTarget(JobRunning, 0, 7, TargetRunning, nil, nil, nil))
	is.NoErr(d.UpdateBatchTarget(JobRunning, 1, 7, TargetDone, bytesOf(9), nil, nil))
	targets := targetsOf(t, d, JobRunning)
	is.Equal(d.MarkInFlightFailed("restart", 50), 2)
	for _, id := range []string{JobQueued, JobRunning} {
		j := peek(t, d, id)
		is.Equal([]any{j.Status, j.Error, j.Lease}, []any{JobFailed, "restart", int64(50)})
	}
	for _, id := range []string{JobDone, JobPartial, JobFailed, JobCancelled} {
		j := peek(t, d, id)
		is.Equal([]any{j.Status, j.Error, j.Lease}, []any{id, "own", int64(7)})
	}
	is.Equal(targetsOf(t, d, JobRunning), targets) // the evidence stays
	is.Equal(d.LiveBatchJobs("0")+d.LiveBatchJobs("1")+d.LiveBatchJobsTotal(), 0)
	is.Equal(d.MarkInFlightFailed("again", 60), 0)
	is.Equal(d.EvictBatchOldest(0), 1) // what they held can go now
}

func TestRequeueInFlight(t *testing.T) {
	is := is.New(t)
	d := open(t)
	add := func(id string, created int64, status string, targets ...string) {
		must(t, d.CreateBatchJob(BatchJob{ID: id, Status: status, CreatedAt: created, Lease: 1}))
		for idx, s := range targets {
			must(t, d.PutBatchTargets(id, []BatchTarget{{Idx: idx, Status: s, Result: str("kept")}}))
		}
	}
	add("late", 9, JobRunning, TargetRunning, TargetDone, TargetPending, TargetFailed)
	add("early-b", 2, JobQueued, TargetPending)
	add("early-a", 2, JobRunning, TargetRunning)
	add("closed", 1, JobRunning, TargetDone, TargetFailed)
	add("all-done", 1, JobQueued, TargetDone)
	add("all-failed", 1, JobRunning, TargetFailed)
	add("empty", 1, JobQueued)
	add("over", 1, JobDone, TargetRunning)
	ids, err := d.RequeueInFlight(50)
	is.NoErr(err)
	is.Equal(strings.Join(ids, " "), "early-a early-b late")
	for id, want := range map[string]string{
		"late": JobQueued, "early-a": JobQueued, "early-b": JobQueued,
		"closed": JobPartial, "all-done": JobDone, "all-failed": JobFailed, "empty": JobFailed,
	} {
		is.Equal(peek(t, d, id).Status, want)
		is.Equal(peek(t, d, id).Lease, int64(50))
	}
	is.True(peek(t, d, "empty").Error != "") // it says why
	is.Equal(peek(t, d, "over").Lease, int64(1))
	is.Equal(targetsOf(t, d, "over")[0].Status, TargetRunning) // not live: not touched
	var statuses []string
	for _, g := range targetsOf(t, d, "late") {
		statuses = append(statuses, g.Status)
		is.Equal(*g.Result, "kept")
	}
	is.Equal(strings.Join(statuses, " "), "pending done pending failed")
	again, err := d.RequeueInFlight(51)
	is.NoErr(err)
	is.Equal(again, ids)
}

// TestGCAmongWriters sweeps and evicts while others submit, write and read: every job is seen whole or not at all.
func TestGCAmongWriters(t *testing.T) {
	d := open(t)
	together(8, func(w int) {
		for i := range 60 {
			id := fmt.Sprint(w, "-", i)
			switch w {
			case 0:
				d.SweepBatch(int64(i), 5*time.Second)
			case 1:
				d.EvictBatchOldest(500)
			default:
				if _, _, err := d.SubmitBatch(BatchJob{ID: id, Caller: "c"}, pending(4), int64(i), time.Hour); err != nil {
					t.Error(err)
				}
				for idx := range 4 {
					if _, err := d.FinishBatchTarget(id, idx, int64(i), TargetDone, bytesOf(20), nil, nil); err != nil {
						mustBe(t, err, ErrNotFound) // swept
					}
					if got, ok := d.BatchTargets(id); ok && len(got) != 4 {
						t.Errorf("job %s has %d of 4 targets", id, len(got))
					}
				}
			}
		}
	})
}
