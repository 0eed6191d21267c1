package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// small runs every case in seconds.
var small = sizes{
	jobs: 10, targets: 30, ops: 200, opsAlone: 50, callers: 8, live: 2, put: 100, read: 10, reads: 3, polls: 3,
}

func TestAllCases(t *testing.T) {
	is := is.New(t)
	figures, err := measure(allCases(small), regexp.MustCompile(""), 1, t.TempDir())
	is.NoErr(err)
	is.Equal(len(figures), 18)
	for _, f := range figures {
		is.True(f.Ratio > 0)
		is.True(f.Min <= f.Ratio && f.Ratio <= f.Max)
	}

	dir := filepath.Join(t.TempDir(), "results")
	is.NoErr(Report{Runs: 1, Sizes: small, Figures: figures}.Write(dir))
	text, err := os.ReadFile(filepath.Join(dir, "results.md"))
	is.NoErr(err)
	is.Equal(strings.Count(string(text), "| target finished, 8 callers, job after job |"), 6)
	is.Equal(strings.Count(string(text), "| target finished, 8 callers, 2 jobs at once |"), 6)
	svg, err := os.ReadFile(filepath.Join(dir, "results.svg"))
	is.NoErr(err)
	is.True(strings.Contains(string(svg), "<svg"))
}

func TestFigures(t *testing.T) {
	is := is.New(t)
	samples := func(ns ...float64) (s []Sample) {
		for _, v := range ns {
			s = append(s, Sample{NsPerOp: v, AllocsPerOp: v / 2})
		}
		return s
	}
	c := Case{
		Candidates:  []Candidate{{Name: "ours"}, {Name: "theirs"}},
		Comparisons: []Comparison{{Against: 1, Limit: atLeast(3)}, {Against: 1, Limit: atMost(0.25)}, {Against: 1, Limit: atMost(1), Allocs: true}},
	}
	f := Figures(c, [][]Sample{samples(3000, 1000, 2000), samples(6000, 8000, 4000)})
	is.Equal(f[0].Ratio, 3.0) // 6000 by 2000
	is.Equal(f[0].Min, 2.0)
	is.Equal(f[0].Max, 8.0)
	is.True(f[0].Limit.Met(f[0].Ratio))
	is.True(!f[1].Limit.Met(f[1].Ratio)) // 2000 by 6000
	is.Equal(f[2].Ours, 1000.0)
	is.Equal(f[2].Unit, unitAllocs)
}

// TestOrderTurns expects that each candidate comes first once.
func TestOrderTurns(t *testing.T) {
	is := is.New(t)
	var order strings.Builder
	var c Case
	for _, name := range []string{"a", "b", "c"} {
		c.Candidates = append(c.Candidates, Candidate{Name: name, Run: func(dir string) (Sample, error) {
			order.WriteString(name)
			entries, err := os.ReadDir(dir)
			is.Equal(len(entries), 0)
			return Sample{}, err
		}})
	}
	dir := t.TempDir()
	_, err := RunCase(c, 3, dir, func(string, Sample) {})
	is.NoErr(err)
	is.Equal(order.String(), "abcbcacab")
	left, err := os.ReadDir(dir)
	is.NoErr(err)
	is.Equal(len(left), 0)
}

func TestFlags(t *testing.T) {
	is := is.New(t)
	for _, args := range [][]string{{"-runs", "4"}, {"-ops", "0"}, {"-jobs", "1", "-targets", "1"}, {"-only", "("}, {"-dir", "nowhere"}} {
		is.True(run(args) != nil)
	}
}
