package dcache

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/mattn/go-sqlite3"
)

// asGroup runs calls in one group, in this order: a first call holds the transaction open until the others have queued.
func asGroup(t *testing.T, d *DB, calls ...func() error) []error {
	t.Helper()
	errs := make([]error, len(calls))
	inside, queued := make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		first := true
		must(t, d.write(func(*tx) error {
			if first { // a spoilt group runs this again, with nobody to wait for
				first = false
				close(inside)
				<-queued
			}
			return nil
		}))
	}()
	<-inside
	ended := make(chan struct{}, len(calls))
	for i, call := range calls {
		go func() {
			errs[i] = call()
			ended <- struct{}{}
		}()
		for n := 0; n <= i; {
			d.group.mu.Lock()
			n = len(d.group.queue)
			d.group.mu.Unlock()
		}
	}
	close(queued)
	<-done
	for range calls {
		<-ended
	}
	return errs
}

func TestGroupCommit(t *testing.T) {
	update := func(d *DB, idx int, result *string) func() error {
		return func() error { return d.UpdateBatchTarget("j", idx, 9, TargetDone, result, nil, nil) }
	}
	t.Run("one transaction for all", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 50)
		before := d.Stats()
		calls := []func() error{}
		for i := range 50 {
			calls = append(calls, update(d, i, bytesOf(i)))
		}
		for _, err := range asGroup(t, d, calls...) {
			is.NoErr(err)
		}
		after := d.Stats()
		is.Equal(after.Transactions-before.Transactions, int64(1))
		is.Equal(after.Operations-before.Operations, int64(51))
		is.Equal(peek(t, d, "j").TargetsDone, 50)
	})
	t.Run("a refusal touches nobody else", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 3)
		before := d.Stats().Transactions
		errs := asGroup(t, d,
			update(d, 0, bytesOf(1)),
			update(d, 99, bytesOf(1)),
			func() error { return d.CreateBatchJob(BatchJob{ID: "j"}) },
			func() error { return d.PutBatchTargets("absent", pending(1)) },
			func() error { return d.PutBatchTargets("j", append([]BatchTarget{{Idx: 7}}, pending(2)...)) },
			update(d, 1, bytesOf(2)),
		)
		is.NoErr(errs[0])
		mustBe(t, errs[1], ErrNotFound)
		mustBe(t, errs[2], ErrExists)
		mustBe(t, errs[3], ErrNotFound)
		mustBe(t, errs[4], ErrExists)
		is.NoErr(errs[5])
		is.Equal(d.Stats().Transactions-before, int64(1)) // one that spoils its group costs everybody a commit of their own
		is.Equal(peek(t, d, "j").NBytes, int64(3))
	})
	t.Run("an error after a write takes back that write only", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 3)
		late := pending(500)
		for i := range late {
			late[i].Idx = 502 - i // the last of them, idx 3 down to 2, is taken
		}
		late[499].Idx = 2
		errs := asGroup(t, d,
			update(d, 0, bytesOf(1)),
			func() error { return d.PutBatchTargets("j", late) },
			update(d, 1, bytesOf(2)),
			func() error {
				return d.write(func(t *tx) error {
					if _, err := t.exec(`UPDATE batch_job SET nbytes = 1000000`); err != nil {
						return err
					}
					t.delta.batch += 1_000_000 // must not outlive the rollback
					return errors.New("late")
				})
			},
			update(d, 2, bytesOf(4)),
		)
		is.NoErr(errs[0])
		mustBe(t, errs[1], ErrExists)
		is.NoErr(errs[2])
		is.True(strings.Contains(errs[3].Error(), "late"))
		is.NoErr(errs[4])
		is.Equal(len(targetsOf(t, d, "j")), 3)
		is.Equal(peek(t, d, "j").NBytes, int64(7))
		is.Equal(d.BatchNbytes(), int64(7))
	})
	t.Run("one that does not fit on the disk takes nobody along", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 5)
		// The cache is smaller than the large result: SQLite meets the full disk in the middle of a statement, and rolls the whole
		// transaction back by itself.
		behind(t, d, `PRAGMA cache_size = 10`)
		var pages int
		is.NoErr(d.sql.Get(&pages, `PRAGMA page_count`))
		behind(t, d, fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+10))
		errs := asGroup(t, d,
			update(d, 0, bytesOf(100)),
			update(d, 1, bytesOf(1_000_000)),
			update(d, 2, bytesOf(100)),
			update(d, 3, bytesOf(900_000)),
			update(d, 4, bytesOf(100)),
		)
		for i, err := range errs {
			if i%2 == 0 {
				is.NoErr(err)
			} else {
				mustBe(t, err, ErrFull)
			}
		}
		is.Equal(peek(t, d, "j").NBytes, int64(300))
		is.NoErr(d.Check())
		behind(t, d, `PRAGMA max_page_count = 1000000`)
		is.NoErr(update(d, 1, bytesOf(1_000_000))()) // there is room again
	})
	t.Run("one that is too large for SQLite takes nobody along", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 3)
		raw(t, d, func(c *sqlite3.SQLiteConn) error {
			c.SetLimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
			return nil
		})
		before := dump(t, d)
		mustBe(t, update(d, 1, bytesOf(10_001))(), ErrTooLarge) // the value
		mustBe(t, update(d, 1, bytesOf(9_999))(), ErrTooLarge)  // the row
		_, err := d.Put(ClassFleet, "k", make([]byte, 10_001), 1)
		mustBe(t, err, ErrTooLarge)
		mustBe(t, d.CreateBatchJob(BatchJob{ID: strings.Repeat("x", 10_001)}), ErrTooLarge)
		is.Equal(dump(t, d), before)
		errs := asGroup(t, d, update(d, 0, bytesOf(1)), update(d, 1, bytesOf(10_001)), update(d, 2, bytesOf(1)))
		is.NoErr(errs[0])
		mustBe(t, errs[1], ErrTooLarge)
		is.NoErr(errs[2])
		is.Equal(d.Stats().Errors, int64(0)) // a refusal, not a fault of the database
	})
	t.Run("a group has a bounded weight", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 10)
		before := d.Stats().Transactions
		calls := []func() error{}
		for i := range 10 {
			calls = append(calls, update(d, i, bytesOf(200*pageBytes)))
		}
		for _, err := range asGroup(t, d, calls...) {
			is.NoErr(err)
		}
		is.True(d.Stats().Transactions-before >= 5) // two to a commit, however many wait
		is.True(d.Stats().WALBytes < 10*200*pageBytes)
	})
	t.Run("lets go of what it has written", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 50)
		calls := []func() error{}
		for i := range 50 {
			calls = append(calls, update(d, i, bytesOf(10)))
		}
		asGroup(t, d, calls...)
		for _, c := range d.group.queue[:cap(d.group.queue)] {
			is.True(c == nil)
		}
	})
	t.Run("a panic is its own call's error", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 2)
		errs := asGroup(t, d,
			update(d, 0, bytesOf(1)),
			func() error { return d.write(func(*tx) error { panic("a bug") }) },
			update(d, 1, bytesOf(1)),
		)
		is.NoErr(errs[0])
		is.True(errs[1] != nil)
		is.NoErr(errs[2])
	})
	t.Run("counters stay within int64", func(t *testing.T) {
		is := is.New(t)
		d, err := Open(":memory:", 0) // not audited: counters that no row accounts for
		is.NoErr(err)
		defer d.Close()
		is.NoErr(d.CreateBatchJob(BatchJob{ID: "full", NBytes: math.MaxInt64 - 5, TargetsDone: math.MaxInt}))
		mustBe(t, d.CreateBatchJob(BatchJob{ID: "j", NBytes: 6}), ErrInvalid) // the total
		is.NoErr(d.PutBatchTargets("full", pending(1)))
		before := dump(t, d)
		mustBe(t, d.UpdateBatchTarget("full", 0, 1, TargetRunning, bytesOf(6), nil, nil), ErrInvalid)
		mustBe(t, d.UpdateBatchTarget("full", 0, 1, TargetDone, nil, nil, nil), ErrInvalid)
		is.Equal(dump(t, d), before)
		is.NoErr(d.UpdateBatchTarget("full", 0, 1, TargetRunning, bytesOf(5), nil, nil))
		is.Equal(d.BatchNbytes(), int64(math.MaxInt64))
	})
}

