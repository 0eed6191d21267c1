package dcache

import (
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"
)

// openGiven opens an in-memory store and audits it when the test ends.
func openGiven(t *testing.T) *DB {
	t.Helper()
	d, err := Open(":memory:", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Check(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// givenJob creates a job with n pending targets.
func givenJob(t *testing.T, d *DB, id, status string, lease int64, n int) {
	t.Helper()
	is := is.New(t)
	is.NoErr(d.CreateBatchJob(BatchJob{
		ID: id, Caller: "c", CallerClass: ClassFleet, Status: status, TargetsTotal: n, CreatedAt: lease, Lease: lease,
	}))
	targets := make([]BatchTarget, n)
	for i := range targets {
		targets[i] = BatchTarget{JobID: id, Idx: i, URL: fmt.Sprintf("https://example.org/%d", i), Options: "{}", Status: TargetPending}
	}
	is.NoErr(d.PutBatchTargets(id, targets))
}

func str(s string) *string { return &s }

func TestBatchCreateRead(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	want := BatchJob{
		ID: "j", Caller: "alice", CallerClass: ClassRestricted, IDemKey: "k", Status: JobQueued,
		TargetsTotal: 3, CreatedAt: 100, Lease: 200,
	}
	is.NoErr(d.CreateBatchJob(want))
	got, ok := d.BatchJob("j")
	is.True(ok)
	is.Equal(got, want) // as stored: the row before this read's own move of the lease

	before := time.Now().Unix()
	_, ok = d.BatchJob("j")
	is.True(ok)
	got, ok = d.BatchJob("j")
	is.True(ok)
	is.True(got.Lease >= before) // a read keeps the job alive

	_, ok = d.BatchJob("absent")
	is.True(!ok)
	is.True(d.CreateBatchJob(want) != nil) // the id is taken
}

func TestBatchJobByIDem(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	is.NoErr(d.CreateBatchJob(BatchJob{ID: "j", Caller: "alice", CallerClass: ClassFleet, IDemKey: "k", Status: JobQueued, Lease: 100}))

	id, ok := d.BatchJobByIDem("alice", "k", 109, 10*time.Second)
	is.True(ok)
	is.Equal(id, "j")
	_, ok = d.BatchJobByIDem("alice", "k", 110, 10*time.Second) // lease + ttl <= now: expired
	is.True(!ok)
	_, ok = d.BatchJobByIDem("bob", "k", 100, 10*time.Second) // another caller's key
	is.True(!ok)
	_, ok = d.BatchJobByIDem("alice", "other", 100, 10*time.Second)
	is.True(!ok)
}

func TestBatchLive(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	for i, status := range []string{JobQueued, JobRunning, JobDone, JobPartial, JobFailed, JobCancelled} {
		caller := "alice"
		if status == JobRunning {
			caller = "bob"
		}
		is.NoErr(d.CreateBatchJob(BatchJob{ID: fmt.Sprint(i), Caller: caller, CallerClass: ClassFleet, Status: status}))
	}
	is.Equal(d.LiveBatchJobs("alice"), 1)
	is.Equal(d.LiveBatchJobs("bob"), 1)
	is.Equal(d.LiveBatchJobs("carol"), 0)
	is.Equal(d.LiveBatchJobsTotal(), 2)
	is.NoErr(d.SetBatchJobStatus("0", JobDone, "", 7))
	is.Equal(d.LiveBatchJobs("alice"), 0)
	is.Equal(d.LiveBatchJobsTotal(), 1)
}

func TestBatchTargetsOrdered(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	is.NoErr(d.CreateBatchJob(BatchJob{ID: "j", CallerClass: ClassFleet, Status: JobQueued, TargetsTotal: 3}))
	is.NoErr(d.PutBatchTargets("j", []BatchTarget{
		{JobID: "j", Idx: 2, URL: "c", Options: "{}", Status: TargetPending},
		{JobID: "j", Idx: 0, URL: "a", Options: `{"x":1}`, Status: TargetPending},
		{JobID: "j", Idx: 1, URL: "b", Options: "{}", Status: TargetPending},
	}))
	got, ok := d.BatchTargets("j")
	is.True(ok)
	is.Equal(len(got), 3)
	is.Equal(got[0], BatchTarget{JobID: "j", Idx: 0, URL: "a", Options: `{"x":1}`, Status: TargetPending})
	is.Equal(got[1].URL, "b")
	is.Equal(got[2].URL, "c")
	_, ok = d.BatchTargets("absent")
	is.True(!ok)
}

func TestBatchTargetUpdate(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	givenJob(t, d, "j", JobRunning, 10, 3)

	// peek gives the job as the calls before left it; the read's own move of the lease comes after.
	peek := func() BatchJob {
		t.Helper()
		j, ok := d.BatchJob("j")
		is.True(ok)
		return j
	}
	is.NoErr(d.UpdateBatchTarget("j", 0, 20, TargetRunning, nil, nil, nil))
	j := peek()
	is.Equal(j.TargetsDone, 0)
	is.Equal(j.Lease, int64(20))

	is.NoErr(d.UpdateBatchTarget("j", 0, 30, TargetDone, str("héllo"), nil, nil))
	j = peek()
	is.Equal(j.TargetsDone, 1)
	is.Equal(j.NBytes, int64(6)) // bytes, not characters
	is.Equal(j.Lease, int64(30))

	is.NoErr(d.UpdateBatchTarget("j", 0, 31, TargetDone, str("hi"), nil, nil)) // a rewrite
	j = peek()
	is.Equal(j.TargetsDone, 1)
	is.Equal(j.NBytes, int64(2))
	is.Equal(j.Lease, int64(31))

	is.NoErr(d.UpdateBatchTarget("j", 1, 32, TargetFailed, nil, str("timeout"), str("retry later")))
	j = peek()
	is.Equal(j.TargetsDone, 2)
	is.Equal(j.NBytes, int64(2))

	is.True(d.UpdateBatchTarget("j", 9, 40, TargetDone, str("x"), nil, nil) != nil) // no such target
	is.True(d.UpdateBatchTarget("absent", 0, 40, TargetDone, str("x"), nil, nil) != nil)

	got, ok := d.BatchTargets("j")
	is.True(ok)
	is.Equal(*got[0].Result, "hi")
	is.Equal(got[1].Status, TargetFailed)
	is.Equal(*got[1].Error, "timeout")
	is.Equal(*got[1].Hint, "retry later")
	is.Equal(got[2].Result, nil)

	is.NoErr(d.SetBatchJobStatus("j", JobPartial, "one failed", 50))
	j = peek()
	is.Equal(j.Status, JobPartial)
	is.Equal(j.Error, "one failed")
	is.Equal(j.Lease, int64(50))
	is.NoErr(d.TouchBatchJob("j", 45))
	is.Equal(peek().Lease, int64(45))
}

func TestBatchSweep(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	givenJob(t, d, "old", JobDone, 90, 2)
	givenJob(t, d, "edge", JobRunning, 100, 2)
	givenJob(t, d, "new", JobDone, 101, 2)
	is.Equal(d.SweepBatch(110, 10*time.Second), 2) // lease + ttl <= now, live or not
	is.Equal(d.SweepBatch(110, 10*time.Second), 0)
	_, ok := d.BatchTargets("old")
	is.True(!ok)
	_, ok = d.BatchTargets("edge")
	is.True(!ok)
	got, ok := d.BatchTargets("new")
	is.True(ok)
	is.Equal(len(got), 2)
}

func TestBatchEvict(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	for i, id := range []string{"live", "b", "a", "c"} {
		lease := int64([]int{1, 3, 2, 4}[i])
		givenJob(t, d, id, JobRunning, lease, 1)
		is.NoErr(d.UpdateBatchTarget(id, 0, lease, TargetDone, str("0123456789"), nil, nil))
		if id != "live" {
			is.NoErr(d.SetBatchJobStatus(id, JobDone, "", lease))
		}
	}
	is.Equal(d.BatchNbytes(), int64(40))
	is.Equal(d.EvictBatchOldest(40), 0)
	is.Equal(d.EvictBatchOldest(39), 1) // "a": the oldest that is not live
	_, ok := d.BatchTargets("a")
	is.True(!ok)
	is.Equal(d.BatchNbytes(), int64(30))
	is.Equal(d.EvictBatchOldest(0), 2)
	is.Equal(d.BatchNbytes(), int64(10)) // the live job's
	_, ok = d.BatchTargets("live")
	is.True(ok)
	is.Equal(d.Size(), int64(0)) // batch bytes are never in it
}

func TestBatchMarkInFlightFailed(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	givenJob(t, d, "queued", JobQueued, 1, 1)
	givenJob(t, d, "running", JobRunning, 2, 1)
	givenJob(t, d, "done", JobDone, 3, 1)
	is.Equal(d.MarkInFlightFailed("restart", 50), 2)
	is.Equal(d.MarkInFlightFailed("restart", 51), 0)
	for id, want := range map[string]BatchJob{
		"queued":  {Status: JobFailed, Error: "restart", Lease: 50},
		"running": {Status: JobFailed, Error: "restart", Lease: 50},
		"done":    {Status: JobDone, Error: "", Lease: 3},
	} {
		j, ok := d.BatchJob(id)
		is.True(ok)
		is.Equal(BatchJob{Status: j.Status, Error: j.Error, Lease: j.Lease}, want)
	}
	is.Equal(d.LiveBatchJobsTotal(), 0)
}

func TestBatchNbytes(t *testing.T) {
	is := is.New(t)
	d := openGiven(t)
	is.Equal(d.BatchNbytes(), int64(0))
	givenJob(t, d, "a", JobRunning, 1, 2)
	givenJob(t, d, "b", JobRunning, 1, 1)
	is.NoErr(d.UpdateBatchTarget("a", 0, 2, TargetDone, str("12345"), nil, nil))
	is.NoErr(d.UpdateBatchTarget("a", 1, 2, TargetDone, str("123"), nil, nil))
	is.NoErr(d.UpdateBatchTarget("b", 0, 2, TargetDone, str("12"), nil, nil))
	is.Equal(d.BatchNbytes(), int64(10))
	is.NoErr(d.UpdateBatchTarget("a", 0, 3, TargetFailed, nil, str("gone"), nil)) // gives its bytes back
	is.Equal(d.BatchNbytes(), int64(5))
}
