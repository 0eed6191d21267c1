package main

import (
	"dcache/internal/dcache"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// report is what a run has shown.
type report struct {
	Batches, Targets          int
	JobStatus, TargetStatus   map[string]int
	ResultBytes, ContentBytes int64
	KilledAt                  int // results acknowledged when the service was killed
	Survived                  int // finished targets that its next life found
	ResumedJobs, ResumedOpen  int
	Lost                      int
	Seconds                   float64
	WritesPerSecond, Group    float64
	Latencies                 []latency
	HitRates                  map[string]string
	Swept, Evicted, JobsLeft  int
	Budget, BytesAfter        int64
	PeakWAL, FileBytes        int64
	Audit                     string
	Disagreements             []string
}

type latency struct {
	Call     string
	Count    int
	P50, P99 time.Duration
}

var calls = []string{
	"SubmitBatch", "UpdateBatchTarget", "FinishBatchTarget", "Put", "Get", "BatchJob", "BatchProgress", "BatchTargetsPage",
	"SweepBatch", "EvictBatchOldest",
}

func newReport(l *ledger, batches []batch, killedAt int) *report {
	r := &report{
		Batches: len(batches), Targets: len(l.expected), JobStatus: map[string]int{}, TargetStatus: map[string]int{},
		ContentBytes: l.content, KilledAt: killedAt, Survived: len(l.survived),
		ResumedJobs: l.resumed.Jobs, ResumedOpen: l.resumed.Open, HitRates: map[string]string{},
	}
	for _, f := range l.stored {
		r.TargetStatus[f.Status]++
		r.ResultBytes += int64(max(f.Len, 0))
	}
	var spent time.Duration
	var ops, txs int64
	for life, s := range l.stats {
		spent += l.spent[life]
		ops += s.Operations
		txs += s.Transactions
	}
	r.PeakWAL = l.peakWAL
	r.Seconds = spent.Seconds()
	r.WritesPerSecond = float64(ops) / spent.Seconds()
	r.Group = float64(ops) / float64(max(txs, 1))
	for _, c := range calls {
		r.Latencies = append(r.Latencies, l.latencies(c))
	}
	r.hitRates(l.stats)
	if e := l.end; e != nil {
		for _, status := range e.JobStatus {
			r.JobStatus[status]++
		}
		r.Swept, r.Evicted, r.JobsLeft, r.Budget, r.BytesAfter = e.Swept, e.Evicted, len(e.Left), e.Budget, e.BytesAfter
		r.FileBytes, r.Audit = e.FileBytes, e.Audit
	}
	r.compare(l)
	return r
}

func (r *report) hitRates(lives [2]dcache.Stats) {
	rate := func(name string, counts func(dcache.Stats) (hits, misses int64)) {
		var hits, all int64
		for _, s := range lives {
			h, m := counts(s)
			hits, all = hits+h, all+h+m
		}
		if all > 0 {
			r.HitRates[name] = fmt.Sprintf("%.1f %% of %d", 100*float64(hits)/float64(all), all)
		}
	}
	rate("content", func(s dcache.Stats) (int64, int64) { return s.ContentH, s.ContentM })
	rate("job", func(s dcache.Stats) (int64, int64) { return s.BatchJobH, s.BatchJobM })
	rate("idempotency key", func(s dcache.Stats) (int64, int64) { return s.BatchIDemH, s.BatchIDemM })
	rate("targets", func(s dcache.Stats) (int64, int64) { return s.BatchTargetsH, s.BatchTargetsM })
}

// compare holds what the store says against what is known from outside.
func (r *report) compare(l *ledger) {
	disagree := func(format string, args ...any) {
		if r.Disagreements = append(r.Disagreements, fmt.Sprintf(format, args...)); len(r.Disagreements) > 20 {
			r.Disagreements = append(r.Disagreements[:20], "and more")
		}
	}
	equal := func(what string, got, want int64) {
		if got != want {
			disagree("%s: %d, not %d", what, got, want)
		}
	}
	// By the end the second life would have fetched again, and so hidden, what the kill lost.
	for at, f := range l.before {
		if l.survived[at] != f {
			r.Lost++
			disagree("%s/%d: acknowledged as %v, after the kill it was %v", at.Job, at.Idx, f, l.survived[at])
		}
	}
	equal("results acknowledged twice", int64(l.again), 0)
	for at, f := range l.acked {
		if l.stored[at] != f {
			disagree("%s/%d: acknowledged as %v, at the end it is %v", at.Job, at.Idx, f, l.stored[at])
		}
	}
	var bytes int64
	for at, f := range l.expected {
		bytes += int64(max(f.Len, 0))
		if l.stored[at] != f {
			disagree("%s/%d: the file gives %v, stored is %v", at.Job, at.Idx, f, l.stored[at])
		}
	}
	for job := range l.created[0] {
		if !l.resumed.Known[job] || l.created[1][job] {
			disagree("job %s: its submit was acknowledged, after the kill it was gone", job)
		}
	}
	equal("targets stored", int64(len(l.stored)), int64(len(l.expected)))
	equal("targets that survived the kill and those resumed", int64(len(l.survived)+l.resumed.Open+notSubmitted(l)), int64(len(l.expected)))
	if len(l.survived) < r.KilledAt {
		disagree("%d results were acknowledged before the kill, %d have survived it", r.KilledAt, len(l.survived))
	}
	e := l.end
	if e == nil {
		disagree("the service did not come to its end")
		return
	}
	equal("bytes of results", e.BatchBytes, bytes)
	equal("bytes of content", e.ContentBytes, l.content)
	equal("jobs", int64(len(e.JobStatus)), int64(len(l.targets)))
	for job, want := range jobOutcomes(l) {
		if e.JobStatus[job] != want {
			disagree("job %s is %q, not %q", job, e.JobStatus[job], want)
		}
	}
	r.compareCleared(l, disagree)
	if e.Audit != "passed" {
		disagree("audit: %s", e.Audit)
	}
	equal("bytes of the WAL after Close", e.WALBytes, 0)
}

// compareCleared holds what the sweep and the eviction left against the sizes of the results.
func (r *report) compareCleared(l *ledger, disagree func(string, ...any)) {
	e := l.end
	byJob := map[string]int64{}
	for at, f := range l.expected {
		byJob[at.Job] += int64(max(f.Len, 0))
	}
	if e.Swept != len(e.Expired) || len(e.Left) != len(l.targets)-e.Swept-e.Evicted {
		disagree("of %d jobs %d were to be swept; swept %d, evicted %d, left %d", len(l.targets), len(e.Expired), e.Swept, e.Evicted, len(e.Left))
	}
	var left, largest int64
	for job, n := range byJob {
		switch {
		case slices.Contains(e.Left, job):
			left += n
		case !slices.Contains(e.Expired, job):
			largest = max(largest, n)
		}
	}
	if left != e.BytesAfter || left != e.BytesReopened {
		disagree("the jobs left have %d bytes; the store says %d, and %d when it is opened again", left, e.BytesAfter, e.BytesReopened)
	}
	if left > e.Budget {
		disagree("after the eviction %d bytes are left, the budget is %d", left, e.Budget)
	}
	if e.Evicted > 0 && left+largest <= e.Budget {
		disagree("evicted down to %d bytes, with a budget of %d: the last job of at most %d bytes could have stayed", left, e.Budget, largest)
	}
}

// notSubmitted counts the targets of the batches that the first life did not come to.
func notSubmitted(l *ledger) int {
	n := 0
	for job, targets := range l.targets {
		if !l.resumed.Known[job] {
			n += targets
		}
	}
	return n
}

func jobOutcomes(l *ledger) map[string]string {
	done, failed := map[string]int{}, map[string]int{}
	for at, f := range l.expected {
		if f.Status == dcache.TargetDone {
			done[at.Job]++
		} else {
			failed[at.Job]++
		}
	}
	outcomes := map[string]string{}
	for job, n := range l.targets {
		switch n {
		case done[job]:
			outcomes[job] = dcache.JobDone
		case failed[job]:
			outcomes[job] = dcache.JobFailed
		default:
			outcomes[job] = dcache.JobPartial
		}
	}
	return outcomes
}

// print writes the report as tables.
func (r *report) print(w io.Writer) {
	t := newTable(w, "dcache replay")
	t.AppendRow(table.Row{"jobs", fmt.Sprintf("%d: %s", r.Batches, counts(r.JobStatus))})
	t.AppendRow(table.Row{"targets", fmt.Sprintf("%d: %s", r.Targets, counts(r.TargetStatus))})
	t.AppendRow(table.Row{"bytes", fmt.Sprintf("%s of results, %s of content", size(r.ResultBytes), size(r.ContentBytes))})
	t.AppendRow(table.Row{"killed", fmt.Sprintf("after %d acknowledged results; %d survived, %d targets of %d jobs resumed, %d lost",
		r.KilledAt, r.Survived, r.ResumedOpen, r.ResumedJobs, r.Lost)})
	t.AppendRow(table.Row{"writes", fmt.Sprintf("%.0f a second for %.1f s, each on disk before it was acknowledged; %.1f to a commit", r.WritesPerSecond, r.Seconds, r.Group)})
	t.AppendRow(table.Row{"hits", hits(r.HitRates)})
	t.AppendRow(table.Row{"cleared", fmt.Sprintf("%d jobs swept, %d evicted to fit %s; %d left with %s", r.Swept, r.Evicted, size(r.Budget), r.JobsLeft, size(r.BytesAfter))})
	t.AppendRow(table.Row{"file", fmt.Sprintf("%s at the end; WAL at work up to %s, at the end 0", size(r.FileBytes), size(r.PeakWAL))})
	t.AppendRow(table.Row{"audit", r.Audit})
	t.Render()
	c := newTable(w, "")
	c.AppendHeader(table.Row{"call", "count", "p50", "p99"})
	for _, l := range r.Latencies {
		c.AppendRow(table.Row{l.Call, l.Count, round(l.P50), round(l.P99)})
	}
	c.SetColumnConfigs([]table.ColumnConfig{{Number: 2, Align: text.AlignRight}, {Number: 3, Align: text.AlignRight}, {Number: 4, Align: text.AlignRight}})
	c.Render()
	for _, d := range r.Disagreements {
		fmt.Fprintln(w, "DISAGREES:", d)
	}
	if len(r.Disagreements) == 0 {
		fmt.Fprintln(w, "Every number that can be known from outside agrees.")
	}
}

func newTable(w io.Writer, title string) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleRounded)
	if title != "" {
		t.SetTitle(title)
	}
	return t
}

func counts(m map[string]int) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, fmt.Sprintf("%d %s", m[k], k))
	}
	return strings.Join(s, ", ")
}

func hits(m map[string]string) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, k+" "+m[k])
	}
	return strings.Join(s, "\n")
}

func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func round(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}
