package dcache

import (
	"os/signal"
	"syscall"
)

// limitFileSize makes this process's writes past so many bytes of a file fail with EFBIG.
func limitFileSize(bytes uint64) error {
	signal.Ignore(syscall.SIGXFSZ)
	limit := syscall.Rlimit{Cur: bytes, Max: 1 << 40}
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}
