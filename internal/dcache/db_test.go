package dcache

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/mattn/go-sqlite3"
)

func TestOpenPaths(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "sub dir?x#y%41&z"), 0o755))
	must(t, os.Symlink("sub dir?x#y%41&z", filepath.Join(dir, "link")))
	must(t, os.Symlink(filepath.Join("link", "dangling.db"), filepath.Join(dir, "file-link.db")))
	t.Chdir(dir)
	for _, tt := range []struct{ path, file string }{
		{filepath.Join(dir, "plain.db"), "plain.db"},
		{"relative.db", "relative.db"},
		{"./sub dir?x#y%41&z/../dots.db", "dots.db"},
		{"with space.db", "with space.db"},
		{"a?b=c&mode=memory.db", "a?b=c&mode=memory.db"},
		{"a#b.db", "a#b.db"},
		{"a%41b%00.db", "a%41b%00.db"},
		{"a&b;c+d.db", "a&b;c+d.db"},
		{"ünï-日本.db", "ünï-日本.db"},
		{"file:x.db", "file:x.db"},
		{":memory:.db", ":memory:.db"},
		{"link/in.db", "sub dir?x#y%41&z/in.db"},
		{"file-link.db", "sub dir?x#y%41&z/dangling.db"},
	} {
		t.Run(tt.path, func(t *testing.T) {
			is := is.New(t)
			d, err := Open(tt.path, 0)
			is.NoErr(err)
			addDone(t, d, "j", 1, 3)
			_, err = Open(tt.file, 0) // the same file, however it is spelled
			mustBe(t, err, ErrInUse)
			audit(t, d)
			info, err := os.Stat(filepath.Join(dir, tt.file)) // the file that was named, not one that a URI makes of it
			is.NoErr(err)
			is.True(info.Size() > 0)
			d = openAt(t, tt.path, 0)
			is.True(exists(d, "j"))
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	valid := func(t *testing.T) []byte {
		path := filepath.Join(t.TempDir(), "valid.db")
		d, err := Open(path, 0)
		must(t, err)
		for i := range 50 {
			addDone(t, d, fmt.Sprint(i), 1, 1000)
		}
		audit(t, d)
		b, err := os.ReadFile(path)
		must(t, err)
		return b
	}
	for _, tt := range []struct {
		name string
		make func(t *testing.T) []byte
		want error
	}{
		{"text", func(*testing.T) []byte { return []byte(strings.Repeat("hello world\n", 1000)) }, ErrCorrupt},
		{"short text", func(*testing.T) []byte { return []byte("x") }, ErrCorrupt},
		{"zero bytes", func(*testing.T) []byte { return make([]byte, 4096) }, ErrCorrupt},
		{"a header's beginning", func(t *testing.T) []byte { return valid(t)[:16] }, ErrCorrupt},
		{"a header", func(t *testing.T) []byte { return valid(t)[:100] }, ErrCorrupt},
		{"half a database", func(t *testing.T) []byte { b := valid(t); return b[:len(b)/2/8192*8192] }, ErrCorrupt},
		{"a damaged schema", func(t *testing.T) []byte {
			b := valid(t)
			copy(b[100:], bytes.Repeat([]byte{0xff}, 300))
			return b
		}, ErrCorrupt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			dir := t.TempDir()
			path := filepath.Join(dir, "x.db")
			must(t, os.WriteFile(path, tt.make(t), 0o600))
			before := content(t, dir)
			for range 2 {
				_, err := Open(path, 0)
				mustBe(t, err, tt.want)
				is.True(strings.Contains(err.Error(), path)) // it names the file
			}
			is.Equal(content(t, dir), before)
		})
	}
	t.Run("no path", func(t *testing.T) {
		for _, path := range []string{"", "a\x00b"} {
			_, err := Open(path, 0)
			mustBe(t, err, ErrInvalid)
		}
	})
	t.Run("a folder", func(t *testing.T) {
		_, err := Open(t.TempDir(), 0)
		mustBe(t, err, ErrInvalid)
	})
	t.Run("a device", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "pipe")
		must(t, syscall.Mkfifo(path, 0o600))
		_, err := Open(path, 0)
		mustBe(t, err, ErrInvalid)
	})
	t.Run("a missing folder", func(t *testing.T) {
		dir := t.TempDir()
		_, err := Open(filepath.Join(dir, "missing", "x.db"), 0)
		mustBe(t, err, fs.ErrNotExist)
		is.New(t).Equal(len(content(t, dir)), 0)
	})
	t.Run("a link to itself", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "loop")
		must(t, os.Symlink(path, path))
		_, err := Open(path, 0)
		is.New(t).True(err != nil)
	})
	t.Run("bad options", func(t *testing.T) {
		for _, o := range []Option{nil, WithSynchronous(0), WithSynchronous(3), WithClock(nil), WithLogger(nil), WithBatchBudget(-1)} {
			_, err := Open(":memory:", 0, o)
			mustBe(t, err, ErrInvalid)
		}
	})
}

