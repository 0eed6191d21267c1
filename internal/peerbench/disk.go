package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// tmpfs is the type of a file system in memory, where a sync costs nothing and every figure would be of something else.
const tmpfs = 0x01021994

// workDir makes a folder of its own below dir.
func workDir(dir string) (string, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("statfs %s: %w", dir, err)
	}
	if s.Type == tmpfs {
		return "", fmt.Errorf("%s is in memory, not on a disk", dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, "peerbench-")
}
