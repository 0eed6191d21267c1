// Command peerbench lets the store and its peers do the same work in alternation, and sets their times against each other.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime/pprof"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "peerbench:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	var n sizes
	f := flag.NewFlagSet("peerbench", flag.ContinueOnError)
	runs := f.Int("runs", 5, "runs of each candidate; odd, so that one is the median")
	f.IntVar(&n.ops, "ops", 10_000, "operations to a run, many callers")
	f.IntVar(&n.opsAlone, "ops1", 3000, "operations to a run, one caller")
	f.IntVar(&n.callers, "callers", 64, "concurrent callers")
	f.IntVar(&n.jobs, "jobs", 1000, "jobs in the file")
	f.IntVar(&n.targets, "targets", 100, "targets of each job")
	f.IntVar(&n.live, "live", 64, "jobs in progress at once, in the second case of many callers; as many as -jobs spread the operations all over the file")
	f.IntVar(&n.put, "put", 10_000, "targets of the batch that is put at once")
	f.IntVar(&n.read, "read", 1000, "targets of the job that is read")
	f.IntVar(&n.reads, "reads", 30, "reads to a run")
	f.IntVar(&n.polls, "polls", 10_000, "polls to a run")
	only := f.String("only", "", "run the cases whose name matches this regular expression, and write no results")
	dir := f.String("dir", ".", "folder on a real disk where the files go; they are removed at the end")
	out := f.String("out", "results", "folder for results.md and results.svg")
	profile := f.String("cpuprofile", "", "write a CPU profile, in which the label candidate tells the candidates apart")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := n.check(*runs); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	work, err := workDir(*dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if *profile != "" {
		p, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		if err := pprof.StartCPUProfile(p); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	figures, err := measure(allCases(n), chosen, *runs, work)
	if err != nil {
		return err
	}
	report := Report{Runs: *runs, Sizes: n, Figures: figures}
	fmt.Println(report.Text())
	if *only != "" {
		return nil
	}
	return report.Write(*out)
}

func measure(cases []Case, chosen *regexp.Regexp, runs int, dir string) ([]Figure, error) {
	var figures []Figure
	for _, c := range cases {
		if !chosen.MatchString(c.Name) {
			continue
		}
		samples, err := RunCase(c, runs, dir, func(candidate string, s Sample) {
			fmt.Fprintf(os.Stderr, "%s: %s: %.2f µs\n", c.Name, candidate, s.NsPerOp/1e3)
		})
		if err != nil {
			return nil, err
		}
		figures = append(figures, Figures(c, samples)...)
	}
	return figures, nil
}

func (n sizes) check(runs int) error {
	switch {
	case runs < 1 || runs%2 == 0:
		return fmt.Errorf("-runs %d is not odd", runs)
	case min(n.ops, n.opsAlone, n.callers, n.jobs, n.targets, n.live, n.put, n.read, n.reads, n.polls) < 1:
		return errors.New("a size is below 1")
	case max(n.ops, n.opsAlone) > n.jobs*n.targets:
		return fmt.Errorf("%d operations on %d targets", max(n.ops, n.opsAlone), n.jobs*n.targets)
	}
	return nil
}
