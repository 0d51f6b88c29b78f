// Command bench measures plumb's plugins and the reference plugins alternately, in its own namespaces. scripts/bench.sh
// builds and starts it.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

const warmups = 3

// options contains the values of the command-line flags.
type options struct {
	bins
	only, json, sizes   string
	quick, report, list bool
	neverSlower         bool
	pages               bool
	iterations          int
	command             string
}

func main() {
	if err := run(os.Stdout, os.Stderr, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(stderr io.Writer, args []string) (o options, err error) {
	f := flag.NewFlagSet("bench.sh", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.plumb, "plumb", "", "`directory` of plumb's executables")
	f.StringVar(&o.reference, "peer", "", "`directory` of the executables to compare with")
	f.StringVar(&o.only, "only", "", "`names` of scenarios or groups of scenarios (bridge, host-local/1000), separated by commas")
	f.BoolVar(&o.list, "list", false, "print the scenarios' names, and do nothing")
	f.BoolVar(&o.quick, "quick", false, "run few iterations, and skip long scenarios that --only does not name")
	f.StringVar(&o.json, "json", "", "`file` for the figures")
	f.BoolVar(&o.report, "report", false, "measure the scenarios that the pages show, unless --only is set")
	f.BoolVar(&o.neverSlower, "never-slower", false, "measure a scenario of each plugin, and fail if a call is slower than the reference plugin's")
	f.BoolVar(&o.pages, "pages", false, "write the tables and plots of the pages from the newest file in docs/benchmarks, and measure nothing")
	f.StringVar(&o.sizes, "sizes", "", "compare the sizes in docs/explanation/performance.md with the executables in `directory`, and measure nothing")
	f.IntVar(&o.iterations, "n", 0, "number of `iterations` (default 100; with --quick 10, with --report 20)")
	f.StringVar(&o.command, "as", strings.Join(os.Args, " "), "`command` to name in the report")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q; see --help", f.Arg(0))
	}
	switch {
	case o.only != "":
	case o.report:
		o.only = reported
	case o.neverSlower:
		o.only = neverSlower
	}
	switch {
	case o.iterations < 0:
		return o, errors.New("-n must be 1 or more")
	case o.iterations > 0:
	case o.quick:
		o.iterations = 10
	case o.report:
		o.iterations = 20
	default:
		o.iterations = 100
	}
	return o, nil
}

func (o options) chosen() (all []scenario, err error) {
	names := strings.FieldsFunc(o.only, func(r rune) bool { return r == ',' })
	used := map[string]bool{}
	for _, sc := range scenarios() {
		named := len(names) == 0
		for _, n := range names {
			if sc.name == n || strings.HasPrefix(sc.name, n+"/") {
				named, used[n] = true, true
			}
		}
		if named && (!o.quick && !o.report || !sc.long || slices.Contains(names, sc.name)) {
			all = append(all, sc)
		}
	}
	for _, n := range names {
		if !used[n] {
			return nil, fmt.Errorf("unknown scenario %q; --list prints the scenarios", n)
		}
	}
	return all, nil
}

func run(stdout, stderr io.Writer, args []string) error {
	o, err := parse(stderr, args)
	if err != nil {
		return err
	}
	switch {
	case o.pages:
		return writePages(".")
	case o.sizes != "":
		return checkSizes(".", o.sizes)
	}
	list, err := o.chosen()
	if err != nil {
		return err
	}
	if o.list {
		for _, sc := range list {
			fmt.Fprintln(stdout, sc.name)
		}
		return nil
	}
	return o.measure(stdout, list)
}

// measure measures the scenarios, prints the report, and writes it to a file if --json is set.
func (o options) measure(stdout io.Writer, list []scenario) error {
	names, err := executables(o.plumb)
	if err != nil {
		return err
	}
	if _, err := os.Stat(o.reference); err != nil {
		return err
	}
	containers := 200
	if o.quick {
		containers = 20
	}
	r := &report{
		Date: time.Now().UTC().Format("2006-01-02 15:04 MST"), Command: o.command,
		Iterations: o.iterations, Containers: containers, Quick: o.quick,
		Machine: thisMachine(o.bins), Memory: map[string]map[string]*memory{},
		Sizes: map[string]map[string]int64{plumb: sizes(o.plumb, names), reference: sizes(o.reference, names)},
	}
	fmt.Fprint(stdout, "# plumb and the reference plugins, side by side\n\n")
	r.conditions(stdout)
	root, err := os.MkdirTemp("", "plumb-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(root) }()
	if o.bins, err = o.installed(root); err != nil {
		return err
	}
	failed := r.measure(stdout, o, list)
	r.executables(stdout)
	if o.json != "" {
		err = r.write(o.json)
	}
	if o.neverSlower {
		failed = errors.Join(failed, r.slower(stdout))
	}
	return errors.Join(err, failed)
}

// measure runs the scenarios, and prints the results of each. After an interrupt, it finishes the current scenario and
// returns an error. It keeps the results of all finished scenarios.
func (r *report) measure(stdout io.Writer, o options, list []scenario) error {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	defer signal.Stop(interrupted)
	b := &bench{bins: o.bins, iterations: o.iterations, containers: r.Containers, memory: r.Memory}
	if o.quick {
		b.limit = 2 * time.Second
	}
	var errs []error
	family := ""
	for _, sc := range list {
		select {
		case <-interrupted:
			return errors.Join(append(errs, errors.New("interrupted"))...)
		default:
		}
		if f, _, _ := strings.Cut(sc.name, "/"); f != family {
			family = f
			fmt.Fprintf(stdout, "\n## %s\n%s", cmp.Or(titles[f], f), columns)
		}
		done := b.run(sc)
		r.Scenarios = append(r.Scenarios, done)
		done.rows(stdout)
		if done.Error != "" {
			errs = append(errs, fmt.Errorf("%s: %s", sc.name, done.Error))
		}
	}
	return errors.Join(errs...)
}

// titles contains headings for families of scenarios with unclear names.
var titles = map[string]string{
	"start":         "start of a process",
	"host-local":    "host-local alone, by reservations of other containers",
	"cluster-local": "cluster-local alone, without a call of the datastore, and plumb's host-local",
	"portmap":       "portmap, by its mappings and the mappings of other containers",
	"connect":       "new connections (connect(2)), by the host ports of other containers",
	"firewall":      "firewall, by iptables, and with a policy",
	"chain":         "the whole chain: bridge with masquerade, portmap, bandwidth, tuning",
	"burst":         "many containers, a few at a time, with the time of all and the CPU time of each",
}