// TestOpenRefusesSchema finds a WAL beside each file: a connection that could write would move it into the file.
func TestOpenRefusesSchema(t *testing.T) {
	for _, tt := range []struct{ name, sql string }{
		{"newer", `PRAGMA user_version = 2`},
		{"much newer", `PRAGMA user_version = 2147483647`},
		{"negative", `PRAGMA user_version = -1`},
		{"a missing table", `DROP TABLE content_entry`},
		{"a missing column", `DROP INDEX batch_job_lease; DROP INDEX batch_job_evict; DROP VIEW batch_overview; ALTER TABLE batch_job DROP COLUMN lease`},
		{"a missing column at version 0", `DROP VIEW batch_overview; ALTER TABLE batch_target DROP COLUMN hint; PRAGMA user_version = 0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			d, err := Open(filepath.Join(t.TempDir(), "x.db"), 0)
			is.NoErr(err)
			addDone(t, d, "j", 1, 3)
			behind(t, d, tt.sql)
			dir := t.TempDir()
			path := filepath.Join(dir, "x.db")
			copyFiles(t, d.file, path)
			is.NoErr(d.Close())
			before := content(t, dir)
			is.True(!strings.HasPrefix(before["x.db-wal"], "0 bytes"))
			_, err = Open(path, 0)
			mustBe(t, err, ErrSchema)
			is.Equal(content(t, dir), before)
		})
	}
	t.Run("UTF-16", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.db")
		shell(t, path, `PRAGMA encoding = 'UTF-16'; CREATE TABLE t (x)`)
		_, err := Open(path, 0)
		mustBe(t, err, ErrSchema)
	})
}

// shell runs statements on a file that no store has open, as the sqlite3 shell would.
func shell(t testing.TB, path, sql string) {
	t.Helper()
	conn, err := openRaw(path)
	must(t, err)
	_, err = conn.Exec(sql, nil)
	must(t, errors.Join(err, conn.Close()))
}

// specSchema is the schema of the spec, to the letter, and nothing else.
func specSchema() string {
	schema, _, _ := strings.Cut(schemaSQL, "-- The live jobs")
	return schema
}

func TestOpenGains(t *testing.T) {
	rows := `INSERT INTO batch_job VALUES ('j', 'c', 'fleet', 'k', 'running', '', 2, 1, 5, 6, 3);
		INSERT INTO batch_target VALUES ('j', 0, 'u', '{}', 'done', 'abc', NULL, NULL), ('j', 1, 'v', '{}', 'pending', NULL, NULL, NULL);`
	cache := `CREATE TABLE content_body (digest TEXT PRIMARY KEY, nbytes INTEGER NOT NULL, body BLOB NOT NULL);
		CREATE TABLE content_entry (class TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, used_at INTEGER NOT NULL, PRIMARY KEY (class, key));
		INSERT INTO content_body VALUES ('2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824', 5, CAST('hello' AS BLOB));
		INSERT INTO content_entry VALUES ('fleet', 'k', '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824', 1);`
	tables, _, _ := strings.Cut(specSchema(), "CREATE INDEX")
	extra := strings.Replace(specSchema(), "hint    TEXT, ", "hint    TEXT, extra TEXT DEFAULT 'x', ", 1)
	for _, tt := range []struct {
		name, sql    string
		batch, cache bool
	}{
		{"an empty file", "", false, false},
		{"the spec's schema", specSchema() + rows, true, false},
		{"in WAL mode", "PRAGMA journal_mode = WAL;" + specSchema() + rows, true, false},
		{"only the cache", cache, false, true},
		{"tables without indexes", cache + tables + rows, true, true},
		{"a column more", extra + strings.Replace(strings.Replace(rows, "'abc', NULL, NULL)", "'abc', NULL, NULL, 'y')", 1), "NULL, NULL, NULL)", "NULL, NULL, NULL, 'z')", 1), true, false},
		{"tables of another program", "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER); CREATE TABLE _litestream_lock (id INTEGER);" + specSchema() + rows, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			path := filepath.Join(t.TempDir(), "x.db")
			must(t, os.WriteFile(path, nil, 0o600))
			if tt.sql != "" {
				shell(t, path, tt.sql)
			}
			for range 2 {
				d, err := Open(path, 0)
				is.NoErr(err)
				is.Equal(exists(d, "j"), tt.batch)
				if tt.batch {
					is.Equal(peek(t, d, "j"), BatchJob{"j", "c", "fleet", "k", JobRunning, "", 2, 1, 5, 6, 3})
					is.Equal(*targetsOf(t, d, "j")[0].Result, "abc")
					is.Equal(d.LiveBatchJobs("c"), 1)
					is.Equal(d.BatchNbytes(), int64(3))
					is.NoErr(d.UpdateBatchTarget("j", 1, 7, TargetPending, nil, nil, nil))
					is.NoErr(d.TouchBatchJob("j", 6))
				}
				got, ok := d.Get(ClassFleet, "k", 1)
				is.Equal(ok, tt.cache)
				is.Equal(string(got) == "hello", tt.cache)
				var objects int
				is.NoErr(d.sql.Get(&objects, `SELECT count(*) FROM sqlite_schema WHERE name GLOB 'batch_*' OR name GLOB 'content_*'`))
				is.Equal(objects, 4+9+1) // tables, indexes, the view
				audit(t, d)
			}
		})
	}
}

// TestOpenRefusesBesideAJournal: a journal has to be rolled back before the file can be read; nothing else may change.
func TestOpenRefusesBesideAJournal(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "x.db")
	shell(t, path, `PRAGMA journal_mode = PERSIST; CREATE TABLE other (x); INSERT INTO other VALUES (1); PRAGMA user_version = 99`)
	before := content(t, dir)
	is.Equal(len(before), 2) // the journal of a program that keeps its file
	_, err := Open(path, 0)
	mustBe(t, err, ErrSchema)
	is.Equal(content(t, dir), before)
}

func TestMigrationIsAllOrNothing(t *testing.T) {
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "x.db")
	shell(t, path, specSchema())
	released := steps
	defer func() { steps = released }()
	steps = []string{released[0], `CREATE TABLE half (x); CREATE TABLE batch_job (x)`}
	_, err := Open(path, 0)
	is.True(err != nil)
	steps = released
	d := openAt(t, path, 0)
	var half int
	is.NoErr(d.sql.Get(&half, `SELECT count(*) FROM sqlite_schema WHERE name = 'half'`))
	is.Equal(half, 0)
}

func TestOneOwner(t *testing.T) {
	t.Run("in this process", func(t *testing.T) {
		is := is.New(t)
		path := filepath.Join(t.TempDir(), "x.db")
		for range 30 {
			var stores [8]*DB
			var errs [8]error
			together(8, func(i int) { stores[i], errs[i] = Open(path, 0) })
			owners := 0
			for i, err := range errs {
				if err != nil {
					mustBe(t, err, ErrInUse)
					continue
				}
				owners++
				audit(t, stores[i])
			}
			is.Equal(owners, 1)
			for _, suffix := range []string{"", "-wal", "-shm"} {
				if err := os.Remove(path + suffix); err != nil {
					mustBe(t, err, fs.ErrNotExist)
				}
			}
		}
	})
	t.Run("in another process, until it is killed", func(t *testing.T) {
		is := is.New(t)
		path := filepath.Join(t.TempDir(), "x.db")
		cmd := child(t, "own", path)
		_, lines := start(t, cmd)
		is.True(lines.Scan())
		is.Equal(lines.Text(), "open")
		before := content(t, filepath.Dir(path))
		for range 3 {
			_, err := Open(path, 0)
			mustBe(t, err, ErrInUse)
		}
		is.Equal(content(t, filepath.Dir(path)), before)
		is.NoErr(cmd.Process.Kill())
		is.True(cmd.Wait() != nil)
		d := openAt(t, path, 0) // the lock file is still there, its lock is not
		is.Equal(d.MarkInFlightFailed("restart", 9), 1)
	})
	t.Run("a refused open leaves the owner's lock", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		_, err := Open(d.file, 0)
		mustBe(t, err, ErrInUse)
		out, err := child(t, "own", d.file).Output()
		is.True(err != nil)
		is.True(strings.Contains(string(out), ErrInUse.Error()))
	})
	t.Run("none in memory", func(t *testing.T) {
		is := is.New(t)
		a, b := openAt(t, ":memory:", 0), openAt(t, ":memory:", 0)
		addJob(t, a, "j", JobQueued, 1, 3)
		is.True(!exists(b, "j")) // they share nothing
	})
}

func childOwn(args []string) error {
	d, err := Open(args[0], 0)
	if err != nil {
		return err
	}
	if err := d.CreateBatchJob(BatchJob{ID: "j"}); err != nil {
		return err
	}
	fmt.Println("open")
	untilEOF()
	return d.Close()
}

func TestReadOnly(t *testing.T) {
	is := is.New(t)
	// As nobody, since root ignores the modes; from a copy of this binary that nobody may read.
	self, err := os.Executable()
	is.NoErr(err)
	binary, err := os.ReadFile(self)
	is.NoErr(err)
	dir := t.TempDir()
	for d := dir; d != "/" && strings.Contains(d, t.Name()); d = filepath.Dir(d) {
		is.NoErr(os.Chmod(d, 0o755))
	}
	is.NoErr(os.WriteFile(filepath.Join(dir, "test"), binary, 0o755))
	run := func(path string) string {
		cmd := child(t, "readonly", path)
		cmd.Path = filepath.Join(dir, "test")
		if os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, _ := cmd.Output()
		return string(out)
	}
	sub := filepath.Join(dir, "sub")
	is.NoErr(os.Mkdir(sub, 0o777))
	is.NoErr(os.Chmod(sub, 0o777))
	path := filepath.Join(sub, "x.db")
	is.Equal(run(path), "opened, wrote\n")
	is.NoErr(os.Chmod(path, 0o444))
	before := content(t, sub)
	want := fmt.Sprintf("error: dcache: open %q: %v", path, ErrReadOnly)
	is.True(strings.HasPrefix(run(path), want)) // the file
	is.NoErr(os.Chmod(path, 0o644))
	is.NoErr(os.Chmod(sub, 0o555))
	is.True(strings.Contains(run(path), ErrReadOnly.Error())) // the folder
	is.Equal(content(t, sub), before)
	is.NoErr(os.Chmod(sub, 0o777))
	is.Equal(run(path), "opened, wrote\n")
}

func childReadOnly(args []string) error {
	d, err := Open(args[0], 0)
	if err != nil {
		return err
	}
	if err := d.CreateBatchJob(BatchJob{ID: fmt.Sprint(time.Now().UnixNano())}); err != nil {
		return err
	}
	fmt.Println("opened, wrote")
	return d.Close()
}

func TestPragmas(t *testing.T) {
	is := is.New(t)
	d := open(t, WithSynchronous(SyncNormal), WithExternalCheckpoint())
	pragma := func(name string) (s string) {
		is.NoErr(d.sql.Get(&s, `PRAGMA `+name))
		return s
	}
	is.Equal(pragma("synchronous"), "1")
	is.Equal(pragma("wal_autocheckpoint"), "0")
	is.Equal(pragma("auto_vacuum"), "2") // new files give pages back
	is.Equal(pragma("journal_mode"), "wal")
	is.Equal(pragma("busy_timeout"), busyTimeout)

	// The pool replaces a connection that breaks: the next one is prepared like the first.
	behind(t, d, `PRAGMA synchronous = 0`)
	d.sql.SetMaxIdleConns(0)
	d.sql.SetMaxIdleConns(1)
	is.Equal(pragma("synchronous"), "1")

	is.Equal(open(t).synchronous, SyncFull)

	raw(t, d, func(c *sqlite3.SQLiteConn) error {
		is.True(setPragma(c, pragmaOf("no_such_pragma", "1")) != nil)
		is.True(setPragma(c, pragmaOf("journal_mode", "no_such_mode")) != nil)
		return nil
	})
}

func pragmaOf(name, value string) pragma { return pragma{name, value, value} }

func TestMemoryOutlivesIdleness(t *testing.T) {
	is := is.New(t)
	d := openAt(t, ":memory:", 0)
	addJob(t, d, "j", JobQueued, 1, 3)
	is.Equal(d.sql.Stats().MaxOpenConnections, 1)
	together(50, func(int) {
		if got, ok := d.BatchTargets("j"); !ok || len(got) != 3 {
			t.Error("the targets are gone")
		}
	})
	s := d.sql.Stats()
	is.Equal(s.MaxIdleClosed+s.MaxIdleTimeClosed+s.MaxLifetimeClosed, int64(0))
}

func TestClose(t *testing.T) {
	t.Run("empties the WAL, is idempotent, and ends every method", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addDone(t, d, "j", 1, 100_000)
		is.True(d.Stats().WALBytes > 0)
		is.NoErr(d.Close())
		is.NoErr(d.Close())
		is.Equal(d.walBytes(), int64(0))
		for name, err := range errorsOfAll(d) {
			t.Log(name)
			mustBe(t, err, ErrClosed)
		}
	})
	t.Run("in the middle of everything", func(t *testing.T) {
		for round := range 20 {
			d := open(t, quiet())
			addJob(t, d, "j", JobRunning, 1, 64)
			together(65, func(i int) {
				if i == 64 {
					for range round {
						d.Stats()
					}
					if err := d.Close(); err != nil {
						t.Error(err)
					}
					return
				}
				for d.UpdateBatchTarget("j", i, 2, TargetDone, bytesOf(i), nil, nil) == nil {
					for name, err := range errorsOfAll(d) {
						if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrExists) &&
							!errors.Is(err, ErrNotLive) {
							t.Error(name, err)
						}
					}
				}
			})
			again := openAt(t, d.file, 0)
			audit(t, again)
		}
	})
	t.Run("leaves no goroutine behind", func(t *testing.T) {
		is := is.New(t)
		before := runtime.NumGoroutine()
		for range 10 {
			d, err := Open(":memory:", 0)
			is.NoErr(err)
			together(20, func(i int) { _ = d.CreateBatchJob(BatchJob{ID: fmt.Sprint(i)}) })
			is.NoErr(d.Close())
		}
		for n := 0; runtime.NumGoroutine() > before && n < 1e6; n++ {
			runtime.Gosched() // database/sql ends its own a moment after Close
		}
		is.True(runtime.NumGoroutine() <= before)
	})
	t.Run("with a reader in the way", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addDone(t, d, "j", 1, 1000)
		cmd := child(t, "read", d.file)
		stdin, lines := start(t, cmd)
		is.True(lines.Scan())
		addDone(t, d, "k", 1, 1000) // after the reader's snapshot
		began := time.Now()
		is.NoErr(d.Close())
		is.True(time.Since(began) < 4*time.Second) // did not wait out the busy timeout
		is.NoErr(stdin.Close())
		is.NoErr(cmd.Wait())
		is.True(exists(openAt(t, d.file, 0), "k"))
	})
}

// childRead opens a snapshot and keeps it until its input ends.
func childRead(args []string) error {
	conn, err := openRaw("file:" + args[0] + "?mode=ro")
	if err != nil {
		return err
	}
	if _, err := conn.Exec(`BEGIN; SELECT count(*) FROM batch_job`, nil); err != nil {
		return err
	}
	fmt.Println("reading")
	untilEOF()
	_, err = conn.Exec(`SELECT count(*) FROM batch_target; COMMIT`, nil)
	return errors.Join(err, conn.Close())
}

// errorsOfAll calls every method; one that has no error to return counts as ErrClosed when it returns its zero value.
func errorsOfAll(d *DB) map[string]error {
	ctx, cancel := deadContext()
	defer cancel()
	zero := func(isZero bool) error {
		if isZero {
			return ErrClosed
		}
		return nil
	}
	_, peeked := d.PeekBatchJob("j")
	_, read := d.BatchJob("j")
	_, byKey := d.BatchJobByIDem("c", "k", 1, time.Hour)
	_, targets := d.BatchTargets("j")
	_, _, page := d.BatchTargetsPage("j", 0, 1, 1)
	_, progressed := d.BatchProgress("j")
	_, got := d.Get(ClassFleet, "k", 1)
	_, put := d.Put(ClassFleet, "k", []byte("x"), 1)
	_, finished := d.FinishBatchTarget("j", 0, 1, TargetDone, nil, nil, nil)
	_, requeued := d.RequeueInFlight(1)
	_, _, listed := d.ListBatchJobs("", Cursor{}, 1)
	_, _, submitted := d.SubmitBatch(BatchJob{ID: "s"}, pending(1), 1, time.Hour)
	backup := d.Backup(ctx, filepath.Join(filepath.Dir(d.file), "backup"))
	if errors.Is(backup, ctx.Err()) {
		backup = ErrClosed
	}
	return map[string]error{
		"PeekBatchJob": zero(!peeked), "BatchJob": zero(!read), "BatchJobByIDem": zero(!byKey), "BatchTargets": zero(!targets),
		"BatchTargetsPage": zero(!page), "BatchProgress": zero(!progressed), "Get": zero(!got),
		"Put": put, "FinishBatchTarget": finished, "RequeueInFlight": requeued, "ListBatchJobs": listed, "SubmitBatch": submitted,
		"LiveBatchJobs": zero(d.LiveBatchJobs("c") == 0), "LiveBatchJobsTotal": zero(d.LiveBatchJobsTotal() == 0),
		"BatchNbytes": zero(d.BatchNbytes() == 0), "Size": zero(d.Size() == 0), "Stats": zero(d.Stats() == Stats{}),
		"SweepBatch": zero(d.SweepBatch(-9, time.Hour) == 0), "EvictBatchOldest": zero(d.EvictBatchOldest(1<<40) == 0),
		"CreateBatchJob": d.CreateBatchJob(BatchJob{ID: "n"}), "PutBatchTargets": d.PutBatchTargets("j", nil),
		"UpdateBatchTarget": d.UpdateBatchTarget("j", 1, 1, TargetRunning, nil, nil, nil),
		"SetBatchJobStatus": d.SetBatchJobStatus("j", JobRunning, "", 1), "TouchBatchJob": d.TouchBatchJob("j", 1),
		"CancelBatchJob": d.CancelBatchJob("absent", "", 1), "DeleteBatchJob": d.DeleteBatchJob("n"), "Delete": d.Delete(ClassFleet, "k"),
		"Check": d.Check(), "Compact": d.Compact(), "Backup": backup,
		"MarkInFlightFailed": zero(d.MarkInFlightFailed("", 1) == 0),
	}
}
