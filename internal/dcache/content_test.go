package dcache

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"testing"

	"github.com/matryer/is"
)

func TestContent(t *testing.T) {
	t.Run("put, get, delete", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		digest, err := d.Put(ClassFleet, "k", []byte("hello"), 1)
		is.NoErr(err)
		is.Equal(digest, fmt.Sprintf("%x", sha256.Sum256([]byte("hello"))))
		got, ok := d.Get(ClassFleet, "k", 1)
		is.True(ok)
		is.Equal(string(got), "hello")
		_, ok = d.Get(ClassRestricted, "k", 1) // a class sees its own keys only
		is.True(!ok)
		_, ok = d.Get("other", "k", 1)
		is.True(!ok)
		is.NoErr(d.Delete(ClassRestricted, "k"))
		is.Equal(d.Size(), int64(5))
		is.NoErr(d.Delete(ClassFleet, "k"))
		is.NoErr(d.Delete(ClassFleet, "k"))
		is.Equal(d.Size(), int64(0))
		s := d.Stats()
		is.Equal([]int64{s.ContentH, s.ContentM}, []int64{1, 2})
	})
	t.Run("a body once, whatever names it", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for _, class := range []string{ClassFleet, ClassRestricted} {
			for i := range 10 {
				_, err := d.Put(class, fmt.Sprint(i), []byte("same"), 1)
				is.NoErr(err)
			}
		}
		is.Equal(d.Size(), int64(4))
		_, err := d.Put(ClassFleet, "0", []byte("other one"), 1) // moves the key
		is.NoErr(err)
		is.Equal(d.Size(), int64(13))
		_, err = d.Put(ClassFleet, "0", []byte("third"), 1) // and the body that nobody names goes
		is.NoErr(err)
		is.Equal(d.Size(), int64(9))
		for _, class := range []string{ClassFleet, ClassRestricted} {
			for i := range 10 {
				is.NoErr(d.Delete(class, fmt.Sprint(i)))
			}
		}
		is.Equal(d.Size(), int64(0))
	})
	t.Run("empty and nil bodies", func(t *testing.T) {
		is := is.New(t)
		d := open(t)
		for i, body := range [][]byte{nil, {}} {
			_, err := d.Put(ClassFleet, fmt.Sprint(i), body, 1)
			is.NoErr(err)
			got, ok := d.Get(ClassFleet, fmt.Sprint(i), 1)
			is.True(ok && got != nil && len(got) == 0)
		}
	})
	t.Run("refuses", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, ":memory:", 100)
		_, err := d.Put(ClassFleet, "kept", make([]byte, 100), 1)
		is.NoErr(err)
		before := dump(t, d)
		_, err = d.Put(ClassFleet, "large", make([]byte, 101), 2)
		mustBe(t, err, ErrTooLarge)
		for _, class := range []string{"", "Fleet", "x"} {
			_, err := d.Put(class, "k", []byte("x"), 1)
			mustBe(t, err, ErrInvalid)
			mustBe(t, d.Delete(class, "k"), ErrInvalid)
		}
		is.Equal(dump(t, d), before) // nothing was evicted for it
	})
	t.Run("many at once", func(t *testing.T) {
		d := openAt(t, t.TempDir()+"/db", 3000)
		together(32, func(w int) {
			for i := range 30 {
				key, body := fmt.Sprint(i%7), bytes.Repeat([]byte{byte(i % 11)}, 100*(i%11))
				if _, err := d.Put(ClassFleet, key, body, int64(i)); err != nil {
					t.Error(err)
				}
				if got, ok := d.Get(ClassFleet, key, int64(100*i)); ok && len(got)%100 != 0 {
					t.Errorf("%d bytes", len(got))
				}
				if w == 0 {
					if err := d.Delete(ClassFleet, key); err != nil {
						t.Error(err)
					}
				}
			}
		})
		if n := d.Size(); n > 3000 {
			t.Errorf("size %d", n)
		}
	})
}

