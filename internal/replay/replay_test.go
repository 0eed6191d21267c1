package main

import (
	"bytes"
	"dcache/internal/dcache"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

const programEnv = "DCACHE_REPLAY_TEST"

// TestMain is the program itself, where a test or the supervisor starts it.
func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// replay runs the program, and returns its report and its exit status.
func replay(t *testing.T, args ...string) (r report, stderr string, ok bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"-json"}, args...)...)
	cmd.Env = append(os.Environ(), programEnv+"=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, out.Bytes())
		}
	}
	return r, errs.String(), err == nil
}

func write(t *testing.T, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFolder(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	files := map[string]string{
		"beside.txt":         "beside the folders",
		"not-utf8.bin":       "\xff\xfe\x00\x80",
		"a/empty":            "",
		"a/deep/er/page.htm": "<html>" + strings.Repeat("x", 100_000),
		"a/same":             "beside the folders",
		"b c/ünï?#%41.txt":   "odd name",
	}
	for i := range 200 {
		files["many/"+strings.Repeat("f", i+1)] = strings.Repeat("y", i)
	}
	bodies := map[string]bool{}
	var content int64
	for name, body := range files {
		write(t, filepath.Join(dir, name), body)
		if !bodies[body] {
			content += int64(len(body))
		}
		bodies[body] = true
	}
	is.NoErr(os.Mkdir(filepath.Join(dir, "empty folder"), 0o755))
	is.NoErr(os.Symlink("beside.txt", filepath.Join(dir, "link")))

	db := filepath.Join(t.TempDir(), "x.db")
	r, stderr, ok := replay(t, "-dir", dir, "-db", db, "-workers", "16", "-keep", "-budget", "5000")
	t.Log(stderr)
	is.True(ok)
	is.Equal(len(r.Disagreements), 0)
	is.Equal(r.Batches, 4) // the files beside the folders, a, "b c", many
	is.Equal(r.Targets, len(files))
	is.Equal(r.TargetStatus[dcache.TargetDone], len(files))
	is.Equal(r.JobStatus[dcache.JobDone], 4)
	is.Equal(r.ContentBytes, content)
	is.True(r.KilledAt >= len(files)/2)
	is.True(r.Survived >= r.KilledAt)
	is.Equal(r.Survived+r.ResumedOpen, len(files))
	is.True(r.BytesAfter <= 5000)
	is.Equal(r.Audit, "passed")

	d, err := dcache.Open(db, 0) // -keep: what it left is a store
	is.NoErr(err)
	is.NoErr(d.Check())
	is.Equal(d.Size(), content)
	is.NoErr(d.Close())

	_, stderr, ok = replay(t, "-dir", dir, "-db", db)
	is.True(!ok)
	is.True(strings.Contains(stderr, "there is a file already"))
}

func TestLines(t *testing.T) {
	is := is.New(t)
	r, stderr, ok := replay(t, "-in", "../../testdata/batches.jsonl")
	t.Log(stderr)
	is.True(ok)
	is.Equal(r.Batches, 12)
	is.Equal(r.JobStatus, map[string]int{dcache.JobDone: 10, dcache.JobFailed: 1, dcache.JobPartial: 1})
	is.Equal(r.TargetStatus[dcache.TargetFailed], 4+5+1)
	is.Equal(r.Lost, 0)
}

func TestOneTarget(t *testing.T) {
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "one.jsonl")
	write(t, path, `{"name":"one","targets":[{"url":"u","body":"b"}]}`)
	r, stderr, ok := replay(t, "-in", path)
	t.Log(stderr)
	is.True(ok)
	is.Equal(r.KilledAt, 1)
	is.Equal(r.Survived, 1)
}

// TestOddTargets kills at a half that is no whole number.
func TestOddTargets(t *testing.T) {
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "three.jsonl")
	write(t, path, `{"name":"three","targets":[{"url":"u","repeat":3,"body":"b"}]}`)
	for range 3 {
		_, stderr, ok := replay(t, "-in", path, "-workers", "1")
		t.Log(stderr)
		is.True(ok)
	}
}

