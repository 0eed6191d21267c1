package main

import (
	"dcache/internal/dcache"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// event is what the service tells the supervisor, one JSON line each, after the call has returned.
type event struct {
	Call  string          `json:",omitempty"` // the method that was called, and how long it took
	Took  time.Duration   `json:",omitempty"`
	Job   string          `json:",omitempty"`
	Idx   int             `json:",omitempty"`
	Found *found          `json:",omitempty"` // of FinishBatchTarget what was stored, of a listing what is there
	State string          `json:",omitempty"` // resumed, worked, listed, ended
	Open  int             `json:",omitempty"` // of resumed: targets to fetch again
	Jobs  int             `json:",omitempty"` // of resumed: in so many jobs
	Known map[string]bool `json:",omitempty"` // of resumed: the jobs that are there
	Stats *dcache.Stats   `json:",omitempty"`
	End   *end            `json:",omitempty"`
}

// found is a target as the store has it, its result by length and digest.
type found struct {
	Status string
	Len    int
	Digest string
}

// end is what the last life of the service reports of its clearing up.
type end struct {
	JobStatus                map[string]string
	BatchBytes, ContentBytes int64 // before it
	Expired                  []string
	Swept, Evicted           int
	Left                     []string
	BytesReopened            int64
	Budget, BytesAfter       int64
	FileBytes, WALBytes      int64 // after Close
	Audit                    string
}

type service struct {
	config
	d       *dcache.DB
	batches map[string]*batch
	order   []string
	out     sync.Mutex
	enc     *json.Encoder
	put     atomic.Int64 // bodies put so far: readers take the keys of these
	keys    sync.Map     // by number: what was put
	err     atomic.Pointer[error]
}

type contentKey struct{ class, key string }

func (s *service) emit(e event) {
	s.out.Lock()
	defer s.out.Unlock()
	if err := s.enc.Encode(e); err != nil {
		s.fail(err)
	}
}

// fail remembers the first error, which ends the work.
func (s *service) fail(err error) {
	if err != nil {
		s.err.CompareAndSwap(nil, &err)
	}
}

// timed reports how long a call took.
func (s *service) timed(call string, fn func()) {
	began := time.Now()
	fn()
	s.emit(event{Call: call, Took: time.Since(began)})
}

// serve is a life of the service. The first waits to be killed when it has nothing left to do; the second sees it through.
func serve(c config) error {
	batches, err := load(c)
	if err != nil {
		return err
	}
	d, err := dcache.Open(c.DB, 0)
	if err != nil {
		return err
	}
	s := &service{config: c, d: d, batches: map[string]*batch{}, enc: json.NewEncoder(os.Stdout)}
	for i := range batches {
		s.batches[batches[i].ID] = &batches[i]
		s.order = append(s.order, batches[i].ID)
	}
	if err := s.work(); err != nil {
		return errors.Join(err, d.Close())
	}
	if !c.Resume {
		_, err := io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, d.Close())
	}
	return s.finish()
}

// work submits, fetches and serves readers until every job has ended.
func (s *service) work() error {
	ids, err := s.d.RequeueInFlight(now())
	if err != nil {
		return err
	}
	if s.Resume {
		if err := s.list(); err != nil { // what has survived, before anything is added to it
			return err
		}
		open := 0
		for _, id := range ids {
			p, _ := s.d.BatchProgress(id)
			open += p.Pending
		}
		known := map[string]bool{}
		for _, id := range s.order {
			_, known[id] = s.d.PeekBatchJob(id)
		}
		s.emit(event{State: "resumed", Jobs: len(ids), Open: open, Known: known})
	}
	tasks := make(chan task)
	var workers, readers sync.WaitGroup
	for range s.Workers {
		workers.Go(func() {
			for t := range tasks {
				s.fetch(t)
			}
		})
	}
	done := make(chan struct{})
	for n := range 4 {
		readers.Go(func() { s.read(n, done) })
	}
	s.submitAll()
	s.feed(tasks)
	close(tasks)
	workers.Wait()
	close(done)
	readers.Wait()
	if err := s.err.Load(); err != nil {
		return *err
	}
	stats := s.d.Stats()
	s.emit(event{State: "worked", Stats: &stats})
	return nil
}

