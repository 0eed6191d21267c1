package dcache

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	modelOps  = flag.Int("model.ops", 20_000, "operations of TestModel, for each seed")
	modelSeed = flag.Uint64("model.seed", 0, "the one seed of TestModel; 0 is a fixed few and a new one")
)

// model is the store as one would explain it: maps, and no thought of speed.
type model struct {
	jobs    map[string]*modelJob
	entries map[[2]string]*modelEntry // by class and key
	puts    int                       // orders entries that were put in one second
	wall    int64                     // what the clock says
}

type modelJob struct {
	BatchJob
	targets map[int]BatchTarget
}

type modelEntry struct {
	body string
	used int64
	put  int
}

const modelMaxBytes = 300 // of content

func newModel() *model {
	return &model{jobs: map[string]*modelJob{}, entries: map[[2]string]*modelEntry{}}
}

// recount computes a job's counters from its targets.
func (j *modelJob) recount() {
	j.TargetsDone, j.NBytes = 0, 0
	for _, g := range j.targets {
		bytes, finished := weight(g.Status, g.Result)
		j.NBytes += bytes
		j.TargetsDone += finished
	}
}

func (j *modelJob) progress() (p Progress) {
	for _, g := range j.targets {
		p.add(g.Status, 1)
	}
	p.NBytes = j.NBytes
	return p
}

func (j *modelJob) sorted() []BatchTarget {
	return slices.SortedFunc(maps.Values(j.targets), func(a, b BatchTarget) int { return a.Idx - b.Idx })
}

func (m *model) create(j BatchJob) error {
	if m.jobs[j.ID] != nil {
		return ErrExists
	}
	m.jobs[j.ID] = &modelJob{j, map[int]BatchTarget{}}
	return nil
}

func (m *model) put(id string, targets []BatchTarget) error {
	seen := map[int]bool{}
	for _, g := range targets {
		if seen[g.Idx] {
			return ErrInvalid
		}
		seen[g.Idx] = true
	}
	j := m.jobs[id]
	if j == nil {
		return ErrNotFound
	}
	for _, g := range targets {
		if _, ok := j.targets[g.Idx]; ok {
			return ErrExists
		}
	}
	for _, g := range targets {
		g.JobID = id
		j.targets[g.Idx] = g
	}
	j.recount()
	return nil
}

func (m *model) byKey(caller, key string, now, ttl int64) *modelJob {
	var found *modelJob
	for _, j := range m.jobs {
		if key == "" || j.Caller != caller || j.IDemKey != key || j.Lease+ttl <= now {
			continue
		}
		if found == nil || cmp.Or(cmp.Compare(j.Lease, found.Lease), cmp.Compare(j.CreatedAt, found.CreatedAt), cmp.Compare(j.ID, found.ID)) > 0 {
			found = j
		}
	}
	return found
}

func (m *model) submit(j BatchJob, targets []BatchTarget, now, ttl int64) (string, bool, error) {
	if len(targets) == 0 {
		return "", false, ErrInvalid
	}
	if old := m.byKey(j.Caller, j.IDemKey, now, ttl); old != nil {
		same := slices.EqualFunc(old.sorted(), targets, func(a, b BatchTarget) bool {
			return a.Idx == b.Idx && a.URL == b.URL && a.Options == b.Options
		})
		if !same {
			return old.ID, false, ErrConflict
		}
		old.Lease = now
		return old.ID, false, nil
	}
	j.CreatedAt, j.Lease, j.TargetsTotal = now, now, len(targets)
	if err := m.create(j); err != nil {
		return "", false, err
	}
	err := m.put(j.ID, targets)
	if p := m.jobs[j.ID].progress(); p.open() == 0 {
		m.jobs[j.ID].Status = p.outcome()
	}
	return j.ID, true, err
}

func (m *model) update(id string, idx int, now int64, status string, result, errMsg, hint *string) error {
	j := m.jobs[id]
	if j == nil {
		return ErrNotFound
	}
	g, ok := j.targets[idx]
	if !ok {
		return ErrNotFound
	}
	g.Status, g.Result, g.Error, g.Hint = status, result, errMsg, hint
	j.targets[idx] = g
	j.Lease = now
	j.recount()
	return nil
}

