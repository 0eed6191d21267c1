package main

import (
	"fmt"
	"time"
)

// sizes are what the flags say.
type sizes struct {
	jobs, targets int // of the file
	ops, opsAlone int // operations to a run: of many callers, of one
	callers       int
	live          int // jobs in progress at once, in the second case of many callers; in the others it is job after job
	put           int // targets of the large batch
	read, reads   int // targets of the job that is read, and how often
	polls         int
}

// floorGroup is the number of operations that the floor puts into a transaction when it stands against many callers.
const floorGroup = 32

// allCases are the requirement's figures, in its order.
func allCases(n sizes) []Case {
	return []Case{manyCallers(n, 1), manyCallers(n, n.live), oneCaller(n, normal, 1.5), oneCaller(n, full, 1.3), put(n), read(n), poll(n)}
}

// manyCallers is the operation with so many jobs in progress at once. Job after job, neighbours in the file are written together;
// with many jobs each operation has a page of its own.
func manyCallers(n sizes, live int) Case {
	w := NewWork(n.jobs, n.targets, n.ops, live)
	name := fmt.Sprintf("target finished, %d callers, job after job", n.callers)
	if live > 1 {
		name = fmt.Sprintf("target finished, %d callers, %d jobs at once", n.callers, live)
	}
	var delay time.Duration
	return Case{
		Name: name,
		Before: func(dir string, progress Progress) (err error) {
			delay, err = tuneBolt(w, n.callers, dir, progress)
			return err
		},
		Candidates: []Candidate{
			Finishing(w, n.callers, newStore(full)),
			Finishing(w, n.callers, newSqlx(full)),
			Finishing(w, n.callers, newSqlx(normal)),
			Finishing(w, 1, newFloor(full, floorGroup)),
			Finishing(w, n.callers, func() Peer { return newBolt(delay, n.callers)() }),
			Finishing(w, n.callers, newBadger),
			Finishing(w, n.callers, newGoqite),
		},
		Comparisons: []Comparison{
			{Against: 1, Limit: atLeast(9)},
			{Against: 2, Limit: atLeast(2)},
			{Against: 3, Limit: atMost(1.6)},
			// Ahead of each.
			{Against: 4, Limit: atLeast(1)},
			{Against: 5, Limit: atLeast(1)},
			{Against: 6, Limit: atLeast(1)},
		},
	}
}

func oneCaller(n sizes, synchronous int, limit float64) Case {
	w := NewWork(n.jobs, n.targets, n.opsAlone, 1)
	return Case{
		Name:        "target finished, 1 caller, " + level(synchronous),
		Candidates:  []Candidate{Finishing(w, 1, newStore(synchronous)), Finishing(w, 1, newFloor(synchronous, 1))},
		Comparisons: []Comparison{{Against: 1, Limit: atMost(limit)}},
	}
}

func put(n sizes) Case {
	return Case{
		Name:        fmt.Sprintf("put %d targets", n.put),
		Short:       true,
		Candidates:  []Candidate{putStore(n.put), putFloor(n.put)},
		Comparisons: []Comparison{{Against: 1, Limit: atMost(1.6)}},
	}
}

func read(n sizes) Case {
	return Case{
		Name:       fmt.Sprintf("read %d targets", n.read),
		Short:      true,
		Candidates: []Candidate{targetsStore(n.read, n.reads), targetsSQL(n.read, n.reads)},
		Comparisons: []Comparison{
			{Against: 1, Limit: atMost(1.1)},
			{Against: 1, Limit: atMost(1.35), Allocs: true},
		},
	}
}

func poll(n sizes) Case {
	return Case{
		Name:        "poll a job, lease current",
		Short:       true,
		Candidates:  []Candidate{pollStore(n.polls), pollSQL(n.polls)},
		Comparisons: []Comparison{{Against: 1, Limit: atMost(1.2)}},
	}
}
