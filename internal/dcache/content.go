package dcache

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// The classes of callers, for content and for batch jobs. They are untyped, to fit the string fields.
const (
	ClassFleet      = "fleet"
	ClassRestricted = "restricted"
)

func knownClass(class string) bool { return class == ClassFleet || class == ClassRestricted }

// usePrecision is how far, in seconds, used_at may lag behind: a hot key costs at most one write in that time.
const usePrecision = 60

func digestOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Put stores body under key for one class of callers, and returns its digest, the SHA-256 in hex. A body is stored once, whatever
// number of keys and classes name it; putting a key again moves it to the new body. now, in unix seconds, is when it was used.
// When Size passes the budget, the least recently used entries are evicted. An unknown class is ErrInvalid; a body larger than
// the budget is ErrTooLarge, and evicts nothing. A nil body is an empty one.
func (d *DB) Put(class, key string, body []byte, now int64) (digest string, err error) {
	digest, err = d.put(class, key, body, now)
	return digest, opError("put content", key, err)
}

func (d *DB) put(class, key string, body []byte, now int64) (digest string, err error) {
	if !knownClass(class) {
		return "", fmt.Errorf("class %.64q: %w", class, ErrInvalid)
	}
	if d.maxBytes > 0 && int64(len(body)) > d.maxBytes {
		return "", fmt.Errorf("body of %d bytes, budget of %d: %w", len(body), d.maxBytes, ErrTooLarge)
	}
	if body == nil {
		body = []byte{} // a nil slice would be stored as NULL
	}
	digest = digestOf(body)
	if err := d.weigh(1+len(body)/pageBytes, func(t *tx) error {
		return t.putContent(class, key, digest, body, now)
	}); err != nil {
		return "", err
	}
	d.evict()
	return digest, nil
}

func (t *tx) putContent(class, key, digest string, body []byte, now int64) error {
	var old []string
	if err := t.selectAll(&old, `SELECT digest FROM content_entry WHERE class = +? AND key = +?`, class, key); err != nil {
		return err
	}
	if overflows(t.contentBytes(), int64(len(body))) {
		return fmt.Errorf("the content cache would pass the range of int64: %w", ErrTooLarge)
	}
	n, err := t.exec(`
		INSERT INTO content_body (digest, nbytes, body) VALUES (?, ?, ?)
		ON CONFLICT DO NOTHING`, digest, len(body), body)
	if err != nil {
		return err
	}
	t.delta.content += n * int64(len(body))
	if n == 0 { // stored already, and perhaps damaged since
		if _, err := t.exec(`UPDATE content_body SET body = ?1 WHERE digest = +?2 AND body IS NOT ?1`, body, digest); err != nil {
			return err
		}
	}
	// A replaced row gets a new rowid, which is what orders the entries of one second.
	if _, err := t.exec(`
		INSERT OR REPLACE INTO content_entry (class, key, digest, used_at) VALUES (?, ?, ?, ?)`,
		class, key, digest, now); err != nil {
		return err
	}
	if len(old) == 1 && old[0] != digest {
		return t.dropIfUnnamed(old[0])
	}
	return nil
}

const deleteUnnamed = `
	DELETE FROM content_body
	WHERE digest = +? AND NOT EXISTS (SELECT 1 FROM content_entry WHERE digest = content_body.digest)
	RETURNING nbytes`

// dropIfUnnamed deletes a body whose last entry has gone.
func (t *tx) dropIfUnnamed(digest string) error {
	var freed []int64
	err := t.selectAll(&freed, deleteUnnamed, digest)
	for _, n := range freed {
		t.wrote = true
		t.delta.content -= n
	}
	return err
}

const selectContent = `
	SELECT e.digest, e.used_at, b.body
	FROM content_entry e JOIN content_body b ON b.digest = e.digest
	WHERE e.rowid = (SELECT rowid FROM content_entry WHERE class = +?1 AND key = +?2) AND e.class = +?1 AND e.key = +?2`