func (m *model) finish(id string, idx int, now int64, status string, result, errMsg, hint *string) (BatchJob, error) {
	j := m.jobs[id]
	if j == nil {
		return BatchJob{}, ErrNotFound
	}
	if !j.live() {
		return BatchJob{}, ErrNotLive
	}
	if err := m.update(id, idx, now, status, result, errMsg, hint); err != nil {
		return BatchJob{}, err
	}
	if p := j.progress(); p.open() == 0 {
		j.Status = p.outcome()
	}
	return j.BatchJob, nil
}

func (m *model) cancel(id, reason string, now int64) error {
	j := m.jobs[id]
	if j == nil {
		return ErrNotFound
	}
	if !j.live() {
		return ErrNotLive
	}
	for idx, g := range j.targets {
		if !terminalTarget(g.Status) {
			g.Status, g.Error = TargetFailed, &reason
			j.targets[idx] = g
		}
	}
	j.Status, j.Error, j.Lease = JobCancelled, reason, now
	j.recount()
	return nil
}

func (m *model) requeue(now int64) []string {
	ids := []string{}
	live := slices.SortedFunc(maps.Values(m.jobs), func(a, b *modelJob) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, j := range live {
		if !j.live() {
			continue
		}
		j.Lease = now
		switch p := j.progress(); {
		case len(j.targets) == 0:
			j.Status, j.Error = JobFailed, "the job has no targets"
		case p.open() == 0:
			j.Status = p.outcome()
		default:
			j.Status = JobQueued
			ids = append(ids, j.ID)
			for idx, g := range j.targets {
				if g.Status == TargetRunning {
					g.Status = TargetPending
					j.targets[idx] = g
				}
			}
		}
	}
	return ids
}

func (m *model) evict(maxBytes int64) (n int) {
	oldest := slices.SortedFunc(maps.Values(m.jobs), func(a, b *modelJob) int {
		return cmp.Or(cmp.Compare(a.Lease, b.Lease), cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, j := range oldest {
		if m.nbytes() > maxBytes && !j.live() && j.NBytes > 0 {
			delete(m.jobs, j.ID)
			n++
		}
	}
	return n
}

func (m *model) nbytes() (n int64) {
	for _, j := range m.jobs {
		n += j.NBytes
	}
	return n
}

func (m *model) live(caller string) (n int) {
	for _, j := range m.jobs {
		if j.live() && (caller == "*" || j.Caller == caller) {
			n++
		}
	}
	return n
}

func (m *model) size() (n int64) {
	seen := map[string]bool{}
	for _, e := range m.entries {
		if !seen[e.body] {
			n += int64(len(e.body))
		}
		seen[e.body] = true
	}
	return n
}

func (m *model) putContent(class, key, body string, now int64) error {
	if len(body) > modelMaxBytes {
		return ErrTooLarge
	}
	m.puts++
	m.entries[[2]string{class, key}] = &modelEntry{body, now, m.puts}
	for m.size() > modelMaxBytes {
		var first [2]string
		for k, e := range m.entries {
			f := m.entries[first]
			if f == nil || cmp.Or(cmp.Compare(e.used, f.used), cmp.Compare(e.put, f.put)) < 0 {
				first = k
			}
		}
		delete(m.entries, first)
	}
	return nil
}

func (m *model) get(class, key string, now int64) (string, bool) {
	e := m.entries[[2]string{class, key}]
	if e == nil {
		return "", false
	}
	if now-e.used >= usePrecision || e.used-now >= usePrecision {
		e.used = now
	}
	return e.body, true
}

// twin runs operations over a store and its model, and compares what they return and what they hold.
type twin struct {
	t  testing.TB
	d  *DB
	m  *model
	in *source
}

// source decodes operations from bytes. It is endless: a fuzzer's bytes end, a seed's do not.
type source struct {
	bytes []byte
	rand  *rand.Rand
}

func (s *source) done() bool { return s.rand == nil && len(s.bytes) == 0 }

// below decodes a number from 0 to n-1, n at most 256.
func (s *source) below(n int) int {
	if s.rand != nil {
		return s.rand.IntN(n)
	}
	if len(s.bytes) == 0 {
		return 0
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	return int(b) % n
}

func pick[T any](s *source, from ...T) T { return from[s.below(len(from))] }

func (w *twin) id() string     { return pick(w.in, "a", "A", "b", "c", "d'e", "f ", "f") }
func (w *twin) caller() string { return pick(w.in, "c", "C", "") }
func (w *twin) key() string    { return pick(w.in, "", "k", "K") }
func (w *twin) time() int64    { return int64(w.in.below(200)) }

func (w *twin) text() *string {
	if w.in.below(3) == 0 {
		return nil
	}
	s := strings.Repeat(pick(w.in, "x", "é", "\x00", "\xff"), w.in.below(40))
	return &s
}

func (w *twin) status() string {
	return pick(w.in, TargetPending, TargetRunning, TargetDone, TargetFailed)
}

func (w *twin) jobStatus() string {
	return pick(w.in, JobQueued, JobRunning, JobDone, JobPartial, JobFailed, JobCancelled)
}

func (w *twin) targets() []BatchTarget {
	targets := make([]BatchTarget, w.in.below(5))
	for i := range targets {
		targets[i] = BatchTarget{Idx: i, URL: pick(w.in, "u", "v"), Options: "{}", Status: w.status(), Result: w.text()}
		if w.in.below(16) == 0 {
			targets[i].Idx = w.in.below(6)
		}
	}
	return targets
}

// equal compares what the store and the model have returned.
func (w *twin) equal(op string, got, want any) {
	w.t.Helper()
	if !reflect.DeepEqual(got, want) {
		w.t.Fatalf("%s: got %+v, want %+v", op, got, want)
	}
}

func (w *twin) sameError(op string, got, want error) {
	w.t.Helper()
	if !errors.Is(got, want) || (want == nil) != (got == nil) {
		w.t.Fatalf("%s: got error %v, want %v", op, got, want)
	}
}

// step runs one operation, and compares the job that it was about and the totals.
func (w *twin) step() {
	w.t.Helper()
	d, m, id, now := w.d, w.m, w.id(), w.time()
	switch op := w.in.below(24); op {
	case 0:
		j := BatchJob{
			ID: id, Caller: w.caller(), CallerClass: pick(w.in, ClassFleet, ClassRestricted, ""), IDemKey: w.key(),
			Status: w.jobStatus(), TargetsTotal: w.in.below(9), CreatedAt: w.time(), Lease: now,
		}
		w.sameError("create", d.CreateBatchJob(j), m.create(j))
	case 1:
		targets := w.targets()
		w.sameError("put", d.PutBatchTargets(id, targets), m.put(id, targets))
	case 2, 3:
		j := BatchJob{ID: id, Caller: w.caller(), IDemKey: w.key(), Status: pick(w.in, JobQueued, JobRunning)}
		targets, ttl := w.targets(), w.time()
		for i := range targets {
			targets[i].Idx = i
		}
		gotID, gotNew, got := d.SubmitBatch(j, targets, now, time.Duration(ttl)*time.Second)
		wantID, wantNew, want := m.submit(j, targets, now, ttl)
		w.sameError("submit", got, want)
		w.equal("submit", []any{gotID, gotNew}, []any{wantID, wantNew})
	case 4, 5, 6:
		idx, status, result, errMsg, hint := w.in.below(5), w.status(), w.text(), w.text(), w.text()
		w.sameError("update", d.UpdateBatchTarget(id, idx, now, status, result, errMsg, hint), m.update(id, idx, now, status, result, errMsg, hint))
	case 7, 8, 9, 10:
		idx, status, result, errMsg, hint := w.in.below(5), pick(w.in, TargetDone, TargetFailed), w.text(), w.text(), w.text()
		got, gotErr := d.FinishBatchTarget(id, idx, now, status, result, errMsg, hint)
		want, wantErr := m.finish(id, idx, now, status, result, errMsg, hint)
		w.sameError("finish", gotErr, wantErr)
		w.equal("finish", got, want)
	case 11:
		status := w.jobStatus()
		want := ErrNotFound
		if j := m.jobs[id]; j != nil {
			j.Status, j.Error, j.Lease, want = status, "e", now, nil
		}
		w.sameError("set status", d.SetBatchJobStatus(id, status, "e", now), want)
	case 12:
		want := ErrNotFound
		if j := m.jobs[id]; j != nil {
			j.Lease, want = now, nil
		}
		w.sameError("touch", d.TouchBatchJob(id, now), want)
	case 13:
		m.wall = now
		var want BatchJob
		if j := m.jobs[id]; j != nil {
			want, j.Lease = j.BatchJob, now
		}
		got, ok := d.BatchJob(id)
		w.equal("read", []any{got, ok}, []any{want, want.ID != ""})
	case 14:
		ttl, n := int64(w.in.below(200)), 0
		for _, j := range m.jobs {
			if j.Lease+ttl <= now {
				delete(m.jobs, j.ID)
				n++
			}
		}
		w.equal("sweep", d.SweepBatch(now, time.Duration(ttl)*time.Second), n)
	case 15:
		maxBytes := int64(w.in.below(256))
		w.equal("evict", d.EvictBatchOldest(maxBytes), m.evict(maxBytes))
	case 16:
		n := 0
		for _, j := range m.jobs {
			if j.live() {
				j.Status, j.Error, j.Lease = JobFailed, "restart", now
				n++
			}
		}
		w.equal("mark failed", d.MarkInFlightFailed("restart", now), n)
	case 17:
		got, err := d.RequeueInFlight(now)
		w.sameError("requeue", err, nil)
		w.equal("requeue", got, m.requeue(now))
	case 18:
		w.sameError("cancel", d.CancelBatchJob(id, "why", now), m.cancel(id, "why", now))
	case 19:
		want := ErrNotFound
		if m.jobs[id] != nil {
			want = nil
		}
		delete(m.jobs, id)
		w.sameError("delete", d.DeleteBatchJob(id), want)
	case 20:
		caller, key, ttl := w.caller(), w.key(), w.time()
		want := ""
		if j := m.byKey(caller, key, now, ttl); j != nil {
			want = j.ID
		}
		got, _ := d.BatchJobByIDem(caller, key, now, time.Duration(ttl)*time.Second)
		w.equal("by key", got, want)
	case 21:
		w.page(id)
	case 22:
		class, key, body := pick(w.in, ClassFleet, ClassRestricted), w.key(), strings.Repeat(w.key()+"b", w.in.below(200))
		_, err := d.Put(class, key, []byte(body), now)
		w.sameError("put content", err, m.putContent(class, key, body, now))
	case 23:
		class, key := pick(w.in, ClassFleet, ClassRestricted), w.key()
		if w.in.below(4) == 0 {
			delete(m.entries, [2]string{class, key})
			w.sameError("delete content", d.Delete(class, key), nil)
			break
		}
		got, gotOK := d.Get(class, key, now)
		want, wantOK := m.get(class, key, now)
		w.equal("get content", []any{string(got), gotOK}, []any{want, wantOK})
	}
	w.compareJob(id)
	w.equal("bytes", []int64{d.BatchNbytes(), d.Size()}, []int64{m.nbytes(), m.size()})
	w.equal("live", []int{d.LiveBatchJobsTotal(), d.LiveBatchJobs("c"), d.LiveBatchJobs("")}, []int{m.live("*"), m.live("c"), m.live("")})
}

func (w *twin) page(id string) {
	from, n, maxBytes := w.in.below(6), 1+w.in.below(4), int64(w.in.below(100))
	page, next, ok := w.d.BatchTargetsPage(id, from, n, maxBytes)
	j := w.m.jobs[id]
	if j == nil {
		w.equal("page", ok, false)
		return
	}
	want, wantNext, sum := []BatchTarget{}, -1, int64(0)
	for _, g := range j.sorted() {
		if g.Idx < from {
			continue
		}
		bytes, _ := weight("", g.Result)
		if len(want) == n || len(want) > 0 && sum+bytes > maxBytes {
			wantNext = g.Idx
			break
		}
		want, sum = append(want, g), sum+bytes
	}
	w.equal("page", []any{page, next, ok}, []any{want, wantNext, true})
}

func (w *twin) compareJob(id string) {
	w.t.Helper()
	got, ok := w.d.PeekBatchJob(id)
	j := w.m.jobs[id]
	if w.equal("exists "+id, ok, j != nil); !ok {
		return
	}
	w.equal("job", got, j.BatchJob)
	targets, _ := w.d.BatchTargets(id)
	if len(targets)+len(j.targets) > 0 {
		w.equal("targets", targets, j.sorted())
	}
	p, _ := w.d.BatchProgress(id)
	w.equal("progress", p, j.progress())
}

// compareAll compares everything that can be read, and audits the store.
func (w *twin) compareAll() {
	w.t.Helper()
	jobs, _, err := w.d.ListBatchJobs("", Cursor{}, 1000)
	must(w.t, err)
	newest := slices.SortedFunc(maps.Values(w.m.jobs), func(a, b *modelJob) int {
		return -cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	want := []BatchJob{}
	for _, j := range newest {
		want = append(want, j.BatchJob)
		w.compareJob(j.ID)
	}
	w.equal("all jobs", jobs, want)
	must(w.t, w.d.Check())
}

func newTwin(t testing.TB, in *source) *twin {
	w := &twin{t: t, m: newModel(), in: in}
	d, err := Open(":memory:", modelMaxBytes, WithClock(func() time.Time { return time.Unix(w.m.wall, 0) }))
	must(t, err)
	w.d = d
	return w
}

// TestModel runs random operations. A failure prints its seed: -model.seed runs it again.
func TestModel(t *testing.T) {
	seeds := []uint64{1, 2, rand.Uint64()}
	if *modelSeed != 0 {
		seeds = []uint64{*modelSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := newTwin(t, &source{rand: rand.New(rand.NewPCG(seed, 0))})
			defer w.d.Close()
			for n := range *modelOps {
				w.step()
				if n%100 == 0 {
					w.compareAll()
				}
			}
			w.compareAll()
		})
	}
}

// FuzzModel decodes operations from the fuzzer's bytes.
func FuzzModel(f *testing.F) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newTwin(t, &source{bytes: b})
		defer w.d.Close()
		for !w.in.done() {
			w.step()
		}
		w.compareAll()
	})
}

// TestModelConcurrent lets 16 writers at the same targets: the result that stays is the last that any writer was told is stored.
func TestModelConcurrent(t *testing.T) {
	d := open(t)
	addJob(t, d, "j", JobRunning, 1, 20)
	last := make([][]string, 16) // by writer and idx: its own last result
	together(16, func(w int) {
		last[w] = make([]string, 20)
		r := rand.New(rand.NewPCG(uint64(w), 3))
		for n := range 100 {
			idx := r.IntN(20)
			result := fmt.Sprintf("%d-%d-%s", w, n, strings.Repeat("x", r.IntN(50)))
			if err := d.UpdateBatchTarget("j", idx, int64(n), pick(&source{rand: r}, TargetDone, TargetFailed, TargetRunning), &result, nil, nil); err != nil {
				t.Error(err)
			}
			last[w][idx] = result
		}
	})
	for _, g := range targetsOf(t, d, "j") {
		ok := g.Result == nil && !slices.ContainsFunc(last, func(l []string) bool { return l[g.Idx] != "" })
		for w := range last {
			ok = ok || g.Result != nil && *g.Result == last[w][g.Idx]
		}
		if !ok {
			t.Errorf("target %d holds %v, which is nobody's last write", g.Idx, g.Result)
		}
	}
}
