// Package dcache is the storage layer of a page-fetching service: a store of batch jobs and a content-addressed cache, in one
// SQLite file.
//
// # A job's life
//
// A client's batch is one row in batch_job and one row per URL in batch_target. SubmitBatch stores both at once, under the caller's
// idempotency key, so that a retried submit finds the first one's job. The runner writes each result with FinishBatchTarget, from
// as many goroutines as it likes; the last one ends the job. Clients follow with BatchJob, BatchProgress and BatchTargetsPage.
//
// A job lives by its lease, the unix second of its last sign of life: a write, a touch, a read by BatchJob. SweepBatch deletes the
// jobs whose lease has expired, EvictBatchOldest the oldest finished ones until the results fit a budget; both delete jobs
// whole. After a crash, RequeueInFlight makes what was running ready to run again, and MarkInFlightFailed gives it up.
//
// Every method that depends on the time is told it, as unix seconds; only BatchJob reads the wall clock.
//
// # One connection
//
// The store has one connection to SQLite, and whoever holds it stops all others. Writes that come at the same time share one
// transaction and one sync (group commit); sweeps, evictions and the return of free pages work in turns, in small transactions as long
// as anybody waits. A file has one owner: Open takes a lock on a file beside it.
//
// # What is durable when
//
// With SyncFull, the default, a call that returned without an error has reached the disk: it survives a power cut. With SyncNormal it
// survives a crash of the process, and a power cut may take the last calls, each of them whole. A call that returned an error
// changed nothing.
//
// # Beside the jobs: content
//
// Put and Get hold fetched bodies under their SHA-256, each once, for two classes of callers, and evict the least recently used
// under a budget of their own, given to Open. Neither store's pressure touches the other.
//
// # What is SQLite's own
//
// Moving this package to a server database would touch these places, and no others:
//
//   - rowid: updates and deletions address the row that the select before them found (batch_account.go, batch_job.go), and the
//     order of rowids breaks the ties of the content cache's LRU. A server has a key column for the one and needs a sequence for the other.
//   - octet_length, printf, typeof and the comparisons behind a unary plus; INDEXED BY in one query; INSERT OR REPLACE in another.
//     ON CONFLICT DO NOTHING, RETURNING, row values and partial indexes are spelled the same in PostgreSQL.
//   - parameters: ? and ?1 become $1, and the + before them, which keeps SQLite's planner from their values, goes.
//   - pragmas, auto_vacuum, checkpoints, Backup and Compact (db.go, space.go, backup.go): a server does this itself.
//   - the lock beside the file, and the totals in memory, which hold because the file has one owner (lock.go, batch_account.go). With
//     several owners the totals are rows, and the transactions need SELECT ... FOR UPDATE or SERIALIZABLE with a retry: the verbs
//     may run more than once already.
//   - the errors, which are mapped by SQLite's codes in one function (errors.go).
//
// Group commit, the transition of a target and the verbs on tx carry over as they are.
package dcache
