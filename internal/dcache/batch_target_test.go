package dcache

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestPutBatchTargets(t *testing.T) {
	t.Run("all or nothing", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobQueued, 1, 0)
		targets := pending(1000)
		targets[999].Idx = 0
		mustBe(t, d.PutBatchTargets("j", targets), ErrInvalid)
		is.Equal(len(targetsOf(t, d, "j")), 0)

		must(t, d.PutBatchTargets("j", []BatchTarget{{Idx: 999, URL: "there"}}))
		before := dump(t, d)
		mustBe(t, d.PutBatchTargets("j", pending(1000)), ErrExists) // the last one is there: 999 rows go back
		is.Equal(dump(t, d), before)
		must(t, d.PutBatchTargets("j", pending(999)))
		is.Equal(len(targetsOf(t, d, "j")), 1000)
	})
	t.Run("checks the job", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		mustBe(t, d.PutBatchTargets("absent", pending(1)), ErrNotFound)
		mustBe(t, d.PutBatchTargets("absent", nil), ErrNotFound)
		addJob(t, d, "j", JobQueued, 1, 0)
		mustBe(t, d.PutBatchTargets("j", []BatchTarget{{JobID: "other"}}), ErrInvalid)
		is.NoErr(d.PutBatchTargets("j", nil))
		got, ok := d.BatchTargets("j")
		is.True(ok && got != nil && len(got) == 0) // a job without targets, unlike none
		is.NoErr(d.PutBatchTargets("j", []BatchTarget{{Idx: 0}, {JobID: "j", Idx: 1}}))
		for _, g := range targetsOf(t, d, "j") {
			is.Equal(g.JobID, "j")
			is.Equal(g.Status, TargetPending)
		}
	})
	t.Run("accounts for what arrives finished", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobDone, 1, 0)
		is.NoErr(d.PutBatchTargets("j", []BatchTarget{
			{Idx: 0, Status: TargetDone, Result: str("12345")},
			{Idx: 5, Status: TargetFailed, Error: str("e")},
			{Idx: 1 << 40, Status: TargetRunning, Result: str("part")}, // a gap; the job's status and total are not looked at
		}))
		j := peek(t, d, "j")
		is.Equal(j.TargetsDone, 2)
		is.Equal(j.NBytes, int64(9))
		is.Equal(j.Lease, int64(1))
		is.Equal(d.BatchNbytes(), int64(9))
	})
	t.Run("leaves the caller's slice alone", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobQueued, 1, 0)
		targets := []BatchTarget{{Idx: 1, Result: str("x")}, {Idx: 0}}
		is.NoErr(d.PutBatchTargets("j", targets))
		is.Equal(targets[0], BatchTarget{Idx: 1, Result: targets[0].Result})
		*targets[0].Result = "changed"
		is.Equal(*targetsOf(t, d, "j")[1].Result, "x")
	})
}

// TestPutEveryShape puts targets by each of the statements, and of each number of rows, and reads them back.
func TestPutEveryShape(t *testing.T) {
	d := open(t)
	for name, change := range map[string]func(i int, g *BatchTarget){
		"fresh":                  func(int, *BatchTarget) {},
		"all in one other":       func(_ int, g *BatchTarget) { g.Status = TargetRunning },
		"an empty status":        func(i int, g *BatchTarget) { g.Status = [2]string{"", TargetPending}[i%2] },
		"one with a result":      func(i int, g *BatchTarget) { g.Result = map[int]*string{77: str("r")}[i] },
		"one with an error":      func(i int, g *BatchTarget) { g.Error = map[int]*string{77: str("e")}[i] },
		"one with a hint":        func(i int, g *BatchTarget) { g.Hint = map[int]*string{0: str("h")}[i] },
		"each status":            func(i int, g *BatchTarget) { g.Status = []string{TargetDone, TargetFailed, TargetRunning}[i%3] },
		"too large for a query":  func(_ int, g *BatchTarget) { g.Options = strings.Repeat("x", 2*maxQueryBytes/100) },
		"backwards, with gaps":   func(i int, g *BatchTarget) { g.Idx = 1000 - 3*i },
		"an empty url and a NUL": func(i int, g *BatchTarget) { g.URL, g.Options = "", "\x00"+g.URL },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			addJob(t, d, name, JobRunning, 1, 0)
			want := pending(237) // two statements of 100 rows, three of 10, seven of one
			for i := range want {
				change(i, &want[i])
			}
			is.NoErr(d.PutBatchTargets(name, want))
			for i := range want {
				want[i].JobID, want[i].Status = name, cmp.Or(want[i].Status, TargetPending)
			}
			slices.SortFunc(want, func(a, b BatchTarget) int { return a.Idx - b.Idx })
			is.Equal(targetsOf(t, d, name), want)
		})
	}
}

