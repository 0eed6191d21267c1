package dcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"
)

func TestBackup(t *testing.T) {
	t.Run("while others write", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for i := range 200 {
			addDone(t, d, fmt.Sprint(i), 1, 20_000)
		}
		addJob(t, d, "j", JobRunning, 1, 2000)
		_, err := d.Put(ClassFleet, "k", []byte("body"), 1)
		is.NoErr(err)
		path := filepath.Join(t.TempDir(), "copy.db")
		var copied atomic.Bool
		var before, total atomic.Int64
		together(5, func(w int) {
			if w == 4 {
				if err := d.Backup(t.Context(), path); err != nil {
					t.Error(err)
				}
				copied.Store(true)
				return
			}
			for i := w; i < 2000; i += 4 {
				if err := d.UpdateBatchTarget("j", i, 2, TargetDone, bytesOf(100), nil, nil); err != nil {
					t.Error(err)
				}
				total.Add(1)
				if !copied.Load() {
					before.Add(1)
				}
				if i%7 == 0 { // a transaction with changes that is rolled back
					if err := d.write(func(t *tx) error {
						_, err := t.exec(`UPDATE batch_job SET lease = 9`)
						return errors.Join(err, ErrInvalid)
					}); !errors.Is(err, ErrInvalid) {
						t.Error(err)
					}
				}
			}
		})
		entries, err := os.ReadDir(filepath.Dir(path))
		is.NoErr(err)
		is.Equal(len(entries), 1) // the copy and nothing else
		c := openAt(t, path, 0)   // whole: it is audited
		is.Equal(len(targetsOf(t, c, "j")), 2000)
		is.True(peek(t, c, "199").NBytes == 20_000)
		body, ok := c.Get(ClassFleet, "k", 1)
		is.True(ok && string(body) == "body")
		is.True(peek(t, c, "j").TargetsDone <= int(total.Load()))
		is.NoErr(c.UpdateBatchTarget("j", 0, 3, TargetFailed, nil, nil, nil)) // a store like any other
	})
	t.Run("of memory", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, ":memory:", 0)
		addDone(t, d, "j", 1, 10)
		path := filepath.Join(t.TempDir(), "a b?c.db")
		is.NoErr(d.Backup(t.Context(), path))
		is.True(exists(openAt(t, path, 0), "j"))
	})
	t.Run("an existing target", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		path := filepath.Join(t.TempDir(), "x")
		is.NoErr(os.WriteFile(path, []byte("kept"), 0o600))
		mustBe(t, d.Backup(t.Context(), path), ErrExists)
		mustBe(t, d.Backup(t.Context(), d.file), ErrExists)
		mustBe(t, d.Backup(t.Context(), ""), ErrInvalid)
		got, err := os.ReadFile(path)
		is.NoErr(err)
		is.Equal(string(got), "kept")
	})
	t.Run("leaves nothing when it ends early", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		addDone(t, d, "j", 1, 5_000_000)
		ctx, cancel := deadContext()
		defer cancel()
		dir := t.TempDir()
		mustBe(t, d.Backup(ctx, filepath.Join(dir, "x")), context.Canceled)
		mustBe(t, d.Backup(t.Context(), filepath.Join(dir, "missing", "x")), fs.ErrNotExist)
		entries, err := os.ReadDir(dir)
		is.NoErr(err)
		is.Equal(len(entries), 0)
		is.NoErr(d.UpdateBatchTarget("j", 0, 1, TargetDone, nil, nil, nil))
	})
	t.Run("ends when the store is closed", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for i := range 20 {
			addDone(t, d, fmt.Sprint(i), 1, 1_000_000)
		}
		dir := t.TempDir()
		done := make(chan error)
		go func() { done <- d.Backup(t.Context(), filepath.Join(dir, "x")) }()
		for { // until it has begun
			if entries, _ := os.ReadDir(dir); len(entries) > 0 {
				break
			}
		}
		is.NoErr(d.Close())
		if err := <-done; err != nil { // it may have been quicker
			mustBe(t, err, ErrClosed)
			entries, err := os.ReadDir(dir)
			is.NoErr(err)
			is.Equal(len(entries), 0)
		}
	})
}
