package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Sample is what one run of a candidate measured.
type Sample struct {
	NsPerOp     float64
	AllocsPerOp float64
}

// Candidate is one way to do a case's work.
type Candidate struct {
	Name string
	Run  func(dir string) (Sample, error) // dir is empty, and removed afterwards
}

// Limit is what a figure has to keep: its ratio at least or at most Value.
type Limit struct {
	AtLeast bool
	Value   float64
}

func atLeast(value float64) Limit { return Limit{AtLeast: true, Value: value} }
func atMost(value float64) Limit  { return Limit{Value: value} }

// Met tells whether a ratio keeps the limit.
func (l Limit) Met(ratio float64) bool {
	if l.AtLeast {
		return ratio >= l.Value
	}
	return ratio <= l.Value
}

func (l Limit) String() string {
	if l.AtLeast {
		return fmt.Sprintf("≥ %g", l.Value)
	}
	return fmt.Sprintf("≤ %g", l.Value)
}

// Comparison sets a case's subject against one other candidate.
type Comparison struct {
	Against int // index of the candidate
	Limit   Limit
	Allocs  bool // compare allocations, not time
}

// Case is one piece of work with the candidates that do it: the first is the subject, the store.
type Case struct {
	Name        string
	Before      func(dir string, progress Progress) error // tunes a candidate; may be nil
	Candidates  []Candidate
	Comparisons []Comparison
	Short       bool // its runs are short, and there are shortRounds times as many
}

// shortRounds: what takes milliseconds is disturbed by anything, and cheap to repeat.
const shortRounds = 5

// Progress is told of each run.
type Progress func(candidate string, s Sample)

// RunCase runs every candidate once in each round. The order turns by one from round to round, so that none profits from its place.
func RunCase(c Case, rounds int, dir string, progress Progress) ([][]Sample, error) {
	if c.Before != nil {
		if err := c.Before(dir, progress); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	if c.Short {
		rounds *= shortRounds
	}
	samples := make([][]Sample, len(c.Candidates))
	for round := range rounds {
		for i := range c.Candidates {
			n := (i + round) % len(c.Candidates)
			s, err := runCandidate(c.Candidates[n], dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", c.Name, c.Candidates[n].Name, err)
			}
			samples[n] = append(samples[n], s)
			progress(c.Candidates[n].Name, s)
		}
	}
	return samples, nil
}

// runCandidate gives a candidate a folder of its own.
func runCandidate(c Candidate, dir string) (s Sample, err error) {
	own, err := os.MkdirTemp(dir, "run-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(own)) }()
	return c.Run(own)
}

// settle gives every candidate the same start: no garbage of the one before, and none of its dirty pages, which the next sync
// would have to write.
func settle() {
	runtime.GC()
	syscall.Sync()
}

// timed measures ops operations that fn does. The label tells the candidates apart in a profile, and leaves out what is not timed.
func timed(candidate string, ops int, fn func() error) (Sample, error) {
	var before, after runtime.MemStats
	settle()
	runtime.ReadMemStats(&before)
	start := time.Now()
	var err error
	pprof.Do(context.Background(), pprof.Labels("candidate", candidate), func(context.Context) { err = fn() })
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return Sample{
		NsPerOp:     float64(took.Nanoseconds()) / float64(ops),
		AllocsPerOp: float64(after.Mallocs-before.Mallocs) / float64(ops),
	}, err
}

// Finishing is the candidate that lets a peer do the work's operations with so many callers.
func Finishing(w *Work, callers int, peer func() Peer) Candidate {
	return Candidate{Name: peer().Name(), Run: func(dir string) (Sample, error) { return finishAll(peer(), w, callers, dir) }}
}

// finishAll fills the peer, times the operations, and checks that they were done before it returns their time.
func finishAll(p Peer, w *Work, callers int, dir string) (s Sample, err error) {
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Prepare(dir, w); err != nil {
		return s, fmt.Errorf("prepare: %w", err)
	}
	s, err = timed(p.Name(), len(w.Ops), func() error {
		if l, ok := p.(Looper); ok {
			return l.Loop()
		}
		return callAll(p, w, callers)
	})
	if err != nil {
		return s, fmt.Errorf("finish: %w", err)
	}
	if err := p.Verify(w); err != nil {
		return s, fmt.Errorf("verify: %w", err)
	}
	return s, nil
}

// callAll lets callers goroutines take one operation after the other until none is left.
func callAll(p Peer, w *Work, callers int) error {
	var next atomic.Int64
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for errs[i] == nil {
				n := next.Add(1) - 1
				if n >= int64(len(w.Ops)) {
					return
				}
				op := w.Ops[n]
				errs[i] = p.Finish(op, time.Now().Unix(), w.Results[op.Result])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

const (
	unitTime   = "µs"
	unitAllocs = "allocations"
)

// Figure is the outcome of a comparison.
type Figure struct {
	Case, Subject, Against string
	Unit                   string // of Ours and Theirs
	Ours, Theirs           float64
	Ratio, Min, Max        float64 // of the medians; of the rounds
	Limit                  Limit
}

// Figures compares the medians. A limit from below is on throughput, one from above on time or allocations.
func Figures(c Case, samples [][]Sample) []Figure {
	var figures []Figure
	for _, cmp := range c.Comparisons {
		value, unit := func(s Sample) float64 { return s.NsPerOp / 1e3 }, unitTime
		if cmp.Allocs {
			value, unit = func(s Sample) float64 { return s.AllocsPerOp }, unitAllocs
		}
		ratio := func(ours, theirs float64) float64 {
			if cmp.Limit.AtLeast {
				return theirs / ours
			}
			return ours / theirs
		}
		var ours, theirs, ratios []float64
		for i, s := range samples[0] {
			ours, theirs = append(ours, value(s)), append(theirs, value(samples[cmp.Against][i]))
			ratios = append(ratios, ratio(ours[i], theirs[i]))
		}
		f := Figure{
			Case: c.Name, Subject: c.Candidates[0].Name, Against: c.Candidates[cmp.Against].Name,
			Unit: unit, Ours: median(ours), Theirs: median(theirs), Min: slices.Min(ratios), Max: slices.Max(ratios), Limit: cmp.Limit,
		}
		f.Ratio = ratio(f.Ours, f.Theirs)
		figures = append(figures, f)
	}
	return figures
}

// median of an odd number of values; of an even one, the upper of the two in the middle.
func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}
