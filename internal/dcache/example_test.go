package dcache_test

import (
	"dcache/internal/dcache"
	"expvar"
	"fmt"
	"log"
	"strings"
	"time"
)

// A client submits a batch, the runner writes the results, the client reads them.
func Example() {
	d, err := dcache.Open(":memory:", 1<<30) // a path, and the bytes that the content cache may hold
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	now := time.Now().Unix()
	job := dcache.BatchJob{ID: "job-1", Caller: "alice", CallerClass: dcache.ClassFleet, IDemKey: "monday"}
	targets := []dcache.BatchTarget{
		{Idx: 0, URL: "https://example.org/", Options: `{}`},
		{Idx: 1, URL: "https://example.org/missing", Options: `{"render":true}`},
	}
	id, created, err := d.SubmitBatch(job, targets, now, 24*time.Hour)
	fmt.Println(id, created, err)
	id, created, err = d.SubmitBatch(job, targets, now, 24*time.Hour) // the connection dropped: the client tries again
	fmt.Println(id, created, err)

	result, failure := `{"status":200,"body":"hello"}`, "404 Not Found"
	if _, err := d.FinishBatchTarget(id, 0, now, dcache.TargetDone, &result, nil, nil); err != nil {
		log.Fatal(err)
	}
	j, err := d.FinishBatchTarget(id, 1, now, dcache.TargetFailed, nil, &failure, nil) // the last one ends the job
	fmt.Println(j.Status, j.TargetsDone, err)

	for from := 0; from >= 0; {
		page, next, ok := d.BatchTargetsPage(id, from, 100, 1<<20)
		if !ok {
			log.Fatal("the job was swept")
		}
		for _, t := range page {
			fmt.Println(t.Idx, t.URL, t.Status)
		}
		from = next
	}
	// Output:
	// job-1 true <nil>
	// job-1 false <nil>
	// partial 2 <nil>
	// 0 https://example.org/ done
	// 1 https://example.org/missing failed
}

func ExampleDB_SubmitBatch() {
	d := openExample()
	defer d.Close()
	job := dcache.BatchJob{ID: "a", Caller: "alice", IDemKey: "key"}
	fmt.Println(d.SubmitBatch(job, []dcache.BatchTarget{{URL: "u", Options: "{}"}}, 100, time.Hour))
	job.ID = "b"
	fmt.Println(d.SubmitBatch(job, []dcache.BatchTarget{{URL: "u", Options: "{}"}}, 200, time.Hour))
	fmt.Println(d.SubmitBatch(job, []dcache.BatchTarget{{URL: "other", Options: "{}"}}, 200, time.Hour))
	// Output:
	// a true <nil>
	// a false <nil>
	// a false dcache: submit batch job "b": idempotency key used for other targets
}

func ExampleDB_FinishBatchTarget() {
	d := openExample("j", "u", "v")
	defer d.Close()
	for idx := range 2 {
		j, err := d.FinishBatchTarget("j", idx, 1, dcache.TargetDone, nil, nil, nil)
		fmt.Println(j.Status, j.TargetsDone, err)
	}
	_, err := d.FinishBatchTarget("j", 0, 2, dcache.TargetFailed, nil, nil, nil) // a late worker
	fmt.Println(err)
	// Output:
	// queued 1 <nil>
	// done 2 <nil>
	// dcache: finish batch target 0 of "j": job is not live: it is done
}

func ExampleDB_CancelBatchJob() {
	d := openExample("j", "u", "v")
	defer d.Close()
	fmt.Println(d.CancelBatchJob("j", "its caller has gone", 1))
	p, _ := d.BatchProgress("j")
	fmt.Printf("%+v\n", p)
	// Output:
	// <nil>
	// {Pending:0 Running:0 Done:0 Failed:2 NBytes:0}
}

