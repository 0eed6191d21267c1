package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Report is what a run of the program found.
type Report struct {
	Runs    int
	Sizes   sizes
	Figures []Figure
}

func (f Figure) verdict() string {
	if f.Limit.Met(f.Ratio) {
		return "met"
	}
	return "missed"
}

// what says which way a ratio goes.
func (f Figure) what() string {
	switch {
	case f.Limit.AtLeast:
		return "throughput"
	case f.Unit == unitAllocs:
		return "allocations"
	}
	return "time"
}

func (r Report) table() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"work", "against", "store", "peer", "unit", "ratio of", "ratio", "rounds", "target", ""})
	for _, f := range r.Figures {
		t.AppendRow(table.Row{
			f.Case, f.Against, number(f.Ours), number(f.Theirs), f.Unit, f.what(), fmt.Sprintf("%.2f", f.Ratio),
			fmt.Sprintf("%.2f to %.2f", f.Min, f.Max), f.Limit, f.verdict(),
		})
	}
	return t
}

func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Text is the table for a terminal.
func (r Report) Text() string { return r.table().Render() + "\n" + r.machine() + "\n" }

func (r Report) machine() string {
	version, _, _ := floorLibrary()
	return fmt.Sprintf("%d cores, %s/%s, %s, SQLite %s; %d jobs of %d targets; %d operations a run (%d for one caller), %d runs.",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), version,
		r.Sizes.jobs, r.Sizes.targets, r.Sizes.ops, r.Sizes.opsAlone, r.Runs)
}

// Write writes results.md and results.svg into a folder.
func (r Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := "# The store and its peers\n\n" + r.machine() + "\n\n" +
		"The times are medians, each ratio that of two medians, from runs that alternate the candidates in one process; \"rounds\" is the\n" +
		"least and the greatest ratio within a round. A ratio of throughput is the peer's time by the store's, of time or\n" +
		"allocations the store's by the peer's.\n\n" +
		r.table().RenderMarkdown() + "\n\n![Each ratio against its target](results.svg)\n"
	if err := os.WriteFile(filepath.Join(dir, "results.md"), []byte(text), 0o644); err != nil {
		return err
	}
	return r.chart(filepath.Join(dir, "results.svg"))
}

// score is how a ratio stands to its target, so that one line serves all: from 1 on it is met, whichever way it goes.
func (f Figure) score() float64 {
	if f.Limit.AtLeast {
		return f.Ratio / f.Limit.Value
	}
	return f.Limit.Value / f.Ratio
}

// maxScore is where a bar is cut: a peer far behind must not make the others unreadable. Its label has the figure.
const maxScore = 3.0

// chart draws a bar for each figure.
func (r Report) chart(path string) error {
	p := plot.New()
	p.Title.Text = "The store against its peers: ratio by target, met from 1 on"
	p.Title.Padding = vg.Points(8)
	p.X.Min, p.X.Max = 0, maxScore
	figures := slices.Clone(r.Figures)
	slices.Reverse(figures) // the first on top
	met, missed := make(plotter.Values, len(figures)), make(plotter.Values, len(figures))
	labels := make([]string, len(figures))
	for i, f := range figures {
		bar := met
		if !f.Limit.Met(f.Ratio) {
			bar = missed
		}
		bar[i] = min(f.score(), maxScore)
		labels[i] = fmt.Sprintf("%s | %s | %s %.2f (%s)", f.Case, f.Against, f.what(), f.Ratio, f.Limit)
	}
	for _, series := range []struct {
		values plotter.Values
		color  color.Color
	}{
		{met, color.RGBA{R: 70, G: 130, B: 90, A: 255}},
		{missed, color.RGBA{R: 190, G: 80, B: 60, A: 255}},
	} {
		bars, err := plotter.NewBarChart(series.values, vg.Points(14))
		if err != nil {
			return err
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, series.color, 0
		p.Add(bars)
	}
	line, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -0.5}, {X: 1, Y: float64(len(figures)) - 0.5}})
	if err != nil {
		return err
	}
	p.Add(line)
	p.NominalY(labels...)
	return p.Save(11*vg.Inch, vg.Length(len(figures)+3)*0.32*vg.Inch, path)
}