// TestTransitions walks every order of four writes to one target: the audit compares the counters with the row after each.
func TestTransitions(t *testing.T) {
	is := is.New(t)
	d := open(t)
	statuses := []string{TargetPending, TargetRunning, TargetDone, TargetFailed}
	results := []*string{nil, str(""), str("1"), str("12345")}
	job := 0
	for _, first := range statuses {
		for _, second := range statuses {
			for _, third := range statuses {
				id := fmt.Sprint(job)
				addJob(t, d, id, JobRunning, 1, 2)
				for i, status := range []string{first, second, third} {
					result := results[(job+i*(job/4+1))%4]
					is.NoErr(d.UpdateBatchTarget(id, 1, 2, status, result, nil, nil))
					bytes, finished := weight(status, result)
					j := peek(t, d, id)
					is.Equal(j.TargetsDone, finished) // +1 on entering, -1 on leaving, once whatever is repeated
					is.Equal(j.NBytes, bytes)
				}
				job++
			}
		}
	}
	is.NoErr(d.Check())
}

func TestUpdateBatchTarget(t *testing.T) {
	t.Run("NULL and empty", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 3)
		empty, e := "", "e"
		is.NoErr(d.UpdateBatchTarget("j", 1, 2, TargetDone, &empty, nil, &empty))
		is.NoErr(d.UpdateBatchTarget("j", 2, 2, TargetFailed, nil, &e, nil))
		empty, e = "changed", "changed"
		got := targetsOf(t, d, "j")
		is.True(got[0].Result == nil && got[0].Error == nil && got[0].Hint == nil)
		is.True(*got[1].Result == "" && got[1].Error == nil && *got[1].Hint == "")
		is.True(got[2].Result == nil && *got[2].Error == "e" && got[2].Hint == nil)
		is.Equal(peek(t, d, "j").TargetsDone, 2)
		is.Equal(peek(t, d, "j").NBytes, int64(0))
	})
	t.Run("unknown job, idx or status", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 1)
		before := dump(t, d)
		for _, idx := range []int{-1, 1, math.MaxInt, math.MinInt} {
			mustBe(t, d.UpdateBatchTarget("j", idx, 2, TargetDone, str("x"), nil, nil), ErrNotFound)
		}
		mustBe(t, d.UpdateBatchTarget("absent", 0, 2, TargetDone, str("x"), nil, nil), ErrNotFound)
		for _, status := range []string{"Done", "queued", "cancelled", " done", "done\x00"} {
			mustBe(t, d.UpdateBatchTarget("j", 0, 2, status, str("x"), nil, nil), ErrInvalid)
		}
		mustBe(t, d.SetBatchJobStatus("j", "finished", "", 2), ErrInvalid)
		mustBe(t, d.SetBatchJobStatus("absent", JobDone, "", 2), ErrNotFound)
		mustBe(t, d.TouchBatchJob("absent", 2), ErrNotFound)
		is.Equal(dump(t, d), before)
		is.NoErr(d.UpdateBatchTarget("j", 0, 2, "", nil, nil, nil)) // empty: pending
		is.Equal(targetsOf(t, d, "j")[0].Status, TargetPending)
	})
	t.Run("does not look at the job's status", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobCancelled, 1, 1)
		is.NoErr(d.UpdateBatchTarget("j", 0, 2, TargetDone, str("x"), nil, nil))
		is.Equal(peek(t, d, "j").Status, JobCancelled)
		is.Equal(d.EvictBatchOldest(0), 1)
	})
	t.Run("by many at once", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 50)
		errs := make([]error, 500)
		together(500, func(i int) { // ten writers to each target
			errs[i] = d.UpdateBatchTarget("j", i%50, 2, TargetDone, bytesOf(i), nil, nil)
		})
		for _, err := range errs {
			is.NoErr(err)
		}
		is.Equal(peek(t, d, "j").TargetsDone, 50) // and the audit compares nbytes with whoever came last
		s := d.Stats()
		is.True(s.Operations >= 500)
		is.True(s.Transactions < s.Operations) // some shared a commit
	})
}