func TestBusy(t *testing.T) {
	is := is.New(t)
	d := open(t, quiet(), clockAt(50))
	addJob(t, d, "j", JobRunning, 1, 40)
	behind(t, d, `PRAGMA busy_timeout = 20`) // not five seconds
	cmd := child(t, "lock", d.file)
	stdin, lines := start(t, cmd)
	is.True(lines.Scan())
	mustBe(t, d.UpdateBatchTarget("j", 0, 2, TargetDone, nil, nil, nil), ErrBusy)
	together(40, func(i int) { // whole groups fail, and nobody is left behind
		if err := d.UpdateBatchTarget("j", i, 2, TargetDone, nil, nil, nil); !errors.Is(err, ErrBusy) {
			t.Error(err)
		}
	})
	is.Equal(d.SweepBatch(100, 0), 0) // not a false count
	is.Equal(d.MarkInFlightFailed("x", 1), 0)
	j, ok := d.BatchJob("j") // reads go on, though the bump can't be written
	is.True(ok)
	is.Equal(j.TargetsDone, 0)
	is.True(d.Stats().Errors > 0)
	is.NoErr(stdin.Close())
	is.NoErr(cmd.Wait())
	is.NoErr(d.UpdateBatchTarget("j", 0, 2, TargetDone, nil, nil, nil))
	is.Equal(peek(t, d, "j").TargetsDone, 1)
}

