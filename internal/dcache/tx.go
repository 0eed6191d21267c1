package dcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jmoiron/sqlx"
)

// maxGroup bounds the weight of the calls that share one commit, and with it how long the first of them waits for the last, and how
// much one commit adds to the WAL. A call weighs one, and one more for each row or page that it writes besides its own.
const maxGroup = 512

// pageBytes is how many bytes of a value weigh as much as a row: a large value is written, and later freed, page by page.
const pageBytes = 8192

// A long piece of work, such as a sweep, is done in turns, each a transaction of its own, with the other callers in between. These are
// its bounds, in weight.
const (
	shortTurn = 512       // while others wait: about as long as a commit takes to reach the disk
	longTurn  = 128 << 10 // while nobody does
)

// maxSpill ends a long turn as well, in bytes of WAL: with the pages that are still in the cache it stays below 64 MiB.
const maxSpill = 32 << 20

// tx is a transaction as one call sees it. Several calls may share one (see group); each is told apart by wrote and failed.
//
// Statements compare a column of an index with = +?, not = ?, and write LIMIT +?. SQLite's planner looks at the value of a bare variable
// there, and then compiles the statement anew whenever one is bound, which takes longer than to run it. A + hides the value.
//
// The verbs on tx check everything before their first write, return at the first error, and set their results afresh each time
// they run: a call runs again, alone, when its group came to grief.
//
// It is not a sql.Tx, which starts a goroutine for itself and one for each query, to watch a context that is never cancelled here:
// with one caller they took a third of the time.
type tx struct {
	db     *DB
	conn   *sqlx.Conn // held from the beginning until the totals have followed
	delta  totals     // what this transaction does to the totals, applied after its commit
	wrote  bool       // the call has changed rows
	failed bool       // a statement of the call failed; the transaction may be gone

	alone    bool  // its group has come to grief once: now as little at a time as possible
	measured int64 // of mayGoOn, for the call that runs: the work done when it last looked at the WAL,
	spilt    bool  // and whether that was long
}

// exec runs a statement that writes, and returns the number of rows that it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	res, err := t.conn.ExecContext(context.Background(), query, args...)
	if err != nil {
		return 0, t.fail(err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, t.fail(err)
	}
	if n > 0 {
		t.wrote = true
	}
	return n, nil
}

// maxQueryBytes bounds the values that insert hands over as a query: the driver keeps a buffer of their size with the statement.
const maxQueryBytes = 1 << 20

// insert runs a statement that inserts many values. As a query, the driver binds them all in one call to C, where exec needs one for each.
func (t *tx) insert(query string, args ...any) error {
	size := 0
	for _, a := range args {
		if s, ok := a.(string); ok {
			size += len(s)
		}
	}
	if size > maxQueryBytes {
		_, err := t.exec(query, args...)
		return err
	}
	rows, err := t.conn.QueryContext(context.Background(), query, args...)
	if err != nil {
		return t.fail(err)
	}
	t.wrote = true
	return t.fail(errors.Join(rows.Close(), rows.Err())) //nolint:sqlclosecheck // The statement has run to its end.
}

// execOne is exec for the one row that a key names: ErrNotFound if there is none.
func (t *tx) execOne(query string, args ...any) error {
	n, err := t.exec(query, args...)
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrNotFound
	}
	return nil
}

// get reads one row into dest: ErrNotFound if there is none.
func (t *tx) get(dest any, query string, args ...any) error {
	return t.fail(t.conn.GetContext(context.Background(), dest, query, args...))
}

// selectAll reads all rows into the slice that dest points to, and leaves no cursor open.
func (t *tx) selectAll(dest any, query string, args ...any) error {
	return t.fail(t.conn.SelectContext(context.Background(), dest, query, args...))
}

// fail classifies a statement's error and remembers that it broke the transaction. Finding no row is no failure.
func (t *tx) fail(err error) error {
	err = classify(err)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.failed = true
	}
	return err
}