func TestFinishBatchTarget(t *testing.T) {
	for _, tt := range []struct {
		name     string
		statuses []string
		want     string
	}{
		{"all done", []string{TargetDone, TargetDone, TargetDone}, JobDone},
		{"all failed", []string{TargetFailed, TargetFailed, TargetFailed}, JobFailed},
		{"mixed", []string{TargetDone, TargetFailed, TargetDone}, JobPartial},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			d := open(t)
			addJob(t, d, "j", JobRunning, 1, 3)
			order := rand.Perm(3)
			for n, idx := range order {
				j, err := d.FinishBatchTarget("j", idx, 5, tt.statuses[idx], str("r"), nil, nil)
				is.NoErr(err)
				is.Equal(j, peek(t, d, "j")) // the job as it now stands
				want := JobRunning
				if n == 2 {
					want = tt.want
				}
				is.Equal(j.Status, want)
				is.Equal(j.Lease, int64(5))
				is.Equal(j.TargetsDone, n+1)
			}
			is.Equal(d.LiveBatchJobsTotal(), 0)
			before := dump(t, d)
			_, err := d.FinishBatchTarget("j", 0, 6, TargetDone, str("late"), nil, nil)
			mustBe(t, err, ErrNotLive)
			is.Equal(dump(t, d), before)
		})
	}
	t.Run("in any order, whatever targets_total says", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for round, order := range [][]int{seq(200, 1), seq(200, -1), rand.New(rand.NewPCG(1, 2)).Perm(200)} {
			id := fmt.Sprint(round)
			must(t, d.CreateBatchJob(BatchJob{ID: id, TargetsTotal: []int{0, 200, 9999}[round]}))
			must(t, d.PutBatchTargets(id, pending(200)))
			for n, idx := range order {
				j, err := d.FinishBatchTarget(id, idx, 5, TargetDone, nil, nil, nil)
				is.NoErr(err)
				is.Equal(j.Status == JobDone, n == 199)
			}
		}
		is.Equal(len(d.openHint), 0)
	})
	t.Run("a target that is opened again keeps the job open", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 3)
		finish := func(idx int) string {
			j, err := d.FinishBatchTarget("j", idx, 5, TargetDone, nil, nil, nil)
			is.NoErr(err)
			return j.Status
		}
		is.Equal(finish(0), JobRunning)
		is.Equal(finish(1), JobRunning)
		is.NoErr(d.UpdateBatchTarget("j", 0, 6, TargetPending, nil, nil, nil)) // below where the search stands
		is.Equal(finish(2), JobRunning)
		is.Equal(finish(1), JobRunning) // a rewrite of a finished target of a live job
		is.Equal(finish(0), JobDone)
	})
	t.Run("a rewrite closes a job that has nothing open", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 1)
		is.NoErr(d.UpdateBatchTarget("j", 0, 2, TargetDone, nil, nil, nil))
		is.Equal(peek(t, d, "j").Status, JobRunning)
		j, err := d.FinishBatchTarget("j", 0, 3, TargetFailed, nil, str("e"), nil)
		is.NoErr(err)
		is.Equal(j.Status, JobFailed)
	})
	t.Run("refuses", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 1)
		before := dump(t, d)
		for _, status := range []string{"", TargetPending, TargetRunning, "x"} {
			_, err := d.FinishBatchTarget("j", 0, 3, status, nil, nil, nil)
			mustBe(t, err, ErrInvalid)
		}
		_, err := d.FinishBatchTarget("j", 1, 3, TargetDone, nil, nil, nil)
		mustBe(t, err, ErrNotFound)
		_, err = d.FinishBatchTarget("absent", 0, 3, TargetDone, nil, nil, nil)
		mustBe(t, err, ErrNotFound)
		is.Equal(dump(t, d), before)
	})
	t.Run("the last two at once close it once", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for round := range 20 {
			id := fmt.Sprint(round)
			addJob(t, d, id, JobRunning, 1, 100)
			statuses := make([]string, 100)
			together(100, func(i int) {
				if j, err := d.FinishBatchTarget(id, i, 5, TargetDone, bytesOf(i), nil, nil); err == nil {
					statuses[i] = j.Status
				} else {
					t.Error(err)
				}
			})
			is.Equal(strings.Count(strings.Join(statuses, " "), JobDone), 1)
			is.Equal(peek(t, d, id).Status, JobDone)
		}
	})
}

