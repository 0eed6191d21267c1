package dcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// Free pages that the file keeps for the writes to come. Giving back what is needed again at once would cost twice.
const (
	keepPages = 512 // 4 MiB
	keepShare = 16  // or a sixteenth of the file, where that is more
)

// longWAL is the size from which a WAL is cut: twice what SQLite lets it grow to before it begins at its start again.
const longWAL = 8 << 20

// cutPages are given back before a checkpoint cuts them off: for 8 MiB that takes the file system milliseconds, in which nobody else has
// the connection.
const cutPages = 1024

// reclaim gives the file's surplus of free pages back to the file system, in turns, and empties the WAL, without which the file would
// not get shorter. What keeps it from that, such as a reader with a snapshot, is no error of the call that freed the pages: the next
// one goes on. Where nothing is to be given back it costs a look.
func (d *DB) reclaim() {
	if d.file == "" {
		return
	}
	shrunk := false
	uncut := int64(0)
	for {
		n, err := d.vacuumTurn()
		if err != nil {
			d.report("give space back", "", err)
			return
		}
		if n == 0 {
			break
		}
		shrunk = true
		if uncut += n; uncut >= cutPages && !d.externalCheckpoint {
			uncut = 0
			d.report("checkpoint", "", d.hold(func(c *sqlx.Conn) error { return execAll(c, `PRAGMA wal_checkpoint`) }))
		}
	}
	if shrunk || d.walBytes() >= longWAL {
		d.shortenWAL()
	}
}

// turn is weigh for one turn of a long piece of work. A WAL that has become long by it is emptied before the next, which would take its length
// for its own: see mayGoOn.
func (d *DB) turn(weight int, fn func(*tx) error) error {
	err := d.weigh(weight, fn)
	if err == nil && d.walBytes() > maxSpill {
		d.shortenWAL()
	}
	return err
}

// shortenWAL empties the WAL, unless that is another program's task, or a reader is in the way.
func (d *DB) shortenWAL() {
	if d.externalCheckpoint {
		return
	}
	if err := d.emptyWAL(); !errors.Is(err, ErrBusy) {
		d.report("empty the WAL", "", err)
	}
}

// emptyWAL is truncateWAL as a call of its own.
func (d *DB) emptyWAL() error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	err := d.truncateWAL()
	if !errors.Is(err, ErrBusy) {
		d.stats.databaseError(err)
	}
	return err
}

// vacuumTurn gives back what it may in one transaction, and reports how many pages that were.
func (d *DB) vacuumTurn() (n int64, err error) {
	var surplus, free int64
	look := func(q sqlx.QueryerContext) (err error) {
		surplus, free, err = freePages(q)
		return err
	}
	// A transaction only for something to give back: it would be a commit for each put that evicts.
	if err := d.hold(func(c *sqlx.Conn) error { return look(c) }); err != nil || surplus <= 0 {
		return 0, err
	}
	err = d.turn(maxGroup, func(t *tx) error {
		n = 0
		err := t.fail(look(t.conn))
		if err == nil && surplus > 0 {
			n, err = t.vacuum(min(surplus, cutPages), vacuumWeight(free))
		}
		return err
	})
	return n, err
}

// freePages returns the number of a file's free pages, and how many of them it should give back. A file that another program made can
// give none back, before Compact.
func freePages(q sqlx.QueryerContext) (surplus, free int64, err error) {
	var pages int64
	var mode int
	err = errors.Join(
		sqlx.GetContext(context.Background(), q, &pages, `PRAGMA page_count`),
		sqlx.GetContext(context.Background(), q, &free, `PRAGMA freelist_count`),
		sqlx.GetContext(context.Background(), q, &mode, `PRAGMA auto_vacuum`),
	)
	if mode != 2 {
		return 0, free, err
	}
	return free - max(keepPages, pages/keepShare), free, err
}

// vacuumWeight is what a page weighs that is given back: another one moves into its place, the pointers to that one change, and SQLite
// looks for the page in its list of the free ones, from the beginning.
func vacuumWeight(free int64) int64 { return 4 + free>>14 }

// vacuum gives back up to so many pages. The pragma frees one each time that it is stepped, and returns an empty row for it.
func (t *tx) vacuum(pages, weight int64) (n int64, err error) {
	rows, err := t.conn.QueryContext(context.Background(), `PRAGMA incremental_vacuum`)
	if err != nil {
		return 0, t.fail(err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err is what tells.
	for n < pages && t.mayGoOn(n*weight) && rows.Next() {
		t.wrote = true
		n++
	}
	return n, t.fail(rows.Err())
}

// truncateWAL moves the WAL into the file and cuts it to nothing. It does not wait for a reader that is in the way, which would
// stop every caller for the busy timeout: that is ErrBusy.
func (d *DB) truncateWAL() error {
	if d.file == "" {
		return nil
	}
	c, err := d.sql.Connx(context.Background())
	if err != nil {
		return classify(err)
	}
	defer c.Close() //nolint:errcheck // It gives the connection back, which can't fail.
	if _, err := c.ExecContext(context.Background(), `PRAGMA busy_timeout = 0`); err != nil {
		return classify(err)
	}
	var result struct {
		Busy         bool
		Log          int
		Checkpointed int
	}
	err = classify(c.GetContext(context.Background(), &result, `PRAGMA wal_checkpoint(TRUNCATE)`))
	if err == nil && result.Busy {
		err = ErrBusy
	}
	_, restored := c.ExecContext(context.Background(), `PRAGMA busy_timeout = `+busyTimeout)
	return errors.Join(err, classify(restored))
}

// Compact rewrites the file without its free pages, and makes it one that gives pages back as they become free, where it was made
// by another program. Every other call waits meanwhile, and the disk needs room for two more copies: one in the folder for temporary
// files ($SQLITE_TMPDIR, $TMPDIR or /var/tmp), one in the WAL. While a reader holds a snapshot, the file does not get shorter.
func (d *DB) Compact() error {
	err := d.hold(func(c *sqlx.Conn) error {
		// auto_vacuum takes effect with the VACUUM only. The copy that it makes does not belong into memory.
		err := execAll(c, `PRAGMA auto_vacuum = 2`, `PRAGMA temp_store = `+tempInFile, `VACUUM`)
		return errors.Join(err, execAll(c, `PRAGMA temp_store = `+tempInMemory))
	})
	if err != nil {
		return fmt.Errorf("dcache: compact: %w", err)
	}
	d.shortenWAL() // The new file is in the WAL: only now does the old one get shorter. Where that can't be, it is compact all the same.
	return nil
}

func execAll(c *sqlx.Conn, statements ...string) error {
	for _, s := range statements {
		if _, err := c.ExecContext(context.Background(), s); err != nil {
			return err
		}
	}
	return nil
}
