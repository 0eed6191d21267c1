package dcache

import (
	"database/sql"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	benchJobs    = flag.Int("bench.jobs", 2000, "jobs of the benchmarks that show how a call grows with the file, against 1000; the full size is 1000000")
	benchTargets = flag.Int("bench.targets", 2, "targets of each of these jobs; the full size is 10")
	benchSweep   = flag.Int("bench.sweep", 1000, "jobs of 10 targets that BenchmarkSweep deletes; the full size is 100000")
	benchEvict   = flag.Int64("bench.evict", 16<<20, "bytes that BenchmarkEvict frees; the full size is 1 GiB")
	benchWrite   = flag.Int64("bench.write", 16<<20, "bytes that BenchmarkMemory writes; the full size is 1 GiB")
)

// The work of the throughput benchmarks: so many jobs of so many targets, each finished with a result of 2 KiB, job after job.
const (
	workJobs    = 1000
	workTargets = 100
)

var workResult = strings.Repeat(`{"status":200,"body":"0123456789"} `, 60)[:2048]

// fillWork stores jobs of pending targets, and returns where the next target to finish is.
func fillWork(b *testing.B, d *DB, jobs, targets int) func() (string, int) {
	b.Helper()
	together(jobs, func(i int) {
		if _, _, err := d.SubmitBatch(BatchJob{ID: fmt.Sprintf("job-%07d", i), Caller: fmt.Sprint("c", i%100), Status: JobRunning}, pending(targets), 1, time.Hour); err != nil {
			b.Error(err)
		}
	})
	var next atomic.Int64
	return func() (string, int) {
		n := int(next.Add(1)-1) % (jobs * targets)
		return fmt.Sprintf("job-%07d", n/targets), n % targets
	}
}

func BenchmarkUpdateBatchTarget(b *testing.B) {
	for _, sync := range []Synchronous{SyncFull, SyncNormal} {
		for _, callers := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("sync=%d/callers=%d", sync, callers), func(b *testing.B) {
				d := open(b, WithSynchronous(sync))
				next := fillWork(b, d, workJobs, workTargets)
				before := d.Stats()
				b.ReportAllocs()
				b.SetBytes(int64(len(workResult)))
				b.SetParallelism((callers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
				b.ResetTimer()
				run := func(more func() bool) {
					for more() {
						id, idx := next()
						if err := d.UpdateBatchTarget(id, idx, time.Now().Unix(), TargetDone, &workResult, nil, nil); err != nil {
							b.Error(err)
						}
					}
				}
				if callers == 1 {
					run(b.Loop)
				} else {
					b.RunParallel(func(pb *testing.PB) { run(pb.Next) })
				}
				s := d.Stats()
				b.ReportMetric(float64(s.Operations-before.Operations)/float64(s.Transactions-before.Transactions), "calls/commit")
			})
		}
	}
}

func BenchmarkFinishBatchTarget(b *testing.B) {
	d := open(b)
	next := fillWork(b, d, workJobs, workTargets)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id, idx := next()
			// Beyond the last target the jobs are not live any more, and are begun anew.
			if _, err := d.FinishBatchTarget(id, idx, 1, TargetDone, &workResult, nil, nil); err != nil {
				if err := d.SetBatchJobStatus(id, JobRunning, "", 1); err != nil {
					b.Error(err)
				}
			}
		}
	})
}

func BenchmarkPutBatchTargets(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint("targets=", n), func(b *testing.B) {
			d := open(b)
			targets := pending(n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				id := fmt.Sprint(i)
				must(b, d.CreateBatchJob(BatchJob{ID: id}))
				must(b, d.PutBatchTargets(id, targets))
			}
		})
	}
}

// BenchmarkBatchTargets reads 1,000 results of 2 KiB, beside code that scans the same rows by hand.
func BenchmarkBatchTargets(b *testing.B) {
	d := open(b)
	next := fillWork(b, d, 1, 1000)
	together(1000, func(int) {
		id, idx := next()
		if err := d.UpdateBatchTarget(id, idx, 1, TargetDone, &workResult, nil, nil); err != nil {
			b.Error(err)
		}
	})
	id, _ := next()
	b.Run("by=store", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if targets, ok := d.BatchTargets(id); !ok || len(targets) != 1000 {
				b.Fatal(len(targets))
			}
		}
	})
	b.Run("by=hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if targets := scanByHand(b, d.sql.DB, id); len(targets) != 1000 {
				b.Fatal(len(targets))
			}
		}
	})
	b.Run("by=page", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for from := 0; from >= 0; {
				page, next, ok := d.BatchTargetsPage(id, from, 100, 1<<20)
				if !ok || len(page) != 100 {
					b.Fatal(len(page))
				}
				from = next
			}
		}
	})
}

