package dcache

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
	"github.com/mattn/go-sqlite3"
)

// memory is the path of a store that lives in memory only.
const memory = ":memory:"

// DB is a store. Its methods may be called from any number of goroutines.
type DB struct {
	config
	file     string // resolved path; "" in memory
	maxBytes int64  // content budget; <= 0 is none
	lock     *os.File
	sql      *sqlx.DB // one connection
	group    group
	totals   totals
	stats    counters

	life    sync.RWMutex  // held for reading by every call, for writing by Close
	inside  atomic.Int64  // calls that hold it: at work, or waiting for their turn
	closing chan struct{} // tells a backup to stop
	backups sync.RWMutex  // held for reading by every backup
	closed  bool          // guarded by life
	once    sync.Once
	cause   error // of a failed Close

	openHint map[string]int // by job: an idx at which an open target was seen. Used only inside transactions.
}

// Open opens the store in the SQLite file at path, and makes the file when there is none; the folder must exist. The path
// ":memory:" gives a store that lives in memory until Close. maxBytes is the budget of the content cache in bytes, <= 0 for no
// limit; the batch store has its own (WithBatchBudget).
//
// A file has one owner: a second Open of it, in this process or another, is ErrInUse. Programs that only read it are welcome.
// Errors besides: ErrInvalid, ErrReadOnly, ErrCorrupt, ErrSchema, ErrBusy, and those of the file system. A file that is refused
// is left as it was, to the byte, and so is its WAL; a transaction that a crash left half done in a rollback journal is rolled back first.
func Open(path string, maxBytes int64, opts ...Option) (*DB, error) {
	d := &DB{config: defaults(), maxBytes: maxBytes, closing: make(chan struct{}), openHint: map[string]int{}}
	for _, o := range opts {
		if o == nil {
			return nil, opError("open", path, fmt.Errorf("nil option: %w", ErrInvalid))
		}
		if err := o(&d.config); err != nil {
			return nil, opError("open", path, err)
		}
	}
	if err := d.open(path); err != nil {
		return nil, opError("open", path, errors.Join(err, d.release()))
	}
	d.logger.Debug("dcache: open", "path", path)
	return d, nil
}

func (d *DB) open(path string) error {
	dsn := "file::memory:?"
	if path != memory {
		if path == "" || strings.ContainsRune(path, 0) {
			return ErrInvalid
		}
		if err := d.own(path); err != nil {
			return err
		}
		dsn = "file:" + (&url.URL{Path: d.file}).EscapedPath() + "?"
	}
	// The cache holds every statement of this package, so none is prepared twice.
	d.sql = connect(dsn+"_txlock=immediate&_stmt_cache_size=128", d.configure)
	if err := migrate(d.sql); err != nil {
		return err
	}
	if d.file != "" {
		if _, err := os.Stat(d.file); err != nil {
			return fmt.Errorf("SQLite opened another file: %w", err)
		}
	}
	if d.hasBatchBudget {
		d.stats.budget.Store(&d.batchBudget)
	}
	return d.loadTotals()
}

// own takes the file's lock, and refuses a file that isn't a store's before a connection that could write sees it: such a
// connection would checkpoint the WAL that it finds.
func (d *DB) own(path string) error {
	file, err := resolve(path)
	if err != nil {
		return err
	}
	if err := checkFile(file); err != nil {
		return err
	}
	if d.lock, err = lockFile(file); err != nil {
		return err
	}
	d.file = file
	switch size := fileSize(file); size {
	case 0:
		return nil // A new file, or an empty one, which SQLite takes for new.
	case 1:
		return ErrCorrupt // SQLite would take this one for new as well, and overwrite it.
	}
	mode := "?mode=ro"
	switch {
	case fileSize(file+"-journal") > 0:
		// Cut short while it was made: nothing can be read before that is rolled back, which only a writer can. It is the one
		// change that a file may see before it is refused.
		mode = "?mode=rw"
	case fileSize(file+"-wal") == 0:
		// Where there is no log to replay, the look need not know of one: mode=ro alone would leave an empty WAL behind.
		mode += "&immutable=1"
	}
	look := connect("file:"+(&url.URL{Path: file}).EscapedPath()+mode, func(*sqlite3.SQLiteConn) error { return nil })
	_, err = inspect(look)
	return errors.Join(err, look.Close())
}

// connect opens SQLite with a single connection that is never recycled: an in-memory database would be gone with it.
func connect(dsn string, hook func(*sqlite3.SQLiteConn) error) *sqlx.DB {
	db := sqlx.NewDb(sql.OpenDB(connector{dsn, &sqlite3.SQLiteDriver{ConnectHook: hook}}), "sqlite3")
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	db.SetConnMaxLifetime(0)
	db.SetConnMaxIdleTime(0)
	return db
}

type connector struct {
	dsn    string
	driver *sqlite3.SQLiteDriver
}

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c connector) Driver() driver.Driver                        { return c.driver }