// Get returns the body under key, if this class of callers has put one, and marks its use, to within a minute. A body that no longer
// has its digest is a miss: it is counted in Stats().Corrupt and removed. The bytes returned are the caller's own.
func (d *DB) Get(class, key string, now int64) ([]byte, bool) {
	var c struct {
		Digest string
		UsedAt int64 `db:"used_at"`
		Body   []byte
	}
	err := error(ErrNotFound)
	if knownClass(class) {
		err = d.get(&c, selectContent, class, key)
		d.report("get content", key, err)
	}
	if err == nil && digestOf(c.Body) != c.Digest {
		d.stats.corrupt.Add(1)
		err = ErrNotFound
		d.report("remove a damaged body", key, d.write(func(t *tx) error { return t.removeDamaged(c.Digest) }))
	}
	if !d.stats.content.found(err == nil) {
		return nil, false
	}
	// Away from used_at in either direction: a clock that was stepped back must not freeze it.
	if uint64(max(now, c.UsedAt))-uint64(min(now, c.UsedAt)) >= usePrecision {
		d.report("mark the use of content", key, d.write(func(t *tx) error {
			_, err := t.exec(`UPDATE content_entry SET used_at = ? WHERE class = +? AND key = +?`, now, class, key)
			return err
		}))
	}
	if c.Body == nil {
		c.Body = []byte{}
	}
	return c.Body, true
}

// removeDamaged deletes a body that does not have its digest, and every entry that names it. It may have been put anew since it was
// read: then it stays.
func (t *tx) removeDamaged(digest string) error {
	var body []byte
	if err := t.get(&body, `SELECT body FROM content_body WHERE digest = +?`, digest); err != nil {
		return err
	}
	if digestOf(body) == digest {
		return nil
	}
	if _, err := t.exec(`DELETE FROM content_entry WHERE digest = +?`, digest); err != nil {
		return err
	}
	return t.dropIfUnnamed(digest)
}

// Delete removes the entry under key, and its body if no other entry names it. An absent key is no error; an unknown class is
// ErrInvalid.
func (d *DB) Delete(class, key string) error {
	var err error
	if knownClass(class) {
		err = d.write(func(t *tx) error { return t.deleteContent(class, key) })
	} else {
		err = fmt.Errorf("class %.64q: %w", class, ErrInvalid)
	}
	return opError("delete content", key, err)
}

const deleteEntry = `DELETE FROM content_entry WHERE class = +? AND key = +? RETURNING digest`

func (t *tx) deleteContent(class, key string) error {
	var gone []string
	if err := t.selectAll(&gone, deleteEntry, class, key); err != nil {
		return err
	}
	for _, digest := range gone {
		t.wrote = true
		if err := t.dropIfUnnamed(digest); err != nil {
			return err
		}
	}
	return nil
}

const selectLeastUsed = `SELECT class, key FROM content_entry ORDER BY used_at, rowid LIMIT 32`

// evict deletes the least recently used entries, each body with its last one, until Size fits the budget. It works in turns,
// like a sweep, and logs its errors: what was put is stored, and the next put tries again.
func (d *DB) evict() {
	over := func(bytes int64) bool { return d.maxBytes > 0 && bytes > d.maxBytes }
	total := 0
	for over(d.Size()) {
		n := 0
		err := d.turn(1, func(t *tx) error { // of 32 entries at most
			n = 0
			var entries []struct{ Class, Key string }
			if err := t.selectAll(&entries, selectLeastUsed); err != nil {
				return err
			}
			before := t.contentBytes()
			for _, e := range entries {
				if !over(t.contentBytes()) || !t.mayGoOn((before-t.contentBytes())/pageBytes) {
					break
				}
				if err := t.deleteContent(e.Class, e.Key); err != nil {
					return err
				}
				n++
			}
			return nil
		})
		if err != nil {
			d.report("evict content", "", err)
			break
		}
		if n == 0 {
			break
		}
		total += n
	}
	if total > 0 {
		d.stats.evictedItems.Add(int64(total))
		d.reclaim()
	}
}