// mayGoOn tells a long piece of work, which has done so much in this transaction, whether its turn goes on. It may be long while nobody
// waits: pages that many rows share are then written once, not once for each few of them. Who comes meanwhile waits for the commit, and
// the checkpoint, of what was done while nobody waited. Another program can't be seen to wait: where one is expected, turns are short.
func (t *tx) mayGoOn(done int64) bool {
	if done < shortTurn {
		return true
	}
	if t.alone || t.db.externalCheckpoint {
		return false
	}
	if done >= t.measured+shortTurn { // to ask the file system each time would take longer than some of the work
		t.measured, t.spilt = done, t.db.walBytes() > maxSpill
	}
	return done < longTurn && !t.spilt && t.db.inside.Load() == 1
}

// run runs one call in the transaction. It reports whether the transaction may go on: a call that was refused before its
// first write has left nothing behind, any other error has spoilt the transaction for all of its group.
func (t *tx) run(c *call) (intact bool) {
	t.wrote, t.failed, t.measured, t.spilt = false, false, 0, false
	defer func() {
		// A bug in one call must not leave the others waiting for ever.
		if r := recover(); r != nil {
			c.err, intact = fmt.Errorf("panic in a transaction: %v", r), false
		}
	}()
	c.err = c.fn(t)
	return c.err == nil || !t.wrote && !t.failed
}

// call is one caller's part of a group.
type call struct {
	fn     func(*tx) error
	weight int
	err    error
	done   chan bool // receives false when the call is finished, true when it has to lead the next group
}

// group is the queue at which calls that write at the same time meet, to share one transaction and so one sync.
//
// The first to come leads: it begins, runs whatever is queued until the queue is empty, commits, and wakes the rest. Whoever
// came during the commit forms the next group, led by its first. There is no timer: alone, a call is its own group.
type group struct {
	mu      sync.Mutex
	queue   []*call
	leading bool
}

// join queues a call, and reports whether its caller has to lead.
func (g *group) join(c *call) (lead bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, c)
	lead = !g.leading
	g.leading = true
	return lead
}

// take moves queued calls of up to a weight to the end of calls, and returns what is left of the weight. The first call of a group is
// taken whatever it weighs.
func (g *group) take(calls []*call, weight int) ([]*call, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for ; n < len(g.queue) && (weight >= g.queue[n].weight || len(calls)+n == 0); n++ {
		weight -= g.queue[n].weight
	}
	calls = append(calls, g.queue[:n]...)
	g.queue = slices.Delete(g.queue, 0, n) // which lets go of them
	return calls, weight
}

// handOver ends a lead: the first in the queue, if there is one, goes on.
func (g *group) handOver() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leading = len(g.queue) > 0
	if g.leading {
		g.queue[0].done <- true
	}
}

// finish tells a call's caller, unless it is the leader's own, that the outcome is known.
func (d *DB) finish(c, own *call) {
	d.stats.operation(c.err)
	if c != own {
		c.done <- false
	}
}

// write is weigh for a call that writes a row or two.
func (d *DB) write(fn func(*tx) error) error { return d.weigh(1, fn) }

// weigh runs fn in a transaction that other callers may share, and returns after its commit. The transaction holds SQLite's
// write lock from its beginning: one that reads first and writes later could find the file changed in between, which SQLite
// reports at once, without waiting. An error of fn takes back what fn did and nothing else. fn may run more than once.
func (d *DB) weigh(weight int, fn func(*tx) error) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	c := &call{fn: fn, weight: weight, done: make(chan bool, 1)}
	if d.group.join(c) || <-c.done {
		d.lead(c)
	}
	return c.err
}

