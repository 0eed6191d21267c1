// Replay plays the life of a busy page-fetching service on real files, with the store as its memory: batches are submitted and
// submitted again, fetched by many goroutines, read by clients meanwhile; half way the process that owns the store is killed and
// started again; then the batches are swept and evicted. In the end every number that can be known from outside is compared
// with what the store holds.
//
// There are two processes. The supervisor shows the progress, kills, and keeps the ledger: what the service has said was stored.
// The service, which is this program started by itself, owns the store; nothing else opens the file while it lives.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

// config is what the flags say. It is handed to the service as JSON.
type config struct {
	Dir     string // folder of files to fetch
	In      string // or a file of batches, as JSON lines
	DB      string
	Workers int
	Budget  int64
	Keep    bool
	JSON    bool
	Resume  bool // of the service: it takes over a store that was killed
}

const serviceEnv = "DCACHE_REPLAY_SERVICE"

func main() {
	if s := os.Getenv(serviceEnv); s != "" {
		var c config
		err := json.Unmarshal([]byte(s), &c)
		if err == nil {
			err = serve(c)
		}
		exit(err)
	}
	var c config
	flag.StringVar(&c.Dir, "dir", "", "folder of files to fetch (default: the source tree of the installed Go)")
	flag.StringVar(&c.In, "in", "", "batches as JSON lines, instead of a folder")
	flag.StringVar(&c.DB, "db", "", "the store's file, which must not exist (default: a temporary one, removed at the end)")
	flag.IntVar(&c.Workers, "workers", 64, "goroutines that fetch")
	flag.Int64Var(&c.Budget, "budget", 0, "bytes of results to evict down to at the end (default: half of what is stored)")
	flag.BoolVar(&c.Keep, "keep", false, "keep the store's file, and print its path")
	flag.BoolVar(&c.JSON, "json", false, "print the report as JSON")
	flag.Parse()
	exit(run(c))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(c config) error {
	if flag.NArg() > 0 || c.Workers < 1 || c.Budget < 0 {
		return fmt.Errorf("usage: -workers must be at least 1, -budget at least 0, and there are no arguments besides the flags: %q", flag.Args())
	}
	if c.Dir == "" && c.In == "" {
		root, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("find Go's source tree (or name a folder with -dir): %w", err)
		}
		c.Dir = filepath.Join(strings.TrimSpace(string(root)), "src")
	}
	if c.DB == "" {
		dir, err := os.MkdirTemp("", "dcache-replay-")
		if err != nil {
			return err
		}
		if !c.Keep {
			defer os.RemoveAll(dir) //nolint:errcheck // A temporary folder; the system clears what is left of it.
		}
		c.DB = filepath.Join(dir, "dcache.db")
	} else if _, err := os.Lstat(c.DB); err == nil {
		return fmt.Errorf("-db %s: there is a file already", c.DB)
	}
	// An interrupt ends the service; this process goes on to clear up after it.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	batches, err := load(c)
	if err != nil {
		return err
	}
	r, err := supervise(c, batches)
	if err != nil {
		return err
	}
	if c.JSON {
		err = json.NewEncoder(os.Stdout).Encode(r)
	} else {
		r.print(os.Stdout)
	}
	if c.Keep {
		fmt.Fprintln(os.Stderr, "kept", c.DB)
	}
	if err == nil && len(r.Disagreements) > 0 {
		err = fmt.Errorf("%d numbers disagree", len(r.Disagreements))
	}
	return err
}
