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

// cutPages are given back between two checkpoints: to cut 8 MiB off a file takes its file system milliseconds, in which nobody else has
// the connection.
const cutPages = 1024

// reclaim gives the file's surplus of free pages back to the file system, in turns, and empties the WAL, without which the file would
// not get shorter. What keeps it from that, such as a reader with a snapshot, is no error of the call that freed the pages: the next
// one goes on. Where nothing is to be given back it costs a look.
func (d *DB) reclaim() {
	if d.file == "" {
		return
	}
	var uncut int64
	for more := true; more; {
		var n int64
		var err error
		if n, more, err = d.vacuumTurn(); err != nil {
			d.report("give space back", "", err)
			return
		}
		uncut += n
		switch {
		case more && uncut >= cutPages && !d.externalCheckpoint:
			uncut = 0
			d.report("checkpoint", "", d.hold(func(c *sqlx.Conn) error { return execAll(c, `PRAGMA wal_checkpoint`) }))
		case !more && (uncut > 0 || d.walBytes() >= longWAL):
			d.shortenWAL()
		}
	}
}

// turn runs one turn of a long piece of work. A WAL that has become long by it is emptied before the next, which would take its length
// for its own: see mayGoOn.
func (d *DB) turn(fn func(*tx) error) error {
	err := d.weigh(shortTurn, fn)
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

// vacuumTurn gives back what it may in one transaction, and reports how many pages, and whether there are more to give.
func (d *DB) vacuumTurn() (n int64, more bool, err error) {
	err = d.turn(func(t *tx) error {
		n, more = 0, false
		var pages, free int64
		var mode int
		if err := t.get(&pages, `PRAGMA page_count`); err != nil {
			return err
		}
		if err := t.get(&free, `PRAGMA freelist_count`); err != nil {
			return err
		}
		surplus := free - max(keepPages, pages/keepShare)
		if surplus <= 0 {
			return nil
		}
		if err := t.get(&mode, `PRAGMA auto_vacuum`); err != nil {
			return err
		}
		if mode != 2 {
			return nil // Made by another hand: Compact would convert it.
		}
		n, err = t.vacuum(surplus, vacuumWeight(free))
		more = n > 0 && n < surplus
		return err
	})
	return n, more, err
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