// lead runs one group, in which own stands first, and wakes the others.
func (d *DB) lead(own *call) {
	calls, err := d.commitGroup()
	switch {
	case err == nil:
		d.stats.transactions.Add(1)
		d.group.handOver()
		for _, c := range calls {
			d.finish(c, own)
		}
	case errors.Is(err, errSpoilt):
		// Who spoilt it can't be told from who was near: SQLite may have rolled everything back. Each tries alone.
		var busy error
		for _, c := range calls {
			if c.err = busy; busy == nil {
				d.commitAlone(c)
			}
			if errors.Is(c.err, ErrBusy) {
				busy = c.err // waited for once; the others need not wait as long each
			}
			d.finish(c, own)
		}
		d.group.handOver()
	default:
		d.group.handOver()
		for _, c := range calls {
			c.err = err
			d.finish(c, own)
		}
	}
}

// errSpoilt says that a transaction was rolled back, and that its calls may do better alone.
var errSpoilt = errors.New("transaction spoilt by one of its calls")

// commitGroup runs the queued calls in one transaction, those included that come while it runs. With an error, nothing of it
// was stored.
func (d *DB) commitGroup() (calls []*call, err error) {
	weight := maxGroup
	t, err := d.begin()
	if err != nil {
		calls, _ = d.group.take(nil, weight)
		return calls, err
	}
	for ran := 0; ; ran++ {
		if ran == len(calls) {
			calls, weight = d.group.take(calls, weight)
			if ran == len(calls) {
				break
			}
		}
		if !t.run(calls[ran]) {
			t.rollback()
			return calls, errSpoilt
		}
	}
	if err := t.commit(); err != nil {
		return calls, errSpoilt
	}
	return calls, nil
}

// commitAlone runs one call in a transaction of its own.
func (d *DB) commitAlone(c *call) {
	t, err := d.begin()
	if err != nil {
		c.err = err
		return
	}
	t.alone = true
	if t.run(c); c.err != nil {
		t.rollback()
		return
	}
	if c.err = t.commit(); c.err == nil {
		d.stats.transactions.Add(1)
	}
}

func (d *DB) begin() (*tx, error) {
	// No context that can be cancelled: the driver would close the connection under an in-memory database.
	conn, err := d.sql.Connx(context.Background())
	if err != nil {
		return nil, classify(err)
	}
	if _, err := conn.ExecContext(context.Background(), `BEGIN IMMEDIATE`); err != nil {
		return nil, errors.Join(classify(err), conn.Close())
	}
	return &tx{db: d, conn: conn}, nil
}

// commit makes the transaction durable, and only then lets the totals follow, before anybody else can read the rows.
func (t *tx) commit() error {
	if _, err := t.conn.ExecContext(context.Background(), `COMMIT`); err != nil {
		t.rollback() // SQLite may have left it open
		return classify(err)
	}
	t.db.totals.add(&t.delta)
	t.release()
	return nil
}

// release gives the connection back. Its error changes nothing about what was committed, and must not make a call run again.
func (t *tx) release() {
	if err := t.conn.Close(); err != nil {
		t.db.logger.Error("dcache: give the connection back", "err", err)
	}
}

func (t *tx) rollback() {
	defer t.release()
	// An error here says that SQLite has rolled back by itself, as it does when the disk is full.
	if _, err := t.conn.ExecContext(context.Background(), `ROLLBACK`); err != nil {
		t.db.logger.Debug("dcache: rollback", "err", err)
	}
}

// hold runs fn on the one connection, which nobody else can use meanwhile: what fn reads is of one moment.
// A query outside of it, from within fn, would wait for ever.
func (d *DB) hold(fn func(*sqlx.Conn) error) (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	defer func() { d.stats.databaseError(err) }()
	c, err := d.sql.Connx(context.Background())
	if err != nil {
		return classify(err)
	}
	defer c.Close() //nolint:errcheck // It gives the connection back, which can't fail.
	return classify(fn(c))
}

// get reads one row into dest: ErrNotFound if there is none.
func (d *DB) get(dest any, query string, args ...any) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	err := classify(d.sql.Get(dest, query, args...))
	d.stats.databaseError(err)
	return err
}