// pragmas are set on every connection and read back, since SQLite takes an unknown name or value in silence.
func (d *DB) pragmas() []pragma {
	checkpoint := "500"
	if d.externalCheckpoint {
		checkpoint = "0"
	}
	p := []pragma{
		{"busy_timeout", busyTimeout, busyTimeout},
		{"synchronous", fmt.Sprint(int(d.synchronous)), fmt.Sprint(int(d.synchronous))},
		// KiB, negative by SQLite's convention: the inner pages of a file of 10 million targets, and a group's leaves.
		{"cache_size", "-16384", "-16384"},
		{"temp_store", tempInMemory, tempInMemory},
		// A damaged page is an error before it is followed.
		{"cell_size_check", "1", "1"},
		// The schema of a file that came from elsewhere calls no function with side effects.
		{"trusted_schema", "0", "0"},
	}
	if d.file == "" {
		return p
	}
	return append(p,
		pragma{"journal_mode", "wal", "wal"},
		// Pages, 4 MiB: a larger WAL made commits slower.
		pragma{"wal_autocheckpoint", checkpoint, checkpoint},
		// Bytes that a WAL keeps on disk once it was checkpointed, after a large transaction or a reader that stayed long.
		pragma{"journal_size_limit", "8388608", "8388608"},
		// A file cut short under a memory map is a SIGBUS, which no error code reports.
		pragma{"mmap_size", "0", "0"},
	)
}

const (
	tempInMemory = "2"
	tempInFile   = "1"
)

const busyTimeout = "5000" // milliseconds that a call waits for another program's write lock

type pragma struct{ name, set, want string }

// configure prepares a connection.
func (d *DB) configure(c *sqlite3.SQLiteConn) error {
	// To give pages back is decided before the first is written. A file that was made without it keeps what it has until Compact.
	// Set on a file that has it, the pragma would write at each Open.
	pages, err := readPragma(c, "page_count")
	if err != nil {
		return err
	}
	if pages == "0" {
		// Three results of 2 KiB share a page of 8 KiB, where one of 4 KiB holds one and is half empty: the writes of 64 callers took
		// two thirds of the time.
		if err := errors.Join(setPragma(c, pragma{"page_size", "8192", "8192"}), setPragma(c, pragma{"auto_vacuum", "2", "2"})); err != nil {
			return err
		}
	}
	for _, p := range d.pragmas() {
		if err := setPragma(c, p); err != nil {
			return err
		}
	}
	return nil
}

func setPragma(c *sqlite3.SQLiteConn, p pragma) error {
	if _, err := c.Exec("PRAGMA "+p.name+" = "+p.set, nil); err != nil {
		return fmt.Errorf("pragma %s: %w", p.name, err)
	}
	got, err := readPragma(c, p.name)
	if err == nil && got != p.want {
		err = fmt.Errorf("pragma %s is %s, not %s", p.name, got, p.want)
	}
	return err
}

func readPragma(c *sqlite3.SQLiteConn, name string) (string, error) {
	rows, err := c.Query("PRAGMA "+name, nil)
	if err != nil {
		return "", fmt.Errorf("pragma %s: %w", name, err)
	}
	got := make([]driver.Value, 1)
	if err := errors.Join(rows.Next(got), rows.Close()); err != nil {
		return "", fmt.Errorf("pragma %s: %w", name, err)
	}
	return fmt.Sprint(got[0]), nil
}

// enter begins a call. Close waits until as many have left as entered.
func (d *DB) enter() error {
	d.life.RLock()
	if d.closed {
		d.life.RUnlock()
		return ErrClosed
	}
	d.inside.Add(1)
	return nil
}

func (d *DB) leave() {
	d.inside.Add(-1)
	d.life.RUnlock()
}

// Close waits for the calls in flight, empties the WAL into the file, and gives up the file. Every later call of a method returns
// ErrClosed, false or 0. A second Close waits for the first and returns what it returned.
func (d *DB) Close() error {
	d.once.Do(func() {
		close(d.closing)
		d.backups.Lock()
		defer d.backups.Unlock()
		d.inside.Add(1) // so that a sweep does not take its time
		d.life.Lock()
		defer d.life.Unlock()
		d.inside.Add(-1)
		d.closed = true
		var err error
		if !d.externalCheckpoint {
			err = d.truncateWAL()
		}
		if errors.Is(err, ErrBusy) {
			err = nil // A reader is in the way. The WAL stays, complete, for the next Open.
		}
		d.cause = errors.Join(err, d.release())
		d.logger.Debug("dcache: close", "path", d.file, "err", d.cause)
	})
	if d.cause != nil {
		return opError("close", d.file, d.cause)
	}
	return nil
}

// release gives up what open took, in reverse order. It holds as well for a store that was opened half.
func (d *DB) release() error {
	var err error
	if d.sql != nil {
		err = d.sql.Close()
	}
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// report is where an error goes that the method has no way to return.
func (d *DB) report(op, id string, err error) {
	if err == nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrNotFound) {
		return
	}
	d.logger.Error("dcache: "+op, "id", fmt.Sprintf("%.64q", id), "err", err)
}
