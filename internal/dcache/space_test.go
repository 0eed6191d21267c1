package dcache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/matryer/is"
)

// small is what an almost empty file may hold on to: the pages that are kept, and some rows.
const small = (keepPages + 60) * 8192

func TestSpaceComesBack(t *testing.T) {
	fill := func(t *testing.T, d *DB, n int) {
		t.Helper()
		together(n, func(i int) {
			id := fmt.Sprint(i)
			err := errors.Join(d.CreateBatchJob(BatchJob{ID: id, Status: JobDone, Lease: int64(i)}),
				d.PutBatchTargets(id, []BatchTarget{{Status: TargetDone, Result: bytesOf(10_000)}}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("after a sweep", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		fill(t, d, 1000)
		s := d.Stats()
		peak := s.FileBytes + s.WALBytes
		is.True(peak > 10_000_000)
		is.Equal(d.SweepBatch(5000, 0), 1000)
		s = d.Stats()
		is.Equal(s.BatchBytes, int64(0))
		is.True(s.FileBytes < small)
		is.True(s.FreeBytes < s.FileBytes)
		is.Equal(s.WALBytes, int64(0))
		fill(t, d, 1000)
		is.Equal(d.SweepBatch(-1, 0), 0)
		again := d.Stats().FileBytes
		is.True(again < peak+peak/10) // the second fill uses the space of the first
	})
	t.Run("after an eviction, by live jobs kept apart", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "live", JobRunning, 0, 1)
		fill(t, d, 1000)
		is.NoErr(d.UpdateBatchTarget("live", 0, 1, TargetDone, bytesOf(1000), nil, nil))
		is.Equal(d.EvictBatchOldest(100_000), 991)
		is.True(d.Stats().FileBytes < small)
		is.Equal(len(*targetsOf(t, d, "live")[0].Result), 1000)
	})
	t.Run("after content was evicted", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, filepath.Join(t.TempDir(), "x.db"), 10_000_000)
		for i := range 1500 {
			_, err := d.Put(ClassFleet, fmt.Sprint(i), append(make([]byte, 10_000), fmt.Sprint(i)...), int64(i))
			is.NoErr(err)
		}
		is.True(d.Size() <= 10_000_000)
		is.True(d.Stats().FileBytes < 10_000_000*5/4+16<<20)
	})
	t.Run("after one large transaction, the WAL too", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addJob(t, d, "j", JobRunning, 1, 1)
		is.NoErr(d.UpdateBatchTarget("j", 0, 1, TargetDone, bytesOf(30_000_000), nil, nil))
		is.True(d.Stats().WALBytes > 30_000_000)
		for range 3 {
			is.NoErr(d.UpdateBatchTarget("j", 0, 1, TargetDone, bytesOf(10), nil, nil))
		}
		is.True(d.Stats().WALBytes <= 8<<20)
		is.NoErr(d.DeleteBatchJob("j"))
		is.Equal(d.Stats().WALBytes, int64(0))
		is.True(d.Stats().FileBytes < small)
	})
	t.Run("not while a reader holds a snapshot, but after it", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		fill(t, d, 1000)
		cmd := child(t, "read", d.file)
		stdin, lines := start(t, cmd)
		is.True(lines.Scan())
		together(1000, func(i int) { // neither fails the other
			if err := d.UpdateBatchTarget(fmt.Sprint(i), 0, int64(i), TargetDone, bytesOf(9_000), nil, nil); err != nil {
				t.Error(err)
			}
		})
		grown := d.Stats().WALBytes
		is.True(grown > 8<<20)
		is.Equal(d.SweepBatch(5000, 0), 1000)
		is.NoErr(stdin.Close())
		is.NoErr(cmd.Wait())
		fill(t, d, 10)
		is.Equal(d.SweepBatch(5000, 0), 10)
		s := d.Stats()
		is.True(s.FileBytes < small)
		is.Equal(s.WALBytes, int64(0))
	})
	t.Run("of a file that was made by another hand, after Compact", func(t *testing.T) {
		is := is.New(t)
		path := filepath.Join(t.TempDir(), "x.db")
		shell(t, path, specSchema())
		d := openAt(t, path, 0)
		fill(t, d, 1000)
		is.Equal(d.SweepBatch(5000, 0), 1000)
		is.True(d.Stats().FileBytes > 10_000_000)
		is.NoErr(d.Compact())
		is.True(d.Stats().FileBytes < small)
		fill(t, d, 1000)
		is.Equal(d.SweepBatch(5000, 0), 1000)
		is.True(d.Stats().FileBytes < small)
		is.NoErr(openAt(t, ":memory:", 0).Compact())
	})
	t.Run("by Compact, though a reader keeps the file from getting shorter", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addDone(t, d, "j", 1, 10)
		cmd := child(t, "read", d.file)
		stdin, lines := start(t, cmd)
		is.True(lines.Scan())
		is.NoErr(d.Compact())
		is.Equal(d.Stats().FreeBytes, int64(0))
		is.NoErr(stdin.Close())
		is.NoErr(cmd.Wait())
	})
}

// TestWALStaysSmall reads and misses between writes: an accessor that left a cursor open would keep every checkpoint from its end.
func TestWALStaysSmall(t *testing.T) {
	is := is.New(t)
	d := open(t)
	addJob(t, d, "j", JobRunning, 1, 1)
	var largest int64
	for i := range 1500 {
		is.NoErr(d.UpdateBatchTarget("j", 0, int64(i), TargetDone, bytesOf(3000), nil, nil))
		d.BatchTargets("absent")
		d.PeekBatchJob("absent")
		d.BatchTargetsPage("j", 0, 1, 0)
		if i%100 == 0 {
			info, err := os.Stat(d.file + "-wal")
			is.NoErr(err)
			largest = max(largest, info.Size())
		}
	}
	is.True(largest < 6<<20)
}