// seq counts to n, up or down.
func seq(n, step int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
		if step < 0 {
			s[i] = n - 1 - i
		}
	}
	return s
}

func TestBatchProgress(t *testing.T) {
	is := is.New(t)
	d := open(t)
	addJob(t, d, "j", JobRunning, 1, 6)
	for idx, status := range []string{TargetRunning, TargetDone, TargetDone, TargetFailed, TargetFailed} {
		is.NoErr(d.UpdateBatchTarget("j", idx, 2, status, str("12"), nil, nil))
	}
	p, ok := d.BatchProgress("j")
	is.True(ok)
	is.Equal(p, Progress{Pending: 1, Running: 1, Done: 2, Failed: 2, NBytes: 10})
	_, ok = d.BatchProgress("absent")
	is.True(!ok)
}

func TestBatchTargetsPage(t *testing.T) {
	is := is.New(t)
	d := open(t)
	addJob(t, d, "j", JobRunning, 1, 0)
	sizes := map[int]int{0: 10, 1: 0, 2: 30, 5: 5, 7: 100, 8: 1, 9: 1} // with gaps
	for idx, size := range sizes {
		is.NoErr(d.PutBatchTargets("j", []BatchTarget{{Idx: idx, Status: TargetDone, Result: bytesOf(size)}}))
	}
	for _, tt := range []struct {
		from, max int
		bytes     int64
		want      string
		next      int
	}{
		{0, 100, math.MaxInt64, "0 1 2 5 7 8 9", -1},
		{0, 7, math.MaxInt64, "0 1 2 5 7 8 9", -1},
		{0, 6, math.MaxInt64, "0 1 2 5 7 8", 9},
		{0, 1, 0, "0", 1}, // at least one, however large
		{0, 100, 0, "0", 1},
		{1, 100, 0, "1", 2}, // the empty one fits, the next does not
		{0, 100, 39, "0 1", 2},
		{0, 100, 40, "0 1 2", 5},
		{3, 100, 5, "5", 7},
		{6, 100, 5, "7", 8}, // one that alone passes the bound
		{8, 100, 2, "8 9", -1},
		{9, 1, 0, "9", -1},
		{10, 5, 5, "", -1},
		{math.MaxInt, 5, 5, "", -1},
		{-5, 2, 100, "0 1", 2},
		{0, 0, 100, "0", 1}, // no page that leads nowhere
		{0, -1, -1, "0", 1},
		{0, math.MaxInt, 10, "0 1", 2},
	} {
		page, next, ok := d.BatchTargetsPage("j", tt.from, tt.max, tt.bytes)
		is.True(ok)
		got := []string{}
		for _, g := range page {
			got = append(got, fmt.Sprint(g.Idx))
			is.Equal(len(*g.Result), sizes[g.Idx])
		}
		t.Log(tt)
		is.Equal(strings.Join(got, " "), tt.want)
		is.Equal(next, tt.next)
	}
	_, next, ok := d.BatchTargetsPage("absent", 0, 1, 1)
	is.True(!ok)
	is.Equal(next, -1)
}
