package dcache

import (
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestSubmitBatch(t *testing.T) {
	job := func(id, key string) BatchJob {
		return BatchJob{ID: id, Caller: "c", CallerClass: ClassFleet, IDemKey: key, TargetsDone: 77, NBytes: 88, CreatedAt: 99, Lease: 99}
	}
	t.Run("stores both, and finds them again", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		id, created, err := d.SubmitBatch(job("a", "k"), pending(3), 100, 10*time.Second)
		is.NoErr(err)
		is.True(created)
		is.Equal(id, "a")
		is.Equal(peek(t, d, "a"), BatchJob{
			ID: "a", Caller: "c", CallerClass: ClassFleet, IDemKey: "k", Status: JobQueued, TargetsTotal: 3, CreatedAt: 100, Lease: 100,
		})
		is.NoErr(d.SetBatchJobStatus("a", JobDone, "", 101)) // whatever its status
		id, created, err = d.SubmitBatch(job("b", "k"), pending(3), 105, 10*time.Second)
		is.NoErr(err)
		is.True(!created)
		is.Equal(id, "a")
		is.Equal(peek(t, d, "a").Lease, int64(105)) // a retry is a sign of life
		is.True(!exists(d, "b"))
		id, created, err = d.SubmitBatch(job("b", "k"), pending(3), 115, 10*time.Second) // expired, not yet swept
		is.NoErr(err)
		is.True(created)
		is.Equal(id, "b")
	})
	t.Run("other targets under the same key", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		_, _, err := d.SubmitBatch(job("a", "k"), pending(3), 100, time.Hour)
		is.NoErr(err)
		before := dump(t, d)
		for name, change := range map[string]func(g []BatchTarget) []BatchTarget{
			"url":     func(g []BatchTarget) []BatchTarget { g[1].URL += "x"; return g },
			"options": func(g []BatchTarget) []BatchTarget { g[2].Options = "{}"; return g },
			"order":   func(g []BatchTarget) []BatchTarget { g[0].Idx, g[1].Idx = 1, 0; return g },
			"fewer":   func(g []BatchTarget) []BatchTarget { return g[:2] },
			"more":    func([]BatchTarget) []BatchTarget { return pending(4) },
			"a gap":   func(g []BatchTarget) []BatchTarget { g[2].Idx = 9; return g },
		} {
			id, created, err := d.SubmitBatch(job("b", "k"), change(pending(3)), 200, time.Hour)
			t.Log(name)
			mustBe(t, err, ErrConflict)
			is.Equal(id, "a")
			is.True(!created)
		}
		is.Equal(dump(t, d), before) // the lease has not moved either
		reversed := pending(3)
		reversed[0], reversed[2] = reversed[2], reversed[0] // idx is the order, not the slice's
		_, created, err := d.SubmitBatch(job("b", "k"), reversed, 200, time.Hour)
		is.NoErr(err)
		is.True(!created)
	})
	t.Run("an empty key is always a new job", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for i := range 3 {
			_, created, err := d.SubmitBatch(job(fmt.Sprint(i), ""), pending(1), 1, time.Hour)
			is.NoErr(err)
			is.True(created)
		}
		_, _, err := d.SubmitBatch(job("0", ""), pending(1), 1, time.Hour)
		mustBe(t, err, ErrExists)
		is.Equal(d.LiveBatchJobsTotal(), 3)
	})
	t.Run("refuses", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		before := dump(t, d)
		for _, tt := range []struct {
			j BatchJob
			g []BatchTarget
		}{
			{job("", "k"), pending(1)},
			{job("a", "k"), nil},
			{job("a", "k"), []BatchTarget{{Idx: -1}}},
			{job("a", "k"), []BatchTarget{{}, {}}},
			{job("a", "k"), []BatchTarget{{JobID: "b"}}},
			{job("a", "k"), []BatchTarget{{Status: "x"}}},
			{BatchJob{ID: "a", Status: JobDone}, pending(1)},
			{BatchJob{ID: "a", Status: "x"}, pending(1)},
			{BatchJob{ID: "a", CallerClass: "x"}, pending(1)},
		} {
			id, created, err := d.SubmitBatch(tt.j, tt.g, 1, time.Hour)
			mustBe(t, err, ErrInvalid)
			is.Equal(id, "")
			is.True(!created)
		}
		is.Equal(dump(t, d), before)
	})
	t.Run("targets that arrive finished end the job", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		targets := pending(2)
		targets[0].Status, targets[1].Status = TargetDone, TargetFailed
		_, _, err := d.SubmitBatch(job("a", ""), targets, 1, time.Hour)
		is.NoErr(err)
		is.Equal(peek(t, d, "a").Status, JobPartial)
		is.Equal(d.LiveBatchJobsTotal(), 0)
	})
	t.Run("100 at once make one job", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for round := range 5 {
			key := fmt.Sprint("k", round)
			ids := make([]string, 100)
			made := make([]bool, 100)
			together(100, func(i int) {
				var err error
				if ids[i], made[i], err = d.SubmitBatch(job(fmt.Sprint(round, "-", i), key), pending(5), 1, time.Hour); err != nil {
					t.Error(err)
				}
			})
			n := 0
			for i := range 100 {
				is.Equal(ids[i], ids[0])
				if made[i] {
					n++
				}
			}
			is.Equal(n, 1)
			is.Equal(d.LiveBatchJobsTotal(), round+1)
		}
	})
}