// childLock holds SQLite's write lock, as a shell in a transaction does, until its input ends.
func childLock(args []string) error {
	conn, err := openRaw(args[0])
	if err != nil {
		return err
	}
	if _, err := conn.Exec(`BEGIN IMMEDIATE`, nil); err != nil {
		return err
	}
	fmt.Println("locked")
	untilEOF()
	_, err = conn.Exec(`ROLLBACK`, nil)
	return errors.Join(err, conn.Close())
}

// TestBesideAnotherWriter: a shell that writes in short transactions is waited for. A transaction of ours that read first and asked for
// the write lock later would fail at once where the shell had written in between.
func TestBesideAnotherWriter(t *testing.T) {
	is := is.New(t)
	d := open(t)
	addJob(t, d, "j", JobRunning, 1, 8)
	cmd := child(t, "shell", d.file)
	stdin, lines := start(t, cmd)
	is.True(lines.Scan())
	together(8, func(idx int) {
		for n := range 60 {
			if err := d.UpdateBatchTarget("j", idx, int64(n), TargetDone, bytesOf(n), nil, nil); err != nil {
				t.Error(err)
			}
		}
	})
	is.NoErr(stdin.Close())
	is.True(lines.Scan())
	t.Log(lines.Text())
	is.NoErr(cmd.Wait())
	is.Equal(d.Stats().Errors, int64(0))
}

// childShell writes to a table of its own, over and over, until its input ends.
func childShell(args []string) error {
	conn, err := openRaw(args[0] + "?_busy_timeout=30000")
	if err != nil {
		return err
	}
	if _, err := conn.Exec(`CREATE TABLE other (x)`, nil); err != nil {
		return err
	}
	fmt.Println("writing")
	ended := make(chan struct{})
	go func() { untilEOF(); close(ended) }()
	for n := 0; ; n++ {
		select {
		case <-ended:
			fmt.Println("the shell wrote", n, "times")
			return conn.Close()
		default:
		}
		if _, err := conn.Exec(`BEGIN IMMEDIATE; INSERT INTO other VALUES (1); COMMIT`, nil); err != nil {
			return err
		}
	}
}

// TestConnectionIsGivenBack makes calls that fail in every way: one that kept the connection would stop the next for ever.
func TestConnectionIsGivenBack(t *testing.T) {
	is := is.New(t)
	d := open(t, quiet(), clockAt(9))
	addJob(t, d, "j", JobRunning, 1, 3)
	is.NoErr(d.CreateBatchJob(BatchJob{ID: "k", Caller: "c", IDemKey: "key"}))
	for range 200 {
		mustBe(t, d.CreateBatchJob(BatchJob{ID: "j"}), ErrExists)
		mustBe(t, d.PutBatchTargets("j", pending(1)), ErrExists)
		mustBe(t, d.PutBatchTargets("absent", pending(1)), ErrNotFound)
		_, _, err := d.SubmitBatch(BatchJob{ID: "l", Caller: "c", IDemKey: "key"}, pending(3), 1, time.Hour)
		mustBe(t, err, ErrConflict)
		_, ok := d.BatchTargets("absent")
		is.True(!ok)
		_, _, ok = d.BatchTargetsPage("j", 0, 1, 0)
		is.True(ok)
		_, ok = d.BatchJob("j")
		is.True(ok)
		is.Equal(d.EvictBatchOldest(0), 0)
		is.Equal(d.SweepBatch(-10, 0), 0)
		is.Equal(d.sql.Stats().InUse, 0)
	}
	is.Equal(d.sql.Stats().OpenConnections, 1)
	mustBe(t, d.Backup(t.Context(), filepath.Join(t.TempDir(), "missing", "x")), fs.ErrNotExist)
}

// TestFlatMemory makes many calls, failing ones among them: what a call leaves behind would add up.
func TestFlatMemory(t *testing.T) {
	is := is.New(t)
	d := openAt(t, ":memory:", 0, clockAt(9))
	addJob(t, d, "j", JobRunning, 9, 3)
	calls := func(n int) {
		for i := range n {
			_ = d.CreateBatchJob(BatchJob{ID: "j"})
			_ = d.UpdateBatchTarget("j", i%5, 9, TargetDone, bytesOf(100), nil, nil)
			_ = d.PutBatchTargets("j", pending(2))
			_, _, _ = d.SubmitBatch(BatchJob{ID: "k", IDemKey: fmt.Sprint("k", i%2)}, pending(1+i%2), 9, time.Hour)
			_ = d.DeleteBatchJob("k")
			d.BatchJob("j")
			d.BatchTargets("absent")
			d.BatchTargetsPage("j", 0, 1, 0)
		}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	calls(500)
	before, goroutines, resident0 := heap(), runtime.NumGoroutine(), resident()
	calls(5000)
	is.True(heap() < before+1<<20)
	is.True(runtime.NumGoroutine() <= goroutines)
	is.True(resident() < resident0+32<<20) // SQLite's own memory too: statements that are never closed
}
