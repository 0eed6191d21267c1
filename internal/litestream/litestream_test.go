// Package litestream shows that Litestream can replicate a store at work. It runs as a process of its own, as in service: linked into
// the store's process, its SQLite would drop the locks of ours whenever it closed the file.
package litestream

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"dcache/internal/dcache"

	"github.com/matryer/is"
)

// A store under load leaves the write lock free for moments only, which the default busy timeout of a second can miss.
const config = `
dbs:
  - path: %s
    monitor-interval: 100ms
    busy-timeout: 10s
    checkpoint-interval: 1s
    min-checkpoint-page-count: 500
    replica:
      path: %s
      sync-interval: 200ms
`

func TestLitestream(t *testing.T) {
	is := is.New(t)
	bin := filepath.Join(t.TempDir(), "litestream")
	t.Log("building Litestream")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/benbjohnson/litestream/cmd/litestream").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	path, replica, yml := filepath.Join(dir, "jobs.db"), filepath.Join(dir, "replica"), filepath.Join(dir, "litestream.yml")
	is.NoErr(os.WriteFile(yml, fmt.Appendf(nil, config, path, replica), 0o600))

	d, err := dcache.Open(path, 0, dcache.WithExternalCheckpoint())
	is.NoErr(err)
	write(t, d, "before", 1)
	replicate := exec.Command(bin, "replicate", "-config", yml)
	var log bytes.Buffer
	replicate.Stdout, replicate.Stderr = &log, &log
	is.NoErr(replicate.Start())
	// Rounds of writing under which Litestream checkpoints the WAL more than once.
	began := time.Now()
	rounds := 0
	for ; rounds < 3 || time.Since(began) < 10*time.Second; rounds++ {
		write(t, d, fmt.Sprint("during-", rounds), 16)
	}
	d.SweepBatch(5, time.Second) // the jobs of every other round
	wal := d.Stats().WALBytes
	is.Equal(d.Stats().Errors, int64(0)) // nothing that it does fails the store
	is.NoErr(d.Check())                  // nor do the tables that it adds
	is.NoErr(replicate.Process.Signal(os.Interrupt))
	is.NoErr(replicate.Wait()) // it replicates the rest before it ends
	t.Logf("%d rounds, WAL at the end %.1f MiB", rounds, float64(wal)/(1<<20))

	copied := filepath.Join(dir, "restored.db")
	out, err = exec.Command(bin, "restore", "-config", yml, "-o", copied, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s\nreplicate said: %s", err, out, log.String())
	}
	restored, err := dcache.Open(copied, 0)
	is.NoErr(err)
	is.NoErr(restored.Check())
	verify(t, restored, "before", 1)
	for r := range rounds {
		verify(t, restored, fmt.Sprint("during-", r), 16)
	}
	is.Equal(restored.BatchNbytes(), d.BatchNbytes())
	is.NoErr(restored.Close())
	is.NoErr(d.Check())
	is.NoErr(d.Close())
}

const targets = 40

func result(id string, idx int) string { return strings.Repeat(fmt.Sprintf("%s/%d ", id, idx), 100) }

// leaseOf makes every other round's jobs ones that the sweep takes.
func leaseOf(round string) int64 {
	if strings.HasPrefix(round, "during-") && round[len(round)-1]%2 == 0 {
		return 1
	}
	return 1000
}

// write has as many goroutines submit a job and finish its targets.
func write(t *testing.T, d *dcache.DB, round string, writers int) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			id := fmt.Sprint(round, "-", w)
			rows := make([]dcache.BatchTarget, targets)
			for i := range rows {
				rows[i] = dcache.BatchTarget{Idx: i, URL: "u", Options: "{}"}
			}
			if _, _, err := d.SubmitBatch(dcache.BatchJob{ID: id}, rows, leaseOf(round), time.Hour); err != nil {
				t.Error(err)
			}
			for idx := range rows {
				r := result(id, idx)
				if _, err := d.FinishBatchTarget(id, idx, leaseOf(round), dcache.TargetDone, &r, nil, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// verify expects every result of a round, or, where the sweep took its jobs, none.
func verify(t *testing.T, d *dcache.DB, round string, writers int) {
	t.Helper()
	for w := range writers {
		id := fmt.Sprint(round, "-", w)
		got, ok := d.BatchTargets(id)
		if swept := leaseOf(round) == 1; swept == ok {
			t.Errorf("%s: there %v, swept %v", id, ok, swept)
		}
		for idx, g := range got {
			if g.Status != dcache.TargetDone || *g.Result != result(id, idx) {
				t.Errorf("%s/%d is %s", id, idx, g.Status)
			}
		}
	}
}
