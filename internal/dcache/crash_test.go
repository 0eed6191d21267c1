package dcache

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"
)

var (
	tortureRounds = flag.Int("torture.rounds", 4, "how often TestKill kills, and how many cuts TestPowerCut makes")
	tortureSeed   = flag.Uint64("torture.seed", 0, "the seed of TestKill and TestPowerCut; 0 is a new one, which is printed")
)

// torture is a source of random moments, whose seed the log tells.
func torture(t *testing.T) *rand.Rand {
	seed := *tortureSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-torture.seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 7))
}

const (
	crashWriters = 32
	crashTargets = 6
)

// The writers of a child work each on jobs of its own, so that the order of what one writer does to a job is the order of its
// acknowledgements. Before a call it says what it is about to do, after it that it was done:
//
//	> submit w3-r1-17
//	< submit w3-r1-17
//
// Whatever has its "<" must be found in the file; what has only its ">" may be there whole, or not at all.

// childWrite writes with many goroutines until it is killed. Its arguments are the path and the round, which sets its ids apart.
func childWrite(args []string) error {
	d, err := Open(args[0], 1<<20)
	if err != nil {
		return err
	}
	if _, err := d.RequeueInFlight(1); err != nil {
		return err
	}
	if err := d.Check(); err != nil {
		return err
	}
	fmt.Println("open")
	log := &ackLog{out: os.Stdout}
	var wg sync.WaitGroup
	for w := range crashWriters {
		wg.Go(func() {
			for n := 0; ; n++ {
				if err := writeJob(d, log, fmt.Sprintf("w%d-r%s-%d", w, args[1], n), n); err != nil {
					log.say("error: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.New("every writer has failed")
}

// ackLog writes whole lines to a pipe that outlives this process.
type ackLog struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *ackLog) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, format+"\n", args...)
}

// do announces a call, makes it, and acknowledges it.
func (l *ackLog) do(name string, call func() error) error {
	l.say("> %s", name)
	if err := call(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.say("< %s", name)
	return nil
}

// crashResult is the result of a target: told by its id, so that what is found can be compared without a list.
func crashResult(id string, idx int) *string {
	s := strings.Repeat(fmt.Sprintf("%s/%d ", id, idx), 30*(idx+1))
	return &s
}

// writeJob lives through one job: every fourth is created and filled by two calls, the others are submitted by one; every third
// is cancelled, every fifth deleted, every seventh marked for a sweep, which then takes it away.
func writeJob(d *DB, log *ackLog, id string, n int) error {
	job := BatchJob{ID: id, Caller: "c", IDemKey: id, Lease: 1000, CreatedAt: 1}
	if n%4 == 0 {
		job.IDemKey = ""
		if err := log.do("create "+id, func() error { return d.CreateBatchJob(job) }); err != nil {
			return err
		}
		if err := log.do("put "+id, func() error { return d.PutBatchTargets(id, pending(crashTargets)) }); err != nil {
			return err
		}
	} else if err := log.do("submit "+id, func() error {
		_, _, err := d.SubmitBatch(job, pending(crashTargets), 1000, time.Hour)
		return err
	}); err != nil {
		return err
	}
	for idx := range crashTargets - n%2 { // every other job keeps an open target
		if err := log.do(fmt.Sprintf("finish %s %d", id, idx), func() error {
			_, err := d.FinishBatchTarget(id, idx, 1000, TargetDone, crashResult(id, idx), nil, nil)
			return err
		}); err != nil {
			return err
		}
	}
	if err := log.do("content "+id, func() error {
		_, err := d.Put(ClassFleet, id, []byte(*crashResult(id, 0)), int64(n))
		return err
	}); err != nil {
		return err
	}
	switch {
	case n%3 == 0 && n%2 == 1:
		return log.do("cancel "+id, func() error { return d.CancelBatchJob(id, "why", 1000) })
	case n%5 == 0:
		return log.do("delete "+id, func() error { return d.DeleteBatchJob(id) })
	case n%7 == 0:
		if err := log.do("expire "+id, func() error { return d.TouchBatchJob(id, 5) }); err != nil {
			return err
		}
		return log.do("sweep "+id, func() error { d.SweepBatch(10, time.Second); return nil })
	}
	return nil
}

// told is what a child has said of its jobs.
type told struct {
	announced, acked map[string]bool
	ids              map[string]bool
}

func (c *told) read(lines *bufio.Scanner, errs func(string)) {
	for lines.Scan() {
		mark, call, _ := strings.Cut(lines.Text(), " ")
		switch mark {
		case ">":
			c.announced[call] = true
			c.ids[strings.Fields(call)[1]] = true
		case "<":
			c.acked[call] = true
		case "open":
		default:
			errs(lines.Text())
		}
	}
}

// verify compares a store with what was told of it: nothing acknowledged is missing, nothing is half there.
func (c *told) verify(t *testing.T, d *DB) {
	t.Helper()
	for id := range c.ids {
		j, ok := d.PeekBatchJob(id)
		made := c.acked["submit "+id] || c.acked["create "+id]
		mayBeGone := c.announced["delete "+id] || c.announced["expire "+id]
		mustBeGone := c.acked["delete "+id] || c.acked["sweep "+id]
		switch {
		case ok && mustBeGone:
			t.Errorf("%s: its deletion was acknowledged, and it is there", id)
		case !ok && made && !mayBeGone:
			t.Errorf("%s: acknowledged, and lost", id)
		case !ok:
			if got, there := d.BatchTargets(id); there {
				t.Errorf("%s: gone, with %d targets left", id, len(got))
			}
		default:
			c.verifyJob(t, d, j)
		}
	}
}

func (c *told) verifyJob(t *testing.T, d *DB, j BatchJob) {
	t.Helper()
	id := j.ID
	targets := targetsOf(t, d, id)
	whole := c.acked["submit "+id] || c.announced["submit "+id] || c.acked["put "+id]
	if len(targets) != crashTargets && (whole || len(targets) != 0) {
		t.Errorf("%s: %d of %d targets", id, len(targets), crashTargets)
		return
	}
	for _, g := range targets {
		call := fmt.Sprintf("finish %s %d", id, g.Idx)
		finished := g.Status == TargetDone
		if c.acked[call] && !finished || finished && !c.announced[call] {
			t.Errorf("%s/%d is %s; announced %v, acknowledged %v", id, g.Idx, g.Status, c.announced[call], c.acked[call])
		}
		if finished && (g.Result == nil || *g.Result != *crashResult(id, g.Idx)) {
			t.Errorf("%s/%d has another result", id, g.Idx)
		}
	}
	if c.acked["cancel "+id] && j.Status != JobCancelled {
		t.Errorf("%s: its cancellation was acknowledged, and it is %s", id, j.Status)
	}
	if _, ok := d.Get(ClassFleet, id, 0); !ok && c.acked["content "+id] && d.Size() < 1<<19 {
		t.Errorf("%s: its content is lost, without pressure", id)
	}
}

func newTold() *told {
	return &told{announced: map[string]bool{}, acked: map[string]bool{}, ids: map[string]bool{}}
}

// TestKill kills a process that writes, at random moments, again and again on the same file.
func TestKill(t *testing.T) {
	r := torture(t)
	path := filepath.Join(t.TempDir(), "x.db")
	all := newTold()
	for round := range *tortureRounds {
		cmd := child(t, "write", path, fmt.Sprint(round))
		_, lines := start(t, cmd)
		if !lines.Scan() || lines.Text() != "open" {
			t.Fatalf("round %d: the file did not open: %s", round, lines.Text())
		}
		timer := time.AfterFunc(time.Duration(r.IntN(400))*time.Millisecond, func() {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		})
		all.read(lines, func(line string) { t.Errorf("round %d: %s", round, line) })
		timer.Stop()
		if cmd.Wait() == nil {
			t.Error("the child ended by itself")
		}
		d, err := Open(path, 1<<20)
		must(t, err)
		all.verify(t, d)
		audit(t, d)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("%d rounds, %d calls acknowledged", *tortureRounds, len(all.acked))
}

// TestDiskFull lets a script of every writing method meet a database that may have so many pages and no more, for every number
// from none to enough.
func TestDiskFull(t *testing.T) {
	is := is.New(t)
	failed := 0
	for spare := 0; ; spare++ {
		d, err := Open(filepath.Join(t.TempDir(), "x.db"), 0, quiet())
		is.NoErr(err)
		addJob(t, d, "j", JobRunning, 1, 8)
		addJob(t, d, "k", JobRunning, 1, 1)
		limitPages(t, d, spare)
		full := 0
		for name, call := range fullScript(d) {
			before := dump(t, d)
			err := call()
			if err != nil {
				mustBe(t, err, ErrFull)
				full++
				if after := dump(t, d); after != before {
					t.Fatalf("%d spare pages: %s failed and left a trace:\n%s\n%s", spare, name, before, after)
				}
			}
			if err := d.Check(); err != nil {
				t.Fatalf("%d spare pages, after %s: %v", spare, name, err)
			}
		}
		limitPages(t, d, 100_000)
		for name, call := range fullScript(d) { // without opening it again
			if err := call(); err != nil && !errors.Is(err, ErrExists) && !errors.Is(err, ErrNotLive) && !errors.Is(err, ErrNotFound) {
				t.Fatalf("%d spare pages, with room again: %s: %v", spare, name, err)
			}
		}
		audit(t, d)
		if full == 0 {
			is.True(failed > 10) // the steps before this one did meet the limit
			return
		}
		failed++
	}
}

func limitPages(t *testing.T, d *DB, spare int) {
	t.Helper()
	var pages int
	must(t, d.sql.Get(&pages, `PRAGMA page_count`))
	behind(t, d, fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+spare))
}

// fullScript is every method that writes, in an order that makes sense, with values of several pages.
func fullScript(d *DB) func(yield func(string, func() error) bool) {
	return func(yield func(string, func() error) bool) {
		script := []struct {
			name string
			call func() error
		}{
			{"create", func() error { return d.CreateBatchJob(BatchJob{ID: "new", Error: *bytesOf(9000)}) }},
			{"put", func() error { return d.PutBatchTargets("k", pending(100)[1:]) }},
			{"submit", func() error {
				_, _, err := d.SubmitBatch(BatchJob{ID: "s", IDemKey: "key"}, pending(100), 1, time.Hour)
				return err
			}},
			{"update", func() error { return d.UpdateBatchTarget("j", 0, 2, TargetDone, bytesOf(30_000), nil, nil) }},
			{"finish", func() error {
				_, err := d.FinishBatchTarget("j", 1, 2, TargetDone, bytesOf(9000), bytesOf(9000), nil)
				return err
			}},
			{"status", func() error { return d.SetBatchJobStatus("k", JobRunning, *bytesOf(9000), 3) }},
			{"touch", func() error { return d.TouchBatchJob("k", 4) }},
			{"content", func() error { _, err := d.Put(ClassFleet, "k", make([]byte, 20_000), 1); return err }},
			{"requeue", func() error { _, err := d.RequeueInFlight(9); return err }},
			{"cancel", func() error { return d.CancelBatchJob("j", *bytesOf(5000), 3) }},
			{"delete content", func() error { return d.Delete(ClassFleet, "k") }},
			{"delete", func() error { return d.DeleteBatchJob("k") }},
		}
		for _, s := range script {
			if !yield(s.name, s.call) {
				return
			}
		}
	}
}

// TestRealDiskFull has a child write under a limit on the size of its files, which the kernel answers with EFBIG, until a call fails.
func TestRealDiskFull(t *testing.T) {
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "x.db")
	for _, limit := range []string{"600", "700", "900"} { // KiB
		out, err := child(t, "fill", path, limit).Output()
		t.Logf("limit %s KiB: %s", limit, out)
		is.NoErr(err)
		is.True(strings.Contains(string(out), "full, and well"))
		audit(t, openAt(t, path, 0))
	}
}

func childFill(args []string) error {
	d, err := Open(args[0], 0, quiet())
	if err != nil {
		return err
	}
	id := "fill" + args[1]
	if err := errors.Join(d.CreateBatchJob(BatchJob{ID: id, Status: JobDone}), d.PutBatchTargets(id, pending(1000))); err != nil {
		return err
	}
	var kib uint64
	if _, err := fmt.Sscan(args[1], &kib); err != nil {
		return err
	}
	if err := limitFileSize(kib << 10); err != nil {
		return err
	}
	stored := 0
	for ; stored < 1000; stored++ {
		if err = d.UpdateBatchTarget(id, stored, 1, TargetDone, bytesOf(20_000), nil, nil); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) {
		return fmt.Errorf("after %d results: %w", stored, err)
	}
	j, ok := d.PeekBatchJob(id) // reads still work
	if !ok || j.TargetsDone != stored || j.NBytes != int64(stored)*20_000 {
		return fmt.Errorf("%d stored, the job says %+v", stored, j)
	}
	if n := d.SweepBatch(5, 0); n != 0 && n != 1 {
		return fmt.Errorf("swept %d", n)
	} else if ok = exists(d, id); ok == (n == 1) {
		return fmt.Errorf("swept %d, and its job's presence is %v", n, ok)
	}
	if err := limitFileSize(1 << 30); err != nil {
		return err
	}
	if d.SweepBatch(5, 0); exists(d, id) { // there is room again
		return errors.New("the sweep does not work any more")
	}
	if err := errors.Join(d.CreateBatchJob(BatchJob{ID: id}), d.Check(), d.Close()); err != nil {
		return err
	}
	fmt.Printf("full, and well after %d results\n", stored)
	return nil
}

// TestForeignWAL puts the WAL of another database beside a file, as a careless copy does. SQLite tells by the WAL's checksums and page
// numbers at best; what is served is audited, and under its own ids.
func TestForeignWAL(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	make := func(name string, jobs int) string {
		d, err := Open(filepath.Join(dir, name), 0)
		is.NoErr(err)
		for i := range jobs {
			addDone(t, d, fmt.Sprint(name, i), 1, 100)
		}
		copyFiles(t, d.file, filepath.Join(dir, "copy-"+name)) // with its WAL
		audit(t, d)
		return filepath.Join(dir, "copy-"+name)
	}
	one, other := make("one.db", 5), make("other.db", 40)
	wal, err := os.ReadFile(other + "-wal")
	is.NoErr(err)
	is.NoErr(os.WriteFile(one+"-wal", wal, 0o600))
	d, err := Open(one, 0, quiet())
	if err != nil {
		mustBe(t, err, ErrCorrupt)
		return
	}
	t.Log("served; audit:", d.Check())
	jobs, _, err := d.ListBatchJobs("", Cursor{}, 100)
	is.NoErr(err)
	for _, j := range jobs {
		for _, g := range targetsOf(t, d, j.ID) {
			is.Equal(g.JobID, j.ID)
		}
	}
	is.NoErr(d.Close())
}

// TestFlippedBytes damages a file at random: it is refused with ErrCorrupt, or serves; what it serves is under its own id and idx.
func TestFlippedBytes(t *testing.T) {
	r := torture(t)
	dir := t.TempDir()
	good, err := Open(filepath.Join(dir, "good.db"), 0)
	must(t, err)
	for i := range 30 {
		id := fmt.Sprintf("job-%02d", i)
		addJob(t, good, id, JobRunning, 1, 10)
		for idx := range 10 {
			must(t, good.UpdateBatchTarget(id, idx, 1, TargetDone, crashResult(id, idx), nil, nil))
		}
	}
	audit(t, good)
	clean, err := os.ReadFile(good.file)
	must(t, err)
	served, refused := 0, 0
	for round := range 40 * *tortureRounds / 4 {
		b := append([]byte{}, clean...)
		for range 1 + r.IntN(20) {
			b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
		}
		if round%5 == 0 {
			b = b[:r.IntN(len(b))]
		}
		path := filepath.Join(dir, fmt.Sprintf("bad-%d.db", round))
		must(t, os.WriteFile(path, b, 0o600))
		d, err := Open(path, 0, quiet())
		if err != nil {
			refused++
			if len(b) > 0 && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrSchema) {
				t.Logf("round %d: refused: %v", round, err)
			}
			after, err := os.ReadFile(path)
			must(t, err)
			if string(after) != string(b) {
				t.Errorf("round %d: a file that was refused has changed", round)
			}
			continue
		}
		served++
		for i := range 30 {
			id := fmt.Sprintf("job-%02d", i)
			got, _ := d.BatchTargets(id)
			for _, g := range got {
				if g.JobID != id {
					t.Errorf("round %d: asked for %s, got a target of %s", round, id, g.JobID)
				}
			}
			if j, ok := d.PeekBatchJob(id); ok && j.ID != id {
				t.Errorf("round %d: asked for %s, got %s", round, id, j.ID)
			}
		}
		_ = d.UpdateBatchTarget("job-00", 0, 2, TargetDone, bytesOf(10), nil, nil) // an error or not, but no crash
		_ = d.Check()
		d.SweepBatch(100, 0)
		if err := d.Close(); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Logf("round %d: close: %v", round, err)
		}
	}
	t.Logf("%d served, %d refused", served, refused)
}

// TestIndexLeadsElsewhere damages a file so that each index leads to rows of other keys, as a flipped rowid would: the rows of every
// table are replaced by others under the same rowids. No call may serve such a row, or change it.
func TestIndexLeadsElsewhere(t *testing.T) {
	is := is.New(t)
	d := open(t, quiet(), clockAt(5))
	must(t, d.CreateBatchJob(BatchJob{ID: "j", Caller: "c", IDemKey: "k", Status: JobDone, CreatedAt: 1, Lease: 1}))
	must(t, d.PutBatchTargets("j", []BatchTarget{{Idx: 0, Result: str("mine")}}))
	_, err := d.Put(ClassFleet, "k", []byte("mine"), 1)
	must(t, err)
	must(t, d.Close())

	for table, columns := range map[string]string{
		"batch_job":     `'other' AS id, 'other' AS caller, caller_class, 'other' AS idem_key, status, error, targets_total, targets_done, created_at, 1000 AS lease, nbytes`,
		"batch_target":  `'other' AS job_id, idx, url, options, status, result, error, hint`,
		"content_entry": `class, 'other' AS key, digest, used_at`,
	} {
		c, err := openRaw("file:" + d.file)
		must(t, err)
		_, err = c.Exec(fmt.Sprintf(`
			CREATE TABLE twin_%[1]s AS SELECT * FROM %[1]s WHERE 0;
			INSERT INTO twin_%[1]s SELECT %[2]s FROM %[1]s;
			PRAGMA writable_schema = ON;
			UPDATE sqlite_schema SET rootpage = (SELECT sum(rootpage) FROM sqlite_schema WHERE name IN ('%[1]s', 'twin_%[1]s')) - rootpage
			WHERE name IN ('%[1]s', 'twin_%[1]s');`, table, columns), nil)
		must(t, err)
		must(t, c.Close())
	}

	d, err = Open(d.file, 0, quiet(), clockAt(5))
	must(t, err)
	defer d.Close()
	before := dump(t, d)
	_, ok := d.PeekBatchJob("j")
	is.True(!ok)
	_, ok = d.BatchJob("j")
	is.True(!ok)
	_, ok = d.BatchTargets("j")
	is.True(!ok)
	_, _, ok = d.BatchTargetsPage("j", 0, 9, 99)
	is.True(!ok)
	_, ok = d.BatchJobByIDem("c", "k", 5, time.Hour)
	is.True(!ok)
	jobs, _, err := d.ListBatchJobs("c", Cursor{}, 9)
	is.True(err != nil || len(jobs) == 0)
	_, ok = d.Get(ClassFleet, "k", 5)
	is.True(!ok)
	mustBe(t, d.TouchBatchJob("j", 9), ErrCorrupt)
	mustBe(t, d.UpdateBatchTarget("j", 0, 9, TargetDone, nil, nil, nil), ErrCorrupt)
	mustBe(t, d.PutBatchTargets("j", []BatchTarget{{Idx: 7}}), ErrCorrupt)
	mustBe(t, d.DeleteBatchJob("j"), ErrCorrupt)
	is.Equal(d.SweepBatch(500, 0), 0) // the row's own lease has not expired
	is.Equal(d.EvictBatchOldest(0), 0)
	is.Equal(dump(t, d), before)
	mustBe(t, d.Check(), ErrCorrupt)
}