func ExampleDB_RequeueInFlight() {
	d := openExample("j", "u", "v")
	defer d.Close()
	if err := d.UpdateBatchTarget("j", 0, 1, dcache.TargetRunning, nil, nil, nil); err != nil { // and then the process was killed
		log.Fatal(err)
	}
	fmt.Println(d.RequeueInFlight(2))
	p, _ := d.BatchProgress("j")
	fmt.Printf("%+v\n", p)
	// Output:
	// [j] <nil>
	// {Pending:2 Running:0 Done:0 Failed:0 NBytes:0}
}

func ExampleDB_BatchTargetsPage() {
	d := openExample("j", "u", "v", "w")
	defer d.Close()
	page, next, ok := d.BatchTargetsPage("j", 0, 2, 1<<20)
	fmt.Println(len(page), next, ok)
	page, next, ok = d.BatchTargetsPage("j", next, 2, 1<<20)
	fmt.Println(len(page), next, ok)
	// Output:
	// 2 2 true
	// 1 -1 true
}

func ExampleDB_BatchProgress() {
	d := openExample("j", "u", "v")
	defer d.Close()
	fmt.Println(d.BatchProgress("j"))
	// Output: {2 0 0 0 0} true
}

func ExampleDB_PeekBatchJob() {
	d := openExample("j", "u")
	defer d.Close()
	j, ok := d.PeekBatchJob("j") // a dashboard: the lease stays where it is
	fmt.Println(j.Lease, ok)
	// Output: 1 true
}

func ExampleDB_ListBatchJobs() {
	d := openExample("j", "u")
	defer d.Close()
	for cursor, more := (dcache.Cursor{}), true; more; more = cursor != (dcache.Cursor{}) {
		jobs, next, err := d.ListBatchJobs("alice", cursor, 100)
		if err != nil {
			log.Fatal(err)
		}
		for _, j := range jobs {
			fmt.Println(j.ID, j.Status)
		}
		cursor = next
	}
	// Output: j queued
}

func ExampleDB_DeleteBatchJob() {
	d := openExample("j", "u")
	defer d.Close()
	fmt.Println(d.DeleteBatchJob("j"))
	_, ok := d.BatchTargets("j")
	fmt.Println(ok)
	// Output:
	// <nil>
	// false
}

func ExampleWithBatchBudget() {
	d, err := dcache.Open(":memory:", 0, dcache.WithBatchBudget(10))
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	result := "12345678"
	for i, id := range []string{"old", "new"} {
		if _, _, err := d.SubmitBatch(dcache.BatchJob{ID: id}, []dcache.BatchTarget{{URL: "u", Options: "{}"}}, int64(i), time.Hour); err != nil {
			log.Fatal(err)
		}
		if _, err := d.FinishBatchTarget(id, 0, int64(i), dcache.TargetDone, &result, nil, nil); err != nil {
			log.Fatal(err)
		}
	}
	_, old := d.PeekBatchJob("old")
	fmt.Println(old, d.BatchNbytes())
	// Output: false 8
}

// Stats for every scrape of /debug/vars.
func ExampleDB_Stats() {
	d := openExample("j", "u")
	defer d.Close()
	expvar.Publish("dcache", expvar.Func(func() any { return d.Stats() }))
	fmt.Println(strings.Contains(expvar.Get("dcache").String(), `"live_jobs":1`))
	// Output: true
}

// openExample opens a store, with one job if it is given one.
func openExample(job ...string) *dcache.DB {
	d, err := dcache.Open(":memory:", 0)
	if err != nil {
		log.Fatal(err)
	}
	if len(job) == 0 {
		return d
	}
	var targets []dcache.BatchTarget
	for i, u := range job[1:] {
		targets = append(targets, dcache.BatchTarget{Idx: i, URL: u, Options: "{}"})
	}
	if _, _, err := d.SubmitBatch(dcache.BatchJob{ID: job[0], Caller: "alice"}, targets, 1, time.Hour); err != nil {
		log.Fatal(err)
	}
	return d
}
