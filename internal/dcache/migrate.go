package dcache

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"

	"github.com/jmoiron/sqlx"
)

//go:embed schema.sql
var schemaSQL string

// steps take a file from user_version i to i+1. They are append-only: a step that was released is never changed.
var steps = []string{
	schemaSQL,
}

// columns are those that the code names. More are welcome, fewer are not: a file may come from another hand.
var columns = map[string][]string{
	"batch_job": {
		"id", "caller", "caller_class", "idem_key", "status", "error", "targets_total", "targets_done",
		"created_at", "lease", "nbytes",
	},
	"batch_target":  {"job_id", "idx", "url", "options", "status", "result", "error", "hint"},
	"content_body":  {"digest", "nbytes", "body"},
	"content_entry": {"class", "key", "digest", "used_at"},
}

// inspect refuses a file that this code must not touch. It only reads, and returns the file's version.
func inspect(q sqlx.Queryer) (version int, err error) {
	if err := sqlx.Get(q, &version, `PRAGMA user_version`); err != nil {
		return 0, classify(err)
	}
	if version < 0 || version > len(steps) {
		return 0, fmt.Errorf("version %d, this code knows up to %d: %w", version, len(steps), ErrSchema)
	}
	var encoding string
	if err := sqlx.Get(q, &encoding, `PRAGMA encoding`); err != nil {
		return 0, classify(err)
	}
	if encoding != "UTF-8" {
		// octet_length would count other bytes than Go's len.
		return 0, fmt.Errorf("encoding %s, not UTF-8: %w", encoding, ErrSchema)
	}
	for table, want := range columns {
		var have []string
		if err := sqlx.Select(q, &have, `SELECT name FROM pragma_table_info(?)`, table); err != nil {
			return 0, classify(err)
		}
		if len(have) == 0 && version == 0 {
			continue
		}
		for _, c := range want {
			if !slices.Contains(have, c) {
				return 0, fmt.Errorf("table %s has no column %s: %w", table, c, ErrSchema)
			}
		}
	}
	return version, nil
}

// migrate brings the schema up to date in one transaction.
func migrate(db *sqlx.DB) error {
	tx, err := db.Beginx()
	if err != nil {
		return classify(err)
	}
	defer tx.Rollback() //nolint:errcheck // After Commit it is a no-op, and before it the first error is the one to return.
	version, err := inspect(tx)
	if err != nil {
		return err
	}
	if version == len(steps) {
		return nil
	}
	for _, step := range steps[version:] {
		if _, err := tx.Exec(step); err != nil {
			return fmt.Errorf("migrate from version %d: %w", version, classify(err))
		}
	}
	if _, err := tx.Exec(`PRAGMA user_version = ` + strconv.Itoa(len(steps))); err != nil {
		return classify(err)
	}
	return classify(tx.Commit())
}
