package main

/*
// go-sqlite3 carries the amalgamation and is linked into the same binary, but not into the trial link that cgo makes of this
// package alone: there its functions may be missing.
#cgo linux LDFLAGS: -Wl,--unresolved-symbols=ignore-in-object-files
#include <stdlib.h>
#include "floor.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// floor is a thread of C that runs the store's statements on the store's file, prepared once, the strings bound in place.
// The connection has no mutex, since no other thread uses it.
type floor struct {
	synchronous, group int // operations to a transaction
	path               string
	work               *Work
	db                 *C.sqlite3
	f                  C.finisher
	mem                arena
	ops                *C.op
	jobs, results      C.pool
}

func newFloor(synchronous, group int) func() Peer {
	return func() Peer { return &floor{synchronous: synchronous, group: group} }
}

func (p *floor) Name() string {
	return fmt.Sprintf("C floor %s, %d a transaction", level(p.synchronous), p.group)
}

func (p *floor) Prepare(dir string, w *Work) (err error) {
	p.work = w
	if p.path, err = fill(dir, w); err != nil {
		return err
	}
	if p.db, err = openFloor(p.path, p.synchronous); err != nil {
		return err
	}
	p.f.db = p.db
	m := &p.mem
	rc := C.floor_prepare(&p.f, m.text(selectTargetState), m.text(updateTarget), m.text(updateJobLease), m.text(updateJobCounters))
	if rc != 0 {
		return floorError(p.db, rc)
	}
	// All of it is copied to C before the clock starts.
	p.jobs, p.results = m.pool(w.JobIDs), m.pool(w.Results)
	p.ops = (*C.op)(m.alloc(len(w.Ops) * int(unsafe.Sizeof(C.op{}))))
	ops := unsafe.Slice(p.ops, len(w.Ops))
	for i, op := range w.Ops {
		ops[i] = C.op{job: C.int32_t(op.Job), idx: C.int32_t(op.Idx), result: C.int32_t(op.Result)}
	}
	return nil
}

func (p *floor) Finish(Op, int64, string) error { return errors.New("the floor runs its own loop") }

// Loop implements Looper.
func (p *floor) Loop() error {
	return floorError(p.db, C.floor_finish(&p.f, p.ops, C.int(len(p.work.Ops)), C.int(p.group), p.jobs, p.results))
}

func (p *floor) Verify(w *Work) error { return verifyFile(p.path, w, int64(p.f.total)) }

func (p *floor) Close() error {
	if p.db == nil {
		return nil
	}
	C.floor_finalize(&p.f)
	err := closeFloor(p.db)
	p.db = nil
	p.mem.free()
	return err
}

// openFloor opens a file of the store and sets the store's pragmas, each read back.
func openFloor(path string, synchronous int) (*C.sqlite3, error) {
	var m arena
	defer m.free()
	var db *C.sqlite3
	rc := C.floor_open(m.text(path), &db)
	err := floorError(db, rc)
	for _, p := range pragmas(synchronous) {
		if err != nil {
			break
		}
		if err = floorError(db, C.sqlite3_exec(db, m.text("PRAGMA "+p.name+" = "+p.value), nil, nil, nil)); err != nil {
			break
		}
		var got string
		if got, err = floorValue(db, "PRAGMA "+p.name); err == nil && got != p.value {
			err = fmt.Errorf("pragma %s is %s, not %s", p.name, got, p.value)
		}
	}
	if err != nil {
		return nil, errors.Join(err, closeFloor(db))
	}
	return db, nil
}

func closeFloor(db *C.sqlite3) error { return floorError(db, C.sqlite3_close(db)) }

func floorValue(db *C.sqlite3, query string) (string, error) {
	var m arena
	defer m.free()
	const size = 256
	value := (*C.char)(m.alloc(size))
	err := floorError(db, C.floor_value(db, m.text(query), value, size))
	return C.GoString(value), err
}

func floorError(db *C.sqlite3, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("floor: %s (%d)", C.GoString(C.sqlite3_errmsg(db)), rc)
}

// floorLibrary tells which SQLite the floor is linked with: its version, source id and compile options.
func floorLibrary() (version, source string, compiled []string) {
	for i := C.int(0); ; i++ {
		option := C.sqlite3_compileoption_get(i)
		if option == nil {
			return C.GoString(C.sqlite3_libversion()), C.GoString(C.sqlite3_sourceid()), compiled
		}
		compiled = append(compiled, C.GoString(option))
	}
}

// arena is C memory that is freed at once.
type arena []unsafe.Pointer

// alloc returns zeroed memory.
func (m *arena) alloc(size int) unsafe.Pointer {
	p := C.calloc(1, C.size_t(max(size, 1)))
	*m = append(*m, p)
	return p
}

func (m *arena) text(s string) *C.char {
	p := C.CString(s)
	*m = append(*m, unsafe.Pointer(p))
	return p
}

// pool copies strings of one length.
func (m *arena) pool(texts []string) C.pool {
	p := C.pool{text: (**C.char)(m.alloc(len(texts) * int(unsafe.Sizeof(uintptr(0))))), len: C.int(len(texts[0]))}
	places := unsafe.Slice(p.text, len(texts))
	for i, s := range texts {
		places[i] = m.text(s)
	}
	return p
}

func (m *arena) free() {
	for _, p := range *m {
		C.free(p)
	}
	*m = nil
}
