package dcache

import (
	"fmt"
	"log/slog"
	"time"
)

// An Option changes how Open sets a store up.
type Option func(*config) error

type config struct {
	synchronous        Synchronous
	clock              func() time.Time
	logger             *slog.Logger
	batchBudget        int64
	hasBatchBudget     bool
	externalCheckpoint bool
}

func defaults() config {
	return config{synchronous: SyncFull, clock: time.Now, logger: slog.Default()}
}

// Synchronous says what a returned call has survived. Its values are SQLite's own.
type Synchronous int

const (
	// SyncNormal syncs at checkpoints only. After a power cut the file is whole, but the last calls before it may be gone;
	// a crash of the process alone loses nothing.
	SyncNormal Synchronous = 1

	// SyncFull syncs at every commit: what a call acknowledged survives a power cut.
	SyncFull Synchronous = 2
)

// WithSynchronous chooses the durability. Default: SyncFull, which group commit makes cheap.
func WithSynchronous(s Synchronous) Option {
	return func(c *config) error {
		if s != SyncNormal && s != SyncFull {
			return fmt.Errorf("synchronous %d: %w", s, ErrInvalid)
		}
		c.synchronous = s
		return nil
	}
}

// WithClock replaces the wall clock, which only BatchJob reads: every other method is told the time. Default: time.Now.
func WithClock(now func() time.Time) Option {
	return func(c *config) error {
		if now == nil {
			return fmt.Errorf("nil clock: %w", ErrInvalid)
		}
		c.clock = now
		return nil
	}
}

// WithLogger chooses where database errors go that a method has no way to return, at level Error; routine work is logged
// at level Debug. Default: slog.Default().
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l == nil {
			return fmt.Errorf("nil logger: %w", ErrInvalid)
		}
		c.logger = l
		return nil
	}
}

// WithBatchBudget makes the store run EvictBatchOldest(bytes) itself after each write that leaves more than that many result
// bytes stored and a finished job to evict. Default: none, the runner calls EvictBatchOldest.
func WithBatchBudget(bytes int64) Option {
	return func(c *config) error {
		if bytes < 0 {
			return fmt.Errorf("batch budget %d: %w", bytes, ErrInvalid)
		}
		c.batchBudget, c.hasBatchBudget = bytes, true
		return nil
	}
}

// WithExternalCheckpoint leaves the WAL to another program, such as Litestream: the store then never checkpoints while it is
// in service, and its bounds on the WAL and on the file are that program's. Default: SQLite checkpoints every 500 pages.
func WithExternalCheckpoint() Option {
	return func(c *config) error {
		c.externalCheckpoint = true
		return nil
	}
}