func scanByHand(b *testing.B, db *sql.DB, id string) (targets []BatchTarget) {
	rows, err := db.Query(selectTargets, id)
	must(b, err)
	defer rows.Close()
	for rows.Next() {
		var t BatchTarget
		must(b, rows.Scan(&t.JobID, &t.Idx, &t.URL, &t.Options, &t.Status, &t.Result, &t.Error, &t.Hint))
		targets = append(targets, t)
	}
	must(b, rows.Err())
	return targets
}

// BenchmarkBatchJob polls a job whose lease is current, beside a bare read of its row.
func BenchmarkBatchJob(b *testing.B) {
	d := open(b, clockAt(9))
	addJob(b, d, "j", JobRunning, 9, 10)
	b.Run("by=store", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := d.BatchJob("j"); !ok {
				b.Fatal("gone")
			}
		}
	})
	b.Run("by=sqlx", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var j BatchJob
			must(b, d.sql.Get(&j, selectJob, "j"))
		}
	})
}

// BenchmarkGrowth makes calls on a small file and on a large one, which should take the same time.
func BenchmarkGrowth(b *testing.B) {
	for _, jobs := range []int{1000, *benchJobs} {
		b.Run(fmt.Sprint("jobs=", jobs), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "x.db")
			fillLarge(b, path, jobs, *benchTargets)
			b.Run("call=Open", func(b *testing.B) {
				for b.Loop() {
					d, err := Open(path, 0)
					must(b, err)
					must(b, d.Close())
				}
			})
			d, err := Open(path, 0)
			must(b, err)
			defer d.Close()
			n := 0
			id := func() string { n++; return fmt.Sprintf("job-%07d", n*7919%jobs) }
			// Each target once, and then again with another result: SQLite does not write what is the same.
			update := func() error {
				result := fmt.Sprintf("%08d%s", n, workResult[8:])
				return d.UpdateBatchTarget(id(), n/jobs%*benchTargets, int64(n), TargetDone, &result, nil, nil)
			}
			for _, c := range []struct {
				name string
				call func()
			}{
				{"BatchNbytes", func() { d.BatchNbytes() }},
				{"LiveBatchJobsTotal", func() { d.LiveBatchJobsTotal() }},
				{"LiveBatchJobs", func() { d.LiveBatchJobs("c1") }},
				{"EvictBatchOldest", func() { d.EvictBatchOldest(1 << 60) }},
				{"BatchJobByIDem", func() { d.BatchJobByIDem("c1", id(), 1, time.Hour) }},
				{"UpdateBatchTarget", func() { must(b, update()) }},
			} {
				b.Run("call="+c.name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						c.call()
					}
				})
			}
		})
	}
}

// fillLarge makes a file of many jobs, half of them live, by plain statements: it is the file that is measured, not its making.
func fillLarge(b *testing.B, path string, jobs, targets int) {
	d, err := Open(path, 0)
	must(b, err)
	behindB := func(query string, args ...any) {
		_, err := d.sql.Exec(query, args...)
		must(b, err)
	}
	behindB(`PRAGMA synchronous = OFF`)
	behindB(`
		WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < ?1 - 1)
		INSERT INTO batch_job (id, caller, caller_class, idem_key, status, targets_total, created_at, lease)
		SELECT printf('job-%07d', i), 'c' || (i % 1000), 'fleet', printf('job-%07d', i), CASE i % 2 WHEN 0 THEN 'running' ELSE 'done' END, ?2, i, i FROM n`, jobs, targets)
	behindB(`
		WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < ?1 * ?2 - 1)
		INSERT INTO batch_target (job_id, idx, url, options, status)
		SELECT printf('job-%07d', i / ?2), i % ?2, 'https://example.org/' || i, '{}', 'pending' FROM n`, jobs, targets)
	must(b, d.Close())
	// What was not synced would be by the first checkpoint that is measured.
	f, err := os.Open(path)
	must(b, err)
	must(b, f.Sync())
	must(b, f.Close())
}