func TestContentEviction(t *testing.T) {
	put := func(t *testing.T, d *DB, key string, n int, now int64) {
		t.Helper()
		_, err := d.Put(ClassFleet, key, bytes.Repeat([]byte(key), n/len(key)), now)
		must(t, err)
	}
	have := func(d *DB) (keys string) {
		for _, k := range []string{"a", "b", "c", "d", "e"} {
			var n int
			if d.sql.Get(&n, `SELECT 1 FROM content_entry WHERE key = ?`, k) == nil {
				keys += k
			}
		}
		return keys
	}
	t.Run("least recently used first", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, ":memory:", 30)
		put(t, d, "a", 10, 100)
		put(t, d, "b", 10, 200)
		put(t, d, "c", 10, 300)
		is.Equal(have(d), "abc") // exactly the budget
		_, ok := d.Get(ClassFleet, "a", 400)
		is.True(ok)
		put(t, d, "d", 10, 500)
		is.Equal(have(d), "acd")
		put(t, d, "e", 25, 600)
		is.Equal(have(d), "e")
		is.Equal(d.Size(), int64(25))
		is.Equal(d.Stats().EntriesEvicted, int64(4))
	})
	t.Run("in one second, in the order that they were put", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, ":memory:", 30)
		for _, k := range []string{"c", "b", "a", "c"} {
			put(t, d, k, 10, 100)
		}
		put(t, d, "d", 10, 100)
		is.Equal(have(d), "acd")
	})
	t.Run("a body goes with its last entry", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, ":memory:", 20)
		for i, class := range []string{ClassFleet, ClassRestricted} {
			_, err := d.Put(class, "shared", make([]byte, 10), int64(i))
			is.NoErr(err)
		}
		put(t, d, "a", 10, 100)
		put(t, d, "b", 5, 200) // both entries of the shared body have to go before it does
		is.Equal(have(d), "ab")
		is.Equal(d.Size(), int64(15))
	})
	t.Run("never touches a batch", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, ":memory:", 20)
		addDone(t, d, "j", 1, 1000)
		put(t, d, "a", 20, 100)
		put(t, d, "b", 20, 100)
		is.Equal(peek(t, d, "j").NBytes, int64(1000))
		is.Equal(d.Size(), int64(20))
		is.Equal(d.EvictBatchOldest(0), 1)
		is.Equal(have(d), "b")
	})
	t.Run("more than fits one step", func(t *testing.T) {
		is := is.New(t)
		d := openAt(t, ":memory:", 1000)
		for i := range 500 {
			_, err := d.Put(ClassFleet, fmt.Sprint("k", i), []byte{byte(i), byte(i >> 8)}, int64(i))
			is.NoErr(err)
		}
		put(t, d, "a", 999, 1000)
		is.Equal(d.Size(), int64(999)) // 999 + 2 does not fit
		is.Equal(d.Stats().EntriesEvicted, int64(500))
	})
}

func TestContentUseIsMarkedOnceAMinute(t *testing.T) {
	is := is.New(t)
	d := open(t)
	_, err := d.Put(ClassFleet, "k", []byte("x"), 1000)
	is.NoErr(err)
	for _, tt := range []struct {
		now    int64
		writes int64
	}{
		{1000, 0}, {1059, 0}, {941, 0}, {1060, 1}, {1061, 0}, {1119, 0}, {1001, 0}, {1000, 1}, {2000, 1}, {-5, 1}, {math.MaxInt64, 1}, {math.MinInt64, 1}, {math.MaxInt64 - 1, 1},
	} {
		before := d.Stats().Operations
		_, ok := d.Get(ClassFleet, "k", tt.now)
		is.True(ok)
		is.Equal(d.Stats().Operations-before, tt.writes)
	}
}

func TestPutMendsADamagedBody(t *testing.T) {
	is := is.New(t)
	d := open(t)
	_, err := d.Put(ClassFleet, "a", []byte("hello"), 1)
	is.NoErr(err)
	behind(t, d, `UPDATE content_body SET body = CAST('jello' AS BLOB)`)
	_, err = d.Put(ClassFleet, "b", []byte("hello"), 1)
	is.NoErr(err)
	got, ok := d.Get(ClassFleet, "b", 1)
	is.True(ok && string(got) == "hello")
	is.Equal(d.Size(), int64(5))
}

func TestContentIsVerified(t *testing.T) {
	is := is.New(t)
	d := open(t)
	for _, k := range []string{"a", "b"} {
		_, err := d.Put(ClassFleet, k, []byte("hello"), 1)
		is.NoErr(err)
	}
	_, err := d.Put(ClassFleet, "other", []byte("world"), 1)
	is.NoErr(err)
	behind(t, d, `UPDATE content_body SET body = CAST('jello' AS BLOB) WHERE body = CAST('hello' AS BLOB)`)
	is.True(d.Check() != nil)
	_, ok := d.Get(ClassFleet, "a", 1)
	is.True(!ok)
	_, ok = d.Get(ClassFleet, "b", 1) // the body is gone, and with it all that named it
	is.True(!ok)
	_, ok = d.Get(ClassFleet, "other", 1)
	is.True(ok)
	s := d.Stats()
	is.Equal([]int64{s.Corrupt, s.ContentM, s.ContentH, s.ContentBytes}, []int64{1, 2, 1, 5})
}
