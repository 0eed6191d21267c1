package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"dcache/internal/dcache"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// batch is one submit of a client.
type batch struct {
	ID, Caller, Class, Key string
	Targets                []target
}

func (b *batch) job() dcache.BatchJob {
	return dcache.BatchJob{ID: b.ID, Caller: b.Caller, CallerClass: b.Class, IDemKey: b.Key}
}

func (b *batch) rows() []dcache.BatchTarget {
	rows := make([]dcache.BatchTarget, len(b.Targets))
	for i, t := range b.Targets {
		rows[i] = dcache.BatchTarget{Idx: i, URL: t.URL, Options: t.Options}
	}
	return rows
}

// target is one URL, and what a fetch of it gives.
type target struct {
	URL     string
	Options string
	fetch   func() (outcome, error)
}

// outcome is what becomes of a target. Body, where there is one, goes to the content cache.
type outcome struct {
	Status              string
	Result, Error, Hint *string
	Body                []byte
}

// load makes the same batches for the supervisor and for each life of the service.
func load(c config) ([]batch, error) {
	var batches []batch
	var err error
	if c.In != "" {
		batches, err = loadLines(c.In)
	} else {
		batches, err = loadDir(c.Dir)
	}
	if err == nil && len(batches) == 0 {
		err = fmt.Errorf("nothing to fetch in %s%s", c.Dir, c.In)
	}
	return batches, err
}

// loadDir makes a batch of each folder in dir, and one of the files that lie beside the folders.
func loadDir(dir string) ([]batch, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	byName := map[string][]target{}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name, _, inFolder := strings.Cut(filepath.ToSlash(rel), "/")
		if !inFolder {
			name = "." // the files beside the folders
		}
		u := (&url.URL{Scheme: "file", Path: path}).String()
		byName[name] = append(byName[name], target{URL: u, Options: `{"render":false}`, fetch: func() (outcome, error) { return fetchFile(u, path) }})
		return nil
	})
	if err != nil {
		return nil, err
	}
	var batches []batch
	for name, targets := range byName {
		// A name need not be UTF-8, but an event is.
		batches = append(batches, newBatch(url.PathEscape(name), "", "", targets))
	}
	slices.SortFunc(batches, func(a, b batch) int { return strings.Compare(a.ID, b.ID) })
	return batches, nil
}

func newBatch(name, caller, class string, targets []target) batch {
	if caller == "" {
		caller = "client-" + string(rune('a'+len(name)%4))
	}
	if class == "" {
		class = []string{dcache.ClassFleet, dcache.ClassRestricted}[len(name)%2]
	}
	return batch{ID: "job-" + name, Caller: caller, Class: class, Key: "submit-" + name, Targets: targets}
}

// fetchFile reads a file as a fetcher reads a page.
func fetchFile(u, path string) (outcome, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return outcome{}, err
	}
	kind := mime.TypeByExtension(filepath.Ext(path))
	if kind == "" {
		kind = http.DetectContentType(body)
	}
	return envelope(u, kind, body)
}

// envelope wraps a body as the API returns it: as text, or in base64 where it isn't UTF-8.
func envelope(u, kind string, body []byte) (outcome, error) {
	e := struct {
		URL         string `json:"url"`
		Status      int    `json:"status"`
		ContentType string `json:"content_type"`
		Length      int    `json:"length"`
		Digest      string `json:"digest"`
		Body        string `json:"body,omitempty"`
		Base64      string `json:"body_base64,omitempty"`
	}{URL: u, Status: 200, ContentType: kind, Length: len(body), Digest: digest(body)}
	if utf8.Valid(body) {
		e.Body = string(body)
	} else {
		e.Base64 = base64.StdEncoding.EncodeToString(body)
	}
	b, err := json.Marshal(e)
	result := string(b)
	return outcome{Status: dcache.TargetDone, Result: &result, Body: body}, err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// line is a batch in a file of JSON lines. testdata/README.md explains it.
type line struct {
	Name    string
	Caller  string
	Class   string
	Targets []struct {
		URL     string
		Options json.RawMessage
		Repeat  int
		Body    string
		Fill    int
		Result  *string
		Error   *string
		Hint    *string
	}
}

func loadLines(path string) ([]batch, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var batches []batch
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for n := 1; lines.Scan(); n++ {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		var targets []target
		for _, g := range l.Targets {
			for i := range max(g.Repeat, 1) {
				u := g.URL
				if g.Repeat > 1 {
					u = fmt.Sprintf("%s#%d", g.URL, i)
				}
				options := string(g.Options)
				if options == "" {
					options = "{}"
				}
				targets = append(targets, target{URL: u, Options: options, fetch: func() (outcome, error) {
					switch {
					case g.Error != nil:
						return outcome{Status: dcache.TargetFailed, Result: g.Result, Error: g.Error, Hint: g.Hint}, nil
					case g.Result != nil:
						return outcome{Status: dcache.TargetDone, Result: g.Result, Hint: g.Hint}, nil
					}
					return envelope(u, "text/plain", []byte(strings.Repeat(g.Body, max(g.Fill, 1))))
				}})
			}
		}
		if len(targets) == 0 {
			return nil, fmt.Errorf("%s:%d: a batch without targets", path, n)
		}
		batches = append(batches, newBatch(l.Name, l.Caller, l.Class, targets))
	}
	return batches, lines.Err()
}