// BenchmarkSweep measures a sweep of many jobs: while nobody else calls, while somebody does, and beside the two statements that
// would do it at one stroke.
func BenchmarkSweep(b *testing.B) {
	fill := func(b *testing.B) *DB {
		path := filepath.Join(b.TempDir(), "x.db")
		fillLarge(b, path, *benchSweep, 10)
		return openAt(b, path, 0)
	}
	sweep := func(b *testing.B, d *DB) {
		if n := d.SweepBatch(1<<30, 0); n != *benchSweep {
			b.Error(n)
		}
	}
	b.Run("by=store", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			d := fill(b)
			b.StartTimer()
			sweep(b, d)
		}
	})
	b.Run("by=store/beside=caller", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			d := fill(b)
			reportWaits(b, d, func() { sweep(b, d) })
		}
	})
	b.Run("by=statements", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			d := fill(b)
			d.totals = totals{} // the rows go behind the store's back
			b.StartTimer()
			for _, query := range []string{
				`DELETE FROM batch_target WHERE job_id IN (SELECT id FROM batch_job WHERE lease <= 1 << 30)`,
				`DELETE FROM batch_job WHERE lease <= 1 << 30`,
			} {
				_, err := d.sql.Exec(query)
				must(b, err)
			}
		}
	})
}

// BenchmarkEvict frees many bytes while somebody calls.
func BenchmarkEvict(b *testing.B) {
	const targets, size = 64, 16 << 10
	jobs := int(*benchEvict / (targets * size))
	for b.Loop() {
		b.StopTimer()
		d := open(b, WithSynchronous(SyncNormal))
		results := make([]BatchTarget, targets)
		for i := range results {
			results[i] = BatchTarget{Idx: i, Status: TargetDone, Result: bytesOf(size)}
		}
		together(64, func(w int) {
			for i := w; i < jobs; i += 64 {
				id := fmt.Sprint(i)
				must(b, d.CreateBatchJob(BatchJob{ID: id, Status: JobDone}))
				must(b, d.PutBatchTargets(id, results))
			}
		})
		behind(b, d, `PRAGMA synchronous = FULL`)
		reportWaits(b, d, func() {
			if n := d.EvictBatchOldest(0); n != jobs {
				b.Error(n)
			}
		})
	}
}

// reportWaits times work, and reports what one caller waits who makes one call after the other: before it, and while it goes on.
func reportWaits(b *testing.B, d *DB, work func()) {
	b.Helper()
	addJob(b, d, "live", JobRunning, 1<<40, 1)
	alone := waits(d, nil)
	finished := make(chan struct{})
	b.StartTimer()
	go func() {
		work()
		close(finished)
	}()
	during := waits(d, finished)
	b.StopTimer()
	median, p999 := alone[len(alone)/2], during[len(during)*999/1000]
	b.ReportMetric(float64(p999.Microseconds()), "p999-µs")
	b.ReportMetric(float64(p999)/float64(median), "p999/median-alone")
	b.ReportMetric(float64(during[len(during)-1].Microseconds()), "max-µs")
	b.StartTimer()
}

// waits makes calls until done is closed, or 500 of them, and returns how long each took, sorted.
func waits(d *DB, done <-chan struct{}) (took []time.Duration) {
	for {
		select {
		case <-done:
			slices.Sort(took)
			return took
		default:
		}
		result := fmt.Sprintf("%06d%s", len(took), workResult[6:])
		began := time.Now()
		_ = d.UpdateBatchTarget("live", 0, 1<<40+int64(len(took)), TargetRunning, &result, nil, nil)
		took = append(took, time.Since(began))
		if done == nil && len(took) == 500 {
			slices.Sort(took)
			return took
		}
	}
}

// BenchmarkMemory writes many results by 64 callers, and reports by how much the process has grown.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		d := open(b)
		next := fillWork(b, d, 100, 1000)
		before := resident()
		var written atomic.Int64
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				result := strings.Repeat("x", 16<<10)
				for written.Add(int64(len(result))) <= *benchWrite {
					id, idx := next()
					if err := d.UpdateBatchTarget(id, idx, 1, TargetDone, &result, nil, nil); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(resident()-before)/(1<<20), "MiB-grown")
		b.ReportMetric(float64(d.Stats().WALBytes)/(1<<20), "MiB-WAL")
	}
}
