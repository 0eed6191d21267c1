package dcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// resolve gives the one name of a database file, whichever way it was spelled, so that two owners meet at the same lock.
// The file need not exist, but its folder must.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	// A dangling link has to be followed by hand: SQLite creates the file that it points to.
	for range 40 {
		real, err := filepath.EvalSymlinks(abs)
		if err == nil {
			return real, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		to, err := os.Readlink(abs)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(abs), to)
		}
		abs = to
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(abs)), nil
}

// checkFile refuses what cannot be a store's file, before anything is created beside it.
func checkFile(file string) error {
	if err := syscall.Access(filepath.Dir(file), wOK); err != nil {
		return fmt.Errorf("folder: %w: %w", ErrReadOnly, err)
	}
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("is a folder: %w", ErrInvalid)
	case !info.Mode().IsRegular():
		return fmt.Errorf("is not a regular file: %w", ErrInvalid)
	}
	if err := syscall.Access(file, wOK); err != nil {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return nil
}

const wOK = 2 // access(2): may it be written?

// lockFile makes the caller the one owner of a database file, until the returned file is closed or the process ends.
//
// The lock lies beside the database, because closing any descriptor of the database itself would drop SQLite's own locks.
// It is never removed: a file removed by one owner and made anew by the next would be two locks.
func lockFile(file string) (*os.File, error) {
	f, err := os.OpenFile(file+"-lock", os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil, fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
