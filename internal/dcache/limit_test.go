package dcache

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// limitFileSize makes this process's writes past so many bytes of a file fail with EFBIG.
func limitFileSize(bytes uint64) error {
	signal.Ignore(syscall.SIGXFSZ)
	limit := syscall.Rlimit{Cur: bytes, Max: 1 << 40}
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

// resident is this process's resident memory in bytes, or 0 where the system does not tell.
func resident() int64 {
	var size, pages int64
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
