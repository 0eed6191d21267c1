package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
	"maragu.dev/goqite"
)

// goqitePeer is the queue that a program could have instead, on the same SQLite: its nearest operation is to delete a message that
// was received, which is less work, since nothing is written and nothing counted.
type goqitePeer struct {
	db       *sqlx.DB
	queues   []*goqite.Queue // one a job
	received map[Op]goqite.ID
}

func newGoqite() Peer { return &goqitePeer{received: map[Op]goqite.ID{}} }

func (p *goqitePeer) Name() string { return "goqite Delete FULL" }

func (p *goqitePeer) Prepare(dir string, w *Work) (err error) {
	if p.db, err = openSQL(filepath.Join(dir, "goqite.db"), full); err != nil {
		return err
	}
	if _, err := p.db.Exec(goqiteSchema); err != nil {
		return err
	}
	for _, id := range w.JobIDs {
		p.queues = append(p.queues, goqite.New(goqite.NewOpts{DB: p.db.DB, Name: id, Timeout: time.Hour}))
	}
	tx, err := p.db.Begin()
	if err != nil {
		return err
	}
	if err := p.receive(tx, w); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	_, err = p.db.Exec(`PRAGMA wal_checkpoint(TRUNCATE)`)
	return err
}

// receive sends and receives a message for each operation. More would only make the file larger.
func (p *goqitePeer) receive(tx *sql.Tx, w *Work) error {
	ctx := context.Background()
	for _, op := range w.Ops {
		q := p.queues[op.Job]
		if err := q.SendTx(ctx, tx, goqite.Message{Body: []byte(w.Results[op.Result])}); err != nil {
			return err
		}
		m, err := q.ReceiveTx(ctx, tx)
		if err != nil {
			return err
		}
		if m == nil {
			return fmt.Errorf("%w: a message that was sent is not there", errWrong)
		}
		p.received[op] = m.ID
	}
	return nil
}

func (p *goqitePeer) Finish(op Op, _ int64, _ string) error {
	return p.queues[op.Job].Delete(context.Background(), p.received[op])
}

// Verify expects that every message was there, and none is now: Delete itself doesn't tell.
func (p *goqitePeer) Verify(w *Work) error {
	var left int
	if err := p.db.Get(&left, `SELECT count(*) FROM goqite`); err != nil {
		return err
	}
	if left != 0 || len(p.received) != len(w.Ops) {
		return fmt.Errorf("%w: %d messages received for %d operations, %d left", errWrong, len(p.received), len(w.Ops), left)
	}
	return nil
}

func (p *goqitePeer) Close() error {
	if p.db == nil {
		return nil
	}
	return p.db.Close()
}

// goqiteSchema is schema_sqlite.sql of goqite, which the package does not export.
const goqiteSchema = `
create table goqite (
  id text primary key default ('m_' || lower(hex(randomblob(16)))),
  created text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  updated text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  queue text not null,
  body blob not null,
  timeout text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  received integer not null default 0,
  priority integer not null default 0
) strict;

create trigger goqite_updated_timestamp after update on goqite begin
  update goqite set updated = strftime('%Y-%m-%dT%H:%M:%fZ') where id = old.id;
end;

create index goqite_queue_priority_created_idx on goqite (queue, priority desc, created);
`
