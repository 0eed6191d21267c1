package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// A Peer is a way to store batch jobs. One operation of it is "a target finished": its status and result are written, it is counted
// in its job, the job's lease moves, the byte totals follow; all of it durable, or not, as the peer's name says.
type Peer interface {
	Name() string

	// Prepare makes a fresh file in dir and fills it with the work's jobs, all targets pending. It is not timed.
	Prepare(dir string, w *Work) error

	// Finish is the operation. It is called by many goroutines at once.
	Finish(op Op, now int64, result string) error

	// Verify reads back what is stored, and fails unless it is what the operations of the work lead to.
	Verify(w *Work) error

	// Close gives up the file. It may be called at any time.
	Close() error
}

// A Looper is a peer that runs all operations by itself, in order: the C floor, which must not pay for a call from Go each time.
type Looper interface{ Loop() error }

// Work is what every candidate of a run has to do. It is the same for all: the same operations, begun in the same order.
type Work struct {
	Jobs, Targets int
	JobIDs        []string
	Ops           []Op
	Results       []string
}

// Op is one target to finish: the place of its job, its idx in the job, and the place of its result.
type Op struct{ Job, Idx, Result int }

const (
	resultBytes   = 2048
	resultPool    = 128 // different results: enough that no peer gains by compressing the likeness of neighbours
	targetOptions = `{"render":false,"timeout_ms":15000}`
	caller        = "bench"
)

// NewWork makes jobs of so many targets, and ops operations on them. So many jobs are in progress at once: each operation finishes
// the next target of one of these, drawn with a fixed seed, and a job that is finished gives its place to the next. One at a time
// finishes job after job; all at once leaves hardly two operations near each other.
func NewWork(jobs, targets, ops, live int) *Work {
	w := &Work{Jobs: jobs, Targets: targets}
	random := rand.New(rand.NewPCG(1, 2))
	for range jobs {
		w.JobIDs = append(w.JobIDs, fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64()))
	}
	for range resultPool {
		noise := make([]byte, resultBytes)
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		text := `{"status":200,"body":"` + base64.StdEncoding.EncodeToString(noise)
		w.Results = append(w.Results, text[:resultBytes-2]+`"}`)
	}
	var places []Op // the next operation of each job in progress
	begun := 0
	for ; begun < min(live, jobs); begun++ {
		places = append(places, Op{Job: begun})
	}
	for i := range min(ops, jobs*targets) {
		n := random.IntN(len(places))
		op := &places[n]
		op.Result = i % resultPool
		w.Ops = append(w.Ops, *op)
		if op.Idx++; op.Idx < targets {
			continue
		}
		if begun < jobs {
			*op = Op{Job: begun}
			begun++
		} else {
			places = slices.Delete(places, n, n+1)
		}
	}
	return w
}

// URL is the address of a target, of the same length for all.
func (w *Work) URL(op Op) string { return targetURL(w.JobIDs[op.Job], op.Idx) }

func targetURL(jobID string, idx int) string {
	return fmt.Sprintf("https://www.example.com/catalogue/%s/item-%06d.html", jobID[:8], idx)
}

// JobState is what a peer keeps of a job, as far as the operation changes it.
type JobState struct {
	Done   int
	NBytes int64
	Lease  int64
}

// TargetState is what a peer keeps of a target that the operation changes.
type TargetState struct {
	Status string
	Result string
}

// State is what a peer has stored, read back.
type State struct {
	Jobs    map[string]JobState
	Targets map[string]map[int]TargetState // by job id and idx
	Total   int64                          // bytes of all results, as the peer keeps it
}

// NewState is empty.
func NewState() State {
	return State{Jobs: map[string]JobState{}, Targets: map[string]map[int]TargetState{}}
}

// Put adds a target.
func (s State) Put(jobID string, idx int, t TargetState) {
	if s.Targets[jobID] == nil {
		s.Targets[jobID] = map[int]TargetState{}
	}
	s.Targets[jobID][idx] = t
}

// pending is the status of a target before its operation, done after it.
const (
	pending = "pending"
	done    = "done"
)

var errWrong = errors.New("the work was not done")

// Check compares the state with what the operations of the work lead to: each result whole, each counter exact, no lease left
// behind, and every other target untouched.
func (s State) Check(w *Work) error {
	wantJobs := make([]JobState, w.Jobs)
	for _, op := range w.Ops {
		id := w.JobIDs[op.Job]
		if got := s.Targets[id][op.Idx]; got.Status != done || got.Result != w.Results[op.Result] {
			return fmt.Errorf("%w: target %s/%d is %q with %d bytes of result", errWrong, id, op.Idx, got.Status, len(got.Result))
		}
		wantJobs[op.Job].Done++
		wantJobs[op.Job].NBytes += resultBytes
	}
	for i, want := range wantJobs {
		id := w.JobIDs[i]
		got, ok := s.Jobs[id]
		if touched := got.Lease > filledAt; !ok || got.Done != want.Done || got.NBytes != want.NBytes || touched != (want.Done > 0) {
			return fmt.Errorf("%w: job %s is %+v, not %+v", errWrong, id, got, want)
		}
		finished := 0
		for _, t := range s.Targets[id] {
			if t.Status == done {
				finished++
			}
		}
		if len(s.Targets[id]) != w.Targets || finished != want.Done {
			return fmt.Errorf("%w: job %s has %d targets, %d done", errWrong, id, len(s.Targets[id]), finished)
		}
	}
	if want := int64(len(w.Ops)) * resultBytes; s.Total != want {
		return fmt.Errorf("%w: total is %d bytes, not %d", errWrong, s.Total, want)
	}
	return nil
}

// filledAt is the lease of every job before its first operation: a second long ago, so that the first one moves it.
const filledAt int64 = 1_700_000_000
