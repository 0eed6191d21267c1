package main

import (
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"
)

// peers are all that do the operation, as they are benchmarked.
var peers = []func() Peer{
	newStore(full), newStore(normal),
	newSqlx(full), newSqlx(normal),
	newFloor(full, floorGroup), newFloor(full, 1), newFloor(normal, 1),
	newBolt(time.Millisecond, 8), newBadger, newGoqite,
}

func TestPeers(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer().Name(), func(t *testing.T) {
			for _, live := range []int{1, 10} {
				is := is.New(t)
				s, err := finishAll(peer(), NewWork(10, 30, 200, live), 8, t.TempDir())
				is.NoErr(err)
				is.True(s.NsPerOp > 0)
			}
		})
	}
}

// idle is a peer that says it did every eleventh operation, and didn't.
type idle struct{ Peer }

func (p idle) Finish(op Op, now int64, result string) error {
	if op.Idx%11 == 10 {
		return nil
	}
	return p.Peer.Finish(op, now, result)
}

// garbled is a peer that stores another result of the same length.
type garbled struct{ Peer }

func (p garbled) Finish(op Op, now int64, result string) error {
	return p.Peer.Finish(op, now, result[1:]+"x")
}

// stale is a peer that doesn't move the lease.
type stale struct{ Peer }

func (p stale) Finish(op Op, _ int64, result string) error {
	return p.Peer.Finish(op, filledAt, result)
}

// failing is a peer whose operation fails.
type failing struct{ Peer }

var errFailing = errors.New("failing")

func (failing) Finish(Op, int64, string) error { return errFailing }

func TestBrokenPeerIsCaught(t *testing.T) {
	for _, peer := range []func() Peer{newStore(normal), newSqlx(normal), newBolt(time.Millisecond, 8), newBadger, newGoqite} {
		t.Run(peer().Name(), func(t *testing.T) {
			is := is.New(t)
			w := NewWork(10, 30, 100, 3)
			fails := func(p Peer, want error) {
				t.Helper()
				_, err := finishAll(p, w, 8, t.TempDir())
				is.True(errors.Is(err, want))
			}
			fails(failing{peer()}, errFailing)
			fails(idle{peer()}, errWrong)
			if _, queue := peer().(*goqitePeer); queue {
				return // It has neither results nor leases.
			}
			fails(garbled{peer()}, errWrong)
			fails(stale{peer()}, errWrong)
		})
	}
}

func TestVerifyCountsTheTotal(t *testing.T) {
	is := is.New(t)
	w := NewWork(2, 2, 0, 1)
	path, err := fill(t.TempDir(), w)
	is.NoErr(err)
	is.NoErr(verifyFile(path, w, 0))
	is.True(errors.Is(verifyFile(path, w, 1), errWrong))
}

func TestWork(t *testing.T) {
	is := is.New(t)
	w := NewWork(5, 20, 100, 1)
	for i, op := range w.Ops {
		is.Equal(op, Op{Job: i / 20, Idx: i % 20, Result: i % resultPool}) // job after job
	}
	for _, live := range []int{3, 5, 50} {
		w := NewWork(5, 20, 100, live)
		seen := map[[2]int]bool{}
		for _, op := range w.Ops {
			seen[[2]int{op.Job, op.Idx}] = true
		}
		is.Equal(len(seen), 100) // each once
		is.Equal(w.Ops, NewWork(5, 20, 100, live).Ops)
	}
	for _, r := range w.Results {
		is.Equal(len(r), resultBytes)
	}
}
