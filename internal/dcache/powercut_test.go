package dcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

// ioRecord is what a child asked of its files, or (kind 'A') what it acknowledged, in order. See testdata/powercut.c.
type ioRecord struct {
	kind    byte // W write, T truncate, S sync, U unlink, A acknowledgement
	name    string
	at      int64
	payload []byte
}

func parseIO(t *testing.T, b []byte) (records []ioRecord) {
	t.Helper()
	for len(b) > 0 {
		n := int(b[1])
		name, rest := string(b[2:2+n]), b[2+n:]
		size := binary.LittleEndian.Uint32(rest[8:])
		records = append(records, ioRecord{b[0], name, int64(binary.LittleEndian.Uint64(rest)), rest[12 : 12+size]})
		b = rest[12+size:]
	}
	return records
}

// disk is the files as a power cut finds them: what was synced, and what was asked for since.
type disk struct {
	synced  map[string][]byte
	pending map[string][]ioRecord
}

func (d *disk) apply(r ioRecord) {
	switch r.kind {
	case 'W', 'T':
		d.pending[r.name] = append(d.pending[r.name], r)
	case 'S':
		for _, p := range d.pending[r.name] {
			d.synced[r.name] = p.on(d.synced[r.name])
		}
		delete(d.pending, r.name)
	case 'U':
		delete(d.pending, r.name)
		delete(d.synced, r.name)
	}
}

// on makes a write or a truncation on the bytes of a file.
func (r ioRecord) on(file []byte) []byte {
	end := r.at + int64(len(r.payload))
	if int64(len(file)) < end {
		file = append(file, make([]byte, end-int64(len(file)))...)
	}
	if r.kind == 'T' {
		return file[:r.at]
	}
	copy(file[r.at:], r.payload)
	return file
}

const sector = 512