type task struct {
	b   *batch
	idx int
}

// submitAll lets eight clients submit the batches, each waiting for its turn.
func (s *service) submitAll() {
	turn := make(chan *batch)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for b := range turn {
				s.fail(s.submit(b))
			}
		})
	}
	for _, id := range s.order {
		turn <- s.batches[id]
	}
	close(turn)
	clients.Wait()
}

// feed hands out the open targets of every job.
func (s *service) feed(tasks chan<- task) {
	for _, id := range s.order {
		b := s.batches[id]
		if s.err.Load() != nil {
			return
		}
		if j, ok := s.d.PeekBatchJob(id); !ok || j.Status != dcache.JobQueued {
			continue // ended before the kill
		}
		s.fail(s.d.SetBatchJobStatus(id, dcache.JobRunning, "", now()))
		for from := 0; from >= 0; {
			page, next, ok := s.d.BatchTargetsPage(id, from, 1000, 1<<20)
			if !ok {
				s.fail(fmt.Errorf("job %s is gone", id))
				return
			}
			for _, t := range page {
				if t.Status == dcache.TargetPending {
					tasks <- task{b, t.Idx}
				}
			}
			from = next
		}
	}
}

const ttl = 24 * time.Hour

// submit is a client that submits, hears nothing, and submits again; and one that takes the key for something else.
func (s *service) submit(b *batch) error {
	for _, retry := range []string{"", "-retry"} {
		job := b.job()
		job.ID += retry // a client that has heard nothing makes a new id
		var id string
		var created bool
		var err error
		s.timed("SubmitBatch", func() { id, created, err = s.d.SubmitBatch(job, b.rows(), now(), ttl) })
		if err != nil {
			return err
		}
		if id != b.ID {
			return fmt.Errorf("submit of %s gave %s", b.ID, id)
		}
		if created {
			s.emit(event{Call: "created", Job: id})
		}
	}
	other := b.rows()
	other[0].URL += "?changed"
	job := b.job()
	job.ID += "-again"
	if id, _, err := s.d.SubmitBatch(job, other, now(), ttl); !errors.Is(err, dcache.ErrConflict) || id != b.ID {
		return fmt.Errorf("submit of other targets under the key of %s gave %q, %w", b.ID, id, err)
	}
	return nil
}

// fetch is what the runner does with one target.
func (s *service) fetch(t task) {
	if s.err.Load() != nil {
		return
	}
	id, g := t.b.ID, t.b.Targets[t.idx]
	s.timed("UpdateBatchTarget", func() {
		s.fail(s.d.UpdateBatchTarget(id, t.idx, now(), dcache.TargetRunning, nil, nil, nil))
	})
	o, err := g.fetch()
	if err != nil {
		s.fail(err)
		return
	}
	if o.Body != nil {
		s.timed("Put", func() {
			_, err := s.d.Put(t.b.Class, g.URL, o.Body, now())
			s.fail(err)
		})
		s.keys.Store(s.put.Load(), contentKey{t.b.Class, g.URL})
		s.put.Add(1)
	}
	began := time.Now()
	_, err = s.d.FinishBatchTarget(id, t.idx, now(), o.Status, o.Result, o.Error, o.Hint)
	if err != nil {
		s.fail(err)
		return
	}
	f := describe(o.Status, o.Result)
	s.emit(event{Call: "FinishBatchTarget", Took: time.Since(began), Job: id, Idx: t.idx, Found: &f})
}

func describe(status string, result *string) found {
	if result == nil {
		return found{Status: status, Len: -1}
	}
	return found{Status: status, Len: len(*result), Digest: digest([]byte(*result))}
}

