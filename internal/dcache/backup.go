package dcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/jmoiron/sqlx"
	"github.com/mattn/go-sqlite3"
)

// backupPages are copied in one hold of the connection.
const backupPages = 256

// Backup copies the store, while it is in service, to a new file at path. The copy holds what was written until its end. It appears
// whole or not at all; a file that is there already is ErrExists. It ends early with ctx's error, or ErrClosed when Close is called.
func (d *DB) Backup(ctx context.Context, path string) error {
	return opError("back up to", path, d.backup(ctx, path))
}

func (d *DB) backup(ctx context.Context, path string) (err error) {
	if path == "" {
		return ErrInvalid
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = ErrExists
		}
		return err
	}
	// A name of its own in the same folder, so that it can be linked to its final name.
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	name := temp.Name()
	defer func() {
		for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
			if e := os.Remove(name + suffix); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}()
	if err := temp.Close(); err != nil {
		return err
	}
	if err := d.copyTo(ctx, name); err != nil {
		return err
	}
	if err := syncPath(name); err != nil {
		return err
	}
	// Unlike a rename, a link does not replace a file that has appeared meanwhile.
	if err := os.Link(name, path); errors.Is(err, fs.ErrExist) {
		return ErrExists
	} else if err != nil {
		return err
	}
	return syncPath(filepath.Dir(path))
}

// copyTo fills the database file at name. The copy is made by the store's own connection, so that SQLite adds to it what is written
// meanwhile; another connection would have to begin again with each write.
func (d *DB) copyTo(ctx context.Context, name string) (err error) {
	// Close must not take the connection away under SQLite's backup object.
	d.backups.RLock()
	defer d.backups.RUnlock()
	abs, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	opened, err := (&sqlite3.SQLiteDriver{}).Open("file:" + (&url.URL{Path: abs}).EscapedPath())
	if err != nil {
		return classify(err)
	}
	defer func() { err = errors.Join(err, classify(opened.Close())) }()
	dest, ok := opened.(*sqlite3.SQLiteConn)
	if !ok {
		return fmt.Errorf("unexpected connection %T", opened)
	}
	var b *sqlite3.SQLiteBackup
	err = d.rawHold(func(src *sqlite3.SQLiteConn) (err error) {
		b, err = dest.Backup("main", src, "main")
		return err
	})
	if err != nil {
		return err
	}
	for done := false; !done && err == nil; {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-d.closing:
			err = ErrClosed
		default:
			err = d.rawHold(func(*sqlite3.SQLiteConn) (err error) {
				done, err = b.Step(backupPages)
				return err
			})
		}
	}
	return errors.Join(err, d.rawHold(func(*sqlite3.SQLiteConn) error {
		if finished := b.Finish(); err == nil {
			return finished
		}
		return nil // Finish repeats the error.
	}))
}

// rawHold is hold with the driver's own connection.
func (d *DB) rawHold(fn func(*sqlite3.SQLiteConn) error) error {
	return d.hold(func(c *sqlx.Conn) error {
		return c.Raw(func(raw any) error {
			conn, ok := raw.(*sqlite3.SQLiteConn)
			if !ok {
				return fmt.Errorf("unexpected connection %T", raw)
			}
			return fn(conn)
		})
	})
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
