package dcache

import (
	"encoding/json"
	"expvar"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestStats(t *testing.T) {
	is := is.New(t)
	d := open(t, clockAt(1))
	addJob(t, d, "j", JobRunning, 1, 2)
	is.NoErr(d.CreateBatchJob(BatchJob{ID: "k", Caller: "c", IDemKey: "key", Lease: 1}))
	is.NoErr(d.UpdateBatchTarget("j", 0, 1, TargetDone, bytesOf(7), nil, nil))
	_, err := d.Put(ClassFleet, "k", []byte("body"), 1)
	is.NoErr(err)

	d.BatchJob("j")
	d.BatchJob("x")
	d.PeekBatchJob("x")
	d.BatchProgress("x")
	d.BatchJobByIDem("c", "key", 1, 5e9)
	d.BatchJobByIDem("c", "", 1, 5e9)
	d.BatchTargets("j")
	d.BatchTargetsPage("j", 0, 1, 1)
	d.BatchTargets("x")
	d.Get(ClassFleet, "k", 1)
	d.Get(ClassFleet, "x", 1)
	d.Get("no class", "k", 1)

	s := d.Stats()
	is.Equal([]int64{s.BatchJobH, s.BatchJobM}, []int64{1, 3})
	is.Equal([]int64{s.BatchIDemH, s.BatchIDemM}, []int64{1, 1})
	is.Equal([]int64{s.BatchTargetsH, s.BatchTargetsM}, []int64{2, 1})
	is.Equal([]int64{s.ContentH, s.ContentM}, []int64{1, 2})
	is.Equal([]int64{s.BatchBytes, s.ContentBytes, s.LiveJobs}, []int64{7, 4, 2})
	is.Equal([]int64{s.Transactions, s.Operations, s.Errors}, []int64{5, 5, 0})
	is.Equal(s.FileBytes%8192, int64(0))
	is.True(s.FileBytes+s.WALBytes > 0)

	b, err := json.Marshal(s)
	is.NoErr(err)
	is.True(strings.Contains(string(b), `"batch_job_hits":1`))
	is.True(json.Valid([]byte(expvar.Func(func() any { return d.Stats() }).String())))
	mem := openAt(t, ":memory:", 0).Stats()
	is.Equal(mem.FileBytes+mem.WALBytes, int64(0))
}
