package main

import (
	"dcache/internal/dcache"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// place names a target.
type place struct {
	Job string
	Idx int
}

// ledger is what the supervisor knows: from the files, what is to come; from the service, what it said was stored.
type ledger struct {
	expected map[place]found
	content  int64          // bytes of the distinct bodies
	targets  map[string]int // by job
	acked    map[place]found
	before   map[place]found // of acked, what the first life acknowledged
	again    int             // acknowledgements of what was acknowledged already
	peakWAL  int64
	created  [2]map[string]bool // by life

	survived map[place]found // what the second life found, before it added anything
	stored   map[place]found // what is there at the end
	resumed  event
	end      *end

	took  map[string][]time.Duration
	stats [2]dcache.Stats  // of each life: the last that it told
	spent [2]time.Duration // of each life: at work
	began time.Time
	life  int
}

// newLedger fetches every target itself, to know from outside what has to come.
func newLedger(batches []batch) (*ledger, error) {
	l := &ledger{
		expected: map[place]found{}, targets: map[string]int{}, acked: map[place]found{}, created: [2]map[string]bool{{}, {}},
		survived: map[place]found{}, stored: map[place]found{}, took: map[string][]time.Duration{},
	}
	bodies := map[string]bool{}
	for _, b := range batches {
		l.targets[b.ID] = len(b.Targets)
		for i, t := range b.Targets {
			o, err := t.fetch()
			if err != nil {
				return nil, err
			}
			l.expected[place{b.ID, i}] = describe(o.Status, o.Result)
			if d := digest(o.Body); o.Body != nil && !bodies[d] {
				bodies[d] = true
				l.content += int64(len(o.Body))
			}
		}
	}
	return l, nil
}

// supervise runs the two lives of the service, the first of which it kills half way.
func supervise(c config, batches []batch) (*report, error) {
	l, err := newLedger(batches)
	if err != nil {
		return nil, err
	}
	bar := newBar(len(l.expected))
	err = l.live(c, max(len(l.expected)/2, 1), bar.show)
	if err != nil {
		return nil, err
	}
	l.life++
	l.before = maps.Clone(l.acked)
	killedAt := len(l.before)
	bar.say(fmt.Sprintf("killed the service after %d acknowledged results; starting it again", killedAt))
	c.Resume = true
	if err := l.live(c, 0, bar.show); err != nil {
		return nil, err
	}
	bar.end()
	return newReport(l, batches, killedAt), nil
}

// live runs one life of the service, calls progress after each acknowledged result, and kills the service after so many of
// them, 0 being never.
func (l *ledger) live(c config, kill int, progress func(acked int)) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serviceEnv+"="+string(b))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // its end tells the service that its supervisor has gone
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.began = time.Now()
	killed := false
	events := json.NewDecoder(out)
	for {
		var e event
		if err := events.Decode(&e); err != nil {
			if !errors.Is(err, io.EOF) && !killed { // a kill may cut the last line short
				return errors.Join(fmt.Errorf("read the service's events: %w", err), cmd.Process.Kill(), cmd.Wait())
			}
			break
		}
		before := len(l.acked)
		l.note(e)
		if len(l.acked) == before {
			continue
		}
		progress(len(l.acked))
		if len(l.acked) == kill {
			if err := cmd.Process.Kill(); err != nil {
				return err
			}
			killed = true
		}
	}
	if l.spent[l.life] == 0 {
		l.spent[l.life] = time.Since(l.began)
	}
	err = errors.Join(ignoreClosed(stdin.Close()), cmd.Wait())
	if killed {
		return nil
	}
	if err == nil && !c.Resume {
		err = errors.New("it ended before it was killed")
	}
	if err != nil {
		return fmt.Errorf("the service: %w", err)
	}
	return nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// note enters an event in the ledger.
func (l *ledger) note(e event) {
	if e.Took > 0 {
		l.took[e.Call] = append(l.took[e.Call], e.Took)
	}
	if e.Stats != nil {
		l.stats[l.life] = *e.Stats
		l.peakWAL = max(l.peakWAL, e.Stats.WALBytes)
	}
	if e.End != nil {
		l.end = e.End
	}
	at := place{e.Job, e.Idx}
	switch {
	case e.Call == "created":
		l.created[l.life][e.Job] = true
	case e.Call == "FinishBatchTarget":
		if _, ok := l.acked[at]; ok {
			l.again++
		}
		l.acked[at] = *e.Found
	case e.Found != nil && l.resumed.State == "":
		l.survived[at] = *e.Found
	case e.Found != nil:
		l.stored[at] = *e.Found
	case e.State == "resumed":
		l.resumed = e
	case e.State == "worked":
		l.spent[l.life] = time.Since(l.began)
	}
}

// quantile returns the q-th part of the sorted durations.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (l *ledger) latencies(call string) latency {
	took := slices.Sorted(slices.Values(l.took[call]))
	return latency{Call: call, Count: len(took), P50: quantile(took, 0.5), P99: quantile(took, 0.99)}
}

// bar shows the progress: moving on a terminal, elsewhere as a line for each tenth.
type bar struct {
	moving *progressbar.ProgressBar
	total  int
	tenths int
}

func newBar(total int) *bar {
	b := &bar{total: total}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		b.moving = progressbar.NewOptions(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription("fetching"),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("targets"),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetPredictTime(true))
	}
	return b
}

func (b *bar) show(n int) {
	if b.moving != nil {
		_ = b.moving.Set(n) // a bar that can't be drawn is no reason to stop
	} else if t := n * 10 / b.total; t > b.tenths {
		b.tenths = t
		fmt.Fprintf(os.Stderr, "fetched %d of %d\n", n, b.total)
	}
}

func (b *bar) say(s string) {
	if b.moving != nil {
		_ = b.moving.Clear()
	}
	fmt.Fprintln(os.Stderr, s)
}

func (b *bar) end() {
	if b.moving != nil {
		_ = b.moving.Finish()
		fmt.Fprintln(os.Stderr)
	}
}