// cut is what is left after the power has gone: of what was not synced, each write is there, or not, or in part.
func (d *disk) cut(r *rand.Rand, dir string) error {
	files := maps.Clone(d.synced)
	lose := r.IntN(4) // now and then nothing is lost, or everything
	for _, name := range slices.Sorted(maps.Keys(d.pending)) {
		file := slices.Clone(files[name])
		for _, p := range d.pending[name] {
			switch {
			case lose == 0:
			case lose == 1, r.IntN(3) == 0:
				continue
			case r.IntN(4) == 0 && len(p.payload) > sector:
				p.payload = p.payload[:sector*(1+r.IntN(len(p.payload)/sector))]
			}
			file = p.on(file)
		}
		files[name] = file
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// TestPowerCut logs a child's writes and syncs, cuts the log at random places, and opens what a power cut would have left there.
func TestPowerCut(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the log is taken by LD_PRELOAD")
	}
	r := torture(t)
	shim := filepath.Join(t.TempDir(), "powercut.so")
	cc, err := exec.Command("go", "env", "CC").Output()
	must(t, err)
	out, err := exec.Command(strings.TrimSpace(string(cc)), "-shared", "-fPIC", "-O1", "-o", shim, filepath.Join("testdata", "powercut.c"), "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	record := func(t *testing.T, s Synchronous) []ioRecord {
		t.Helper()
		dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
		cmd := child(t, "cut", filepath.Join(dir, "x.db"), log, strconv.Itoa(int(s)))
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+shim, "POWERCUT_LOG="+log, "POWERCUT_FOLDER="+dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		b, err := os.ReadFile(log)
		must(t, err)
		return parseIO(t, b)
	}
	const creation = 60
	cuts := 15 * *tortureRounds
	// run cuts at random places, and returns how many acknowledged calls were lost, and how many files did not open or failed their audit.
	run := func(t *testing.T, records []ioRecord) (lost, broken int) {
		t.Helper()
		for n := range cuts + creation {
			at := r.IntN(len(records)) + 1
			if n < creation { // every moment of the file's making
				at = n + 1
			}
			d := &disk{map[string][]byte{}, map[string][]ioRecord{}}
			acked := newTold()
			for _, rec := range records[:at] {
				if rec.kind == 'A' {
					mark, call, _ := strings.Cut(string(rec.payload), " ")
					if acked.announced[call] = true; mark == "<" {
						acked.acked[call] = true
					}
				}
				d.apply(rec)
			}
			dir := t.TempDir()
			must(t, d.cut(r, dir))
			n, err := acked.missing(filepath.Join(dir, "x.db"))
			lost += n
			if err != nil {
				t.Logf("cut at %d of %d: %v", at, len(records), err)
				broken++
			}
		}
		return lost, broken
	}
	t.Run("FULL: all that was acknowledged is there", func(t *testing.T) {
		is := is.New(t)
		records := record(t, SyncFull)
		lost, broken := run(t, records)
		is.Equal([]int{lost, broken}, []int{0, 0})

		// The same log without its syncs, as synchronous=OFF would have made it: the test must see that much is lost.
		records = slices.DeleteFunc(records, func(r ioRecord) bool { return r.kind == 'S' })
		lost, broken = run(t, records)
		t.Logf("without syncs: %d acknowledged calls lost, %d of %d files broken", lost, broken, cuts)
		is.True(lost > 0)
	})
	t.Run("NORMAL: whole, but the last calls may be gone", func(t *testing.T) {
		is := is.New(t)
		lost, broken := run(t, record(t, SyncNormal))
		t.Logf("%d acknowledged calls lost in %d cuts", lost, cuts)
		is.Equal(broken, 0)
		is.True(lost > 0)
	})
}

// missing opens what a cut has left, audits it, and counts the acknowledged calls that it lacks.
func (c *told) missing(path string) (lost int, err error) {
	if _, err := os.Stat(path); err != nil {
		return len(c.acked), nil // cut before the file was made
	}
	d, err := Open(path, 0, quiet())
	if err != nil {
		return len(c.acked), err
	}
	defer func() { err = errors.Join(err, d.Check(), d.Close()) }()
	for call := range c.acked {
		words := strings.Fields(call)
		targets, ok := d.BatchTargets(words[1])
		switch words[0] {
		case "submit":
			ok = ok && len(targets) == crashTargets
		case "finish":
			idx, e := strconv.Atoi(words[2])
			if e != nil {
				return lost, e
			}
			ok = idx < len(targets) && targets[idx].Status == TargetDone && *targets[idx].Result == *crashResult(words[1], idx)
		case "cancel":
			j, _ := d.PeekBatchJob(words[1])
			ok = j.Status == JobCancelled
		}
		if !ok {
			lost++
		}
	}
	return lost, nil
}

// childCut writes with a few goroutines, and adds its acknowledgements to the log of its writes.
func childCut(args []string) error {
	sync, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	out, err := os.OpenFile(args[1], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	log := &ackLog{out: recordWriter{out}}
	d, err := Open(args[0], 0, WithSynchronous(Synchronous(sync)))
	if err != nil {
		return err
	}
	errs := make([]error, 8)
	together(8, func(w int) {
		for n := range 12 {
			if errs[w] = cutJob(d, log, fmt.Sprintf("w%d-%d", w, n), n); errs[w] != nil {
				return
			}
		}
	})
	// No Close: the last of the log is of a store at work.
	return errors.Join(errs...)
}

func cutJob(d *DB, log *ackLog, id string, n int) error {
	if err := log.do("submit "+id, func() error {
		_, _, err := d.SubmitBatch(BatchJob{ID: id, IDemKey: id}, pending(crashTargets), 1000, time.Hour)
		return err
	}); err != nil {
		return err
	}
	for idx := range crashTargets - 1 {
		if err := log.do(fmt.Sprintf("finish %s %d", id, idx), func() error {
			_, err := d.FinishBatchTarget(id, idx, 1000, TargetDone, crashResult(id, idx), nil, nil)
			return err
		}); err != nil {
			return err
		}
	}
	if n%2 == 0 {
		return log.do("cancel "+id, func() error { return d.CancelBatchJob(id, "why", 1000) })
	}
	return nil
}

// recordWriter writes each line as a record of the log.
type recordWriter struct{ log *os.File }

func (w recordWriter) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	b := append([]byte{'A', 0}, make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	if _, err := w.log.Write(append(b, text...)); err != nil {
		return 0, err
	}
	return len(line), nil
}