// read is a client that polls jobs, pages through their results, and gets content, known and unknown.
func (s *service) read(n int, done <-chan struct{}) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	from := 0
	for i := n; ; i++ {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		id := s.order[i/8%len(s.order)]
		s.timed("BatchJob", func() { s.d.BatchJob(id) })
		s.timed("BatchProgress", func() { s.d.BatchProgress(id) })
		s.timed("BatchTargetsPage", func() { _, from, _ = s.d.BatchTargetsPage(id, max(from, 0), 50, 256<<10) })
		if k, ok := s.keys.Load(s.put.Load() * int64(i%7) / 7); ok {
			key := k.(contentKey)
			s.timed("Get", func() { s.d.Get(key.class, key.key, now()) })
		}
		if i%10 == 0 {
			s.timed("Get", func() { s.d.Get(dcache.ClassFleet, "never put", now()) })
		}
		if n == 0 && i%20 == 0 {
			stats := s.d.Stats()
			s.emit(event{Stats: &stats})
		}
	}
}

// list tells the supervisor every finished target, as the store has it.
func (s *service) list() error {
	for _, id := range s.order {
		for from := 0; from >= 0; {
			page, next, ok := s.d.BatchTargetsPage(id, from, 1000, 4<<20)
			if !ok {
				break // not submitted yet, which the supervisor knows
			}
			for _, t := range page {
				if t.Status == dcache.TargetDone || t.Status == dcache.TargetFailed {
					f := describe(t.Status, t.Result)
					s.emit(event{Job: id, Idx: t.Idx, Found: &f})
				}
			}
			from = next
		}
	}
	s.emit(event{State: "listed"})
	return nil
}

// finish reads everything back, sweeps, evicts, closes, and audits the file anew.
func (s *service) finish() error {
	if err := s.list(); err != nil {
		return err
	}
	e := end{JobStatus: map[string]string{}, BatchBytes: s.d.BatchNbytes(), ContentBytes: s.d.Size(), Budget: s.Budget}
	for after, more := (dcache.Cursor{}), true; more; more = after != (dcache.Cursor{}) {
		jobs, next, err := s.d.ListBatchJobs("", after, 100)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			e.JobStatus[j.ID] = j.Status
		}
		after = next
	}
	// A tenth of the jobs have not been asked for in a long time.
	for _, id := range slices.Collect(everyTenth(s.order)) {
		if err := s.d.TouchBatchJob(id, now()-int64(2*ttl/time.Second)); err != nil {
			return err
		}
		e.Expired = append(e.Expired, id)
	}
	s.timed("SweepBatch", func() { e.Swept = s.d.SweepBatch(now(), ttl) })
	if e.Budget == 0 {
		e.Budget = e.BatchBytes / 2
	}
	s.timed("EvictBatchOldest", func() { e.Evicted = s.d.EvictBatchOldest(e.Budget) })
	e.BytesAfter = s.d.BatchNbytes()
	for _, id := range s.order {
		if _, ok := s.d.PeekBatchJob(id); ok {
			e.Left = append(e.Left, id)
		}
	}
	stats := s.d.Stats()
	s.emit(event{Stats: &stats})
	if err := s.d.Close(); err != nil {
		return err
	}
	if wal, err := os.Stat(s.DB + "-wal"); err == nil {
		e.WALBytes = wal.Size()
	}
	again, err := dcache.Open(s.DB, 0)
	if err != nil {
		return err
	}
	e.Audit = "passed"
	if err := again.Check(); err != nil {
		e.Audit = err.Error()
	}
	e.FileBytes, e.BytesReopened = again.Stats().FileBytes, again.BatchNbytes()
	s.emit(event{State: "ended", End: &e})
	return again.Close()
}

func everyTenth(ids []string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for i := 0; i < len(ids); i += 10 {
			if !yield(ids[i]) {
				return
			}
		}
	}
}

func now() int64 { return time.Now().Unix() }
