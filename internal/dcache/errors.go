package dcache

import (
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"github.com/mattn/go-sqlite3"
)

// Errors about what was asked. The call changed nothing.
var (
	// ErrNotFound is returned when the job or the target does not exist; a worker that meets it knows that its job was swept.
	ErrNotFound = errors.New("not found")

	// ErrExists is returned when the id, the idx or the file to be made is there already. What is there stays as it is.
	ErrExists = errors.New("already exists")

	// ErrInvalid is returned for an argument outside its range: an unknown status or class, an empty id, a negative idx.
	ErrInvalid = errors.New("invalid argument")

	// ErrTooLarge is returned when a body is larger than the content budget, or a value larger than SQLite can store.
	ErrTooLarge = errors.New("too large")

	// ErrConflict is returned by SubmitBatch when the idempotency key was used for other targets.
	ErrConflict = errors.New("idempotency key used for other targets")

	// ErrNotLive is returned when the job is no longer queued or running.
	ErrNotLive = errors.New("job is not live")
)

// Errors about the store, its file or its disk. The call changed nothing.
var (
	// ErrClosed is returned by every method after Close.
	ErrClosed = errors.New("store is closed")

	// ErrInUse is returned by Open when another store, in this process or another, owns the file.
	ErrInUse = errors.New("file is owned by another store")

	// ErrBusy is returned when another program held SQLite's write lock for longer than the busy timeout of 5 seconds. The next call may work.
	ErrBusy = errors.New("database is locked by another program")

	// ErrReadOnly is returned when the file or its folder cannot be written.
	ErrReadOnly = errors.New("read-only")

	// ErrCorrupt is returned when the file is damaged, or is no SQLite database.
	ErrCorrupt = errors.New("not a database, or a damaged one")

	// ErrFull is returned when the disk, a quota or a file size limit leaves no room. Calls work again once there is room.
	ErrFull = errors.New("no space left")

	// ErrSchema is returned by Open for a file that a newer version of this package made, or whose tables lack a column.
	ErrSchema = errors.New("unknown schema")
)

// classify puts the sentinel that a caller can test for in front of a driver's error. It looks at codes, never at texts.
func classify(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return err
	}
	if s := sentinel(e); s != nil {
		return fmt.Errorf("%w: %w", s, err)
	}
	return err
}

func sentinel(e sqlite3.Error) error {
	switch e.Code & 0xff { // a backup puts the extended code here
	case sqlite3.ErrFull:
		return ErrFull
	case sqlite3.ErrBusy, sqlite3.ErrLocked:
		return ErrBusy
	case sqlite3.ErrReadonly, sqlite3.ErrPerm:
		return ErrReadOnly
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return ErrCorrupt
	case sqlite3.ErrTooBig:
		return ErrTooLarge
	case sqlite3.ErrIoErr:
		switch e.SystemErrno {
		case syscall.ENOSPC, syscall.EFBIG, syscall.EDQUOT:
			return ErrFull
		}
		// The shared memory of the WAL could not grow; SQLite keeps no errno for it.
		if e.ExtendedCode == sqlite3.ErrIoErrSHMSize {
			return ErrFull
		}
	}
	return nil
}

// errStray says that an index led to a row of another key: the file is damaged, and the row must not be served under this one.
var errStray = fmt.Errorf("an index and its row disagree: %w", ErrCorrupt)

// opError names the operation and the row that an error is about, once, at the package's edge.
// An id may be megabytes long: its beginning is enough to find it by.
func opError(op, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dcache: %s %.64q: %w", op, id, err)
}

func targetError(op, jobID string, idx int, err error) error {
	return opError(op+" "+strconv.Itoa(idx)+" of", jobID, err)
}
