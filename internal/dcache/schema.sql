-- The tables, written so that a file which holds some of them already keeps its rows and gains the rest.
-- All times are unix seconds in INTEGER columns; a column declared as a date would be converted by the driver.

-- A batch: one row, and its targets below.
CREATE TABLE IF NOT EXISTS batch_job (
    id            TEXT PRIMARY KEY,
    caller        TEXT NOT NULL,
    caller_class  TEXT NOT NULL,          -- 'fleet' | 'restricted'
    idem_key      TEXT NOT NULL,
    status        TEXT NOT NULL,          -- queued|running|done|partial|failed|cancelled
    error         TEXT NOT NULL DEFAULT '',
    targets_total INTEGER NOT NULL,
    targets_done  INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL,       -- unix seconds
    lease         INTEGER NOT NULL,       -- unix seconds; bumped on submit/completion/read
    nbytes        INTEGER NOT NULL DEFAULT 0  -- sum of stored per-target result bytes
);
CREATE TABLE IF NOT EXISTS batch_target (
    job_id  TEXT NOT NULL,
    idx     INTEGER NOT NULL,             -- order within the job, 0..n-1
    url     TEXT NOT NULL,
    options TEXT NOT NULL,                -- JSON: the per-target options
    status  TEXT NOT NULL,                -- pending|running|done|failed
    result  TEXT,                         -- JSON result envelope, or NULL
    error   TEXT,                         -- error message, or NULL
    hint    TEXT,                         -- error hint, or NULL
    PRIMARY KEY (job_id, idx)
);
CREATE INDEX IF NOT EXISTS batch_job_idem  ON batch_job(caller, idem_key);
CREATE INDEX IF NOT EXISTS batch_job_lease ON batch_job(lease);

-- The live jobs, for what happens at start-up. It does not move with the lease.
CREATE INDEX IF NOT EXISTS batch_job_live ON batch_job(caller)
    WHERE status IN ('queued', 'running');

-- What can be evicted, in the order of eviction. A live job is not in it, so a write under a live job does not touch it.
CREATE INDEX IF NOT EXISTS batch_job_evict ON batch_job(lease, created_at, id)
    WHERE status IN ('done', 'partial', 'failed', 'cancelled') AND nbytes > 0;

-- Listing, newest first: of one caller, and of all. Neither column ever changes.
CREATE INDEX IF NOT EXISTS batch_job_caller_age ON batch_job(caller, created_at, id);
CREATE INDEX IF NOT EXISTS batch_job_age        ON batch_job(created_at, id);

-- The content cache: a body once, and under it the names that it goes by.
CREATE TABLE IF NOT EXISTS content_body (
    digest TEXT PRIMARY KEY,              -- SHA-256 of the body, hex
    nbytes INTEGER NOT NULL,              -- octet_length(body)
    body   BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS content_entry (
    class   TEXT NOT NULL,                -- 'fleet' | 'restricted'
    key     TEXT NOT NULL,
    digest  TEXT NOT NULL,                -- of content_body
    used_at INTEGER NOT NULL,             -- unix seconds of the last put or get, to within a minute
    PRIMARY KEY (class, key)
);
CREATE INDEX IF NOT EXISTS content_body_nbytes  ON content_body(nbytes);     -- Open sums it without reading a body
CREATE INDEX IF NOT EXISTS content_entry_digest ON content_entry(digest);    -- is this the body's last entry?
CREATE INDEX IF NOT EXISTS content_entry_used   ON content_entry(used_at);   -- least recently used first; ties in the order they were put

-- For an operator at the sqlite3 shell; it uses only functions that SQLite 3.37 has.
CREATE VIEW IF NOT EXISTS batch_overview AS
SELECT id,
       caller,
       caller_class,
       status,
       targets_done || '/' || targets_total            AS progress,
       CAST(strftime('%s', 'now') AS INTEGER) - created_at AS age_seconds,
       CAST(strftime('%s', 'now') AS INTEGER) - lease      AS idle_seconds,
       nbytes,
       datetime(created_at, 'unixepoch')                AS created,
       datetime(lease, 'unixepoch')                     AS leased,
       error
FROM batch_job;
