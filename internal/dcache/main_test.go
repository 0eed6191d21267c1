package dcache

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// children are what this test binary does when it is started by a test, as another process: to own a file, to be killed, to run
// under another user or a limit. Each prints lines for its test to read.
var children = map[string]func(args []string) error{
	"own":      childOwn,
	"lock":     childLock,
	"shell":    childShell,
	"readonly": childReadOnly,
	"write":    childWrite,
	"read":     childRead,
	"fill":     childFill,
	"cut":      childCut,
}

const childEnv = "DCACHE_TEST_CHILD"

func TestMain(m *testing.M) {
	name := os.Getenv(childEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := children[name](os.Args[1:]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// child prepares this binary to run as one of children.
func child(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// start starts a child, and returns its input, which ends it when closed, and the lines that it prints.
func start(t testing.TB, cmd *exec.Cmd) (stdin io.WriteCloser, lines *bufio.Scanner) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines = bufio.NewScanner(out)
	return stdin, lines
}

// untilEOF waits until the test closes the child's input, or has gone.
func untilEOF() {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		panic(err)
	}
}

// copyFiles copies a database and its WAL as another process, since closing a file here would drop SQLite's locks on it.
func copyFiles(t testing.TB, file, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		if _, err := os.Stat(file + suffix); err != nil {
			continue
		}
		if out, err := exec.Command("cp", file+suffix, to+suffix).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// content digests all files of a folder but locks and shared memory, which hold no data.
func content(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if name := e.Name(); e.Type().IsRegular() && filepath.Ext(name) != ".db-lock" && filepath.Ext(name) != ".db-shm" {
			b, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			files[name] = fmt.Sprintf("%d bytes, %.8s", len(b), digestOf(b))
		}
	}
	return files
}
