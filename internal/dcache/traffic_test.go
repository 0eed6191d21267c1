package dcache

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

var trafficBytes = flag.Int64("traffic.bytes", 96<<20, "bytes that TestSteadyTraffic writes; several GiB show the bound over a longer time")

// TestSteadyTraffic writes many times what the budgets hold, batches and content, and looks at the size of file and WAL as it goes.
func TestSteadyTraffic(t *testing.T) {
	is := is.New(t)
	const contentBudget, batchBudget = 8 << 20, 16 << 20
	d := openAt(t, filepath.Join(t.TempDir(), "x.db"), contentBudget, WithBatchBudget(batchBudget))
	const targets, size = 50, 20_000
	var written int64
	var file, wal, over int64
	for round := int64(0); written < *trafficBytes; round++ {
		together(16, func(w int) {
			id := fmt.Sprint(round, "-", w)
			if _, _, err := d.SubmitBatch(BatchJob{ID: id}, pending(targets), round, time.Hour); err != nil {
				t.Error(err)
			}
			for idx := range targets {
				result := strings.Repeat("x", size-idx*37)
				if _, err := d.FinishBatchTarget(id, idx, round, TargetDone, &result, nil, nil); err != nil {
					t.Error(err)
				}
			}
			if _, err := d.Put(ClassFleet, id, []byte(strings.Repeat(id, 20_000)), round); err != nil {
				t.Error(err)
			}
		})
		written += 16 * targets * size
		s := d.Stats()
		file, wal, over = max(file, s.FileBytes), max(wal, s.WALBytes), max(over, s.BatchOverBudget)
	}
	rows := int64(16 * targets * 200) // the text of the rows that are live at a time
	t.Logf("%d MiB written; file up to %.1f MiB, WAL up to %.1f MiB, live jobs up to %.1f MiB above the budget",
		written>>20, float64(file)/(1<<20), float64(wal)/(1<<20), float64(over)/(1<<20))
	is.True(file <= (contentBudget+batchBudget+over+rows)*5/4+16<<20)
	is.True(wal <= 64<<20)
	is.True(d.BatchNbytes() <= batchBudget)
}