func TestBadInput(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "bad.jsonl"), "{\"name\":\"x\",\"targets\":[{}]}\n{")
	write(t, filepath.Join(dir, "none.jsonl"), `{"name":"x"}`)
	is.NoErr(os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	for want, args := range map[string][]string{
		"bad.jsonl:2":          {"-in", filepath.Join(dir, "bad.jsonl")},
		"without targets":      {"-in", filepath.Join(dir, "none.jsonl")},
		"nothing to fetch":     {"-dir", filepath.Join(dir, "empty")},
		"no such file":         {"-dir", filepath.Join(dir, "missing")},
		"at least 1":           {"-dir", dir, "-workers", "0"},
		"no arguments besides": {"-dir", dir, "extra"},
	} {
		_, stderr, ok := replay(t, args...)
		is.True(!ok)
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in %q", want, stderr)
		}
	}
}

// TestCompare gives the ledger numbers that the store does not have: each must be seen.
func TestCompare(t *testing.T) {
	good := func() *ledger {
		f := found{Status: dcache.TargetDone, Len: 3, Digest: "d"}
		l := &ledger{
			expected: map[place]found{{"j", 0}: f, {"j", 1}: f}, targets: map[string]int{"j": 2}, content: 5,
			acked: map[place]found{{"j", 0}: f, {"j", 1}: f}, created: [2]map[string]bool{{"j": true}, {}},
			before: map[place]found{{"j", 0}: f}, survived: map[place]found{{"j", 0}: f}, stored: map[place]found{{"j", 0}: f, {"j", 1}: f},
			resumed: event{Open: 1, Jobs: 1, Known: map[string]bool{"j": true}},
			end:     &end{JobStatus: map[string]string{"j": dcache.JobDone}, BatchBytes: 6, ContentBytes: 5, Left: []string{"j"}, Budget: 6, BytesAfter: 6, BytesReopened: 6, Audit: "passed"},
		}
		l.spent[0] = 1
		return l
	}
	is := is.New(t)
	is.Equal(newReport(good(), nil, 1).Disagreements, nil)
	for name, spoil := range map[string]func(l *ledger){
		"an acknowledged result is lost":             func(l *ledger) { delete(l.stored, place{"j", 1}) },
		"an acknowledged result has changed":         func(l *ledger) { l.stored[place{"j", 1}] = found{dcache.TargetDone, 3, "other"} },
		"a loss hidden by what was not acknowledged": func(l *ledger) { l.survived = map[place]found{{"j", 1}: l.stored[place{"j", 1}]} },
		"acknowledged twice":                         func(l *ledger) { l.again = 1 },
		"a result that nobody asked for":             func(l *ledger) { l.stored[place{"j", 2}] = found{} },
		"one acknowledgement more":                   func(l *ledger) { l.acked[place{"j", 7}] = found{Status: dcache.TargetDone} },
		"lost by the kill":                           func(l *ledger) { delete(l.survived, place{"j", 0}) },
		"changed by the kill":                        func(l *ledger) { l.survived[place{"j", 0}] = found{} },
		"resumed too few":                            func(l *ledger) { l.resumed.Open = 0 },
		"a submit lost":                              func(l *ledger) { l.resumed.Known = nil },
		"a submit made twice":                        func(l *ledger) { l.created[1]["j"] = true },
		"bytes of results":                           func(l *ledger) { l.end.BatchBytes++ },
		"bytes of content":                           func(l *ledger) { l.content++ },
		"a job's status":                             func(l *ledger) { l.end.JobStatus["j"] = dcache.JobPartial },
		"a job too many":                             func(l *ledger) { l.end.JobStatus["k"] = dcache.JobDone },
		"a sweep of too many":                        func(l *ledger) { l.end.Swept++ },
		"a job left that was said to be gone":        func(l *ledger) { l.end.Evicted++ },
		"over the budget":                            func(l *ledger) { l.end.BytesAfter++ },
		"evicted more than was needed": func(l *ledger) {
			l.end.Left, l.end.Evicted, l.end.BytesAfter, l.end.BytesReopened = nil, 1, 0, 0
		},
		"lost when it was opened again": func(l *ledger) { l.end.BytesReopened = 0 },
		"the audit":                     func(l *ledger) { l.end.Audit = "not so" },
		"a WAL left behind":             func(l *ledger) { l.end.WALBytes = 1 },
		"no end":                        func(l *ledger) { l.end = nil },
	} {
		l := good()
		spoil(l)
		if len(newReport(l, nil, 1).Disagreements) == 0 {
			t.Errorf("%s: not seen", name)
		}
	}
}
