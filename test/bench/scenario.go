package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// A scenario is a chain of plugins and the calls that each side repeats and measures.
type scenario struct {
	name  string
	roles []role // nil for plumb and the reference
	verbs []verb
	// chain returns the configurations for the i-th container of a side.
	chain func(s *side, i int) []conf
	// Each side calls prepare once, and before at the start of each iteration. Neither is timed.
	prepare, before func(*side)
	base            func(*side) json.RawMessage // prevResult for the first plugin of the chain
	ifn             string                      // CNI_IFNAME; "" for eth0
	connect         bool                        // measure connections instead of calls; the names of the verbs are paths
	burst           int                         // if not 0, the number of parallel plugin calls while many containers are added
	breakdown       bool                        // also measure the parts of each ADD
	long            bool                        // skipped with --quick and --report unless --only names it
}

// A verb is a call that a scenario measures, with its goal. The tables show the goals. A missed goal is not an error.
type verb struct {
	name    string // the name in the table
	command string // CNI_COMMAND; "" for name
	unknown bool   // call it for a container that was never added
	fails   bool   // the call must fail
	aim     aim
}

// An aim contains the goals of a verb. A value of 0 means that there is no goal.
type aim struct {
	Median float64 `json:"median,omitempty"` // limit of plumb's median divided by the reference's
	P99    float64 `json:"p99,omitempty"`    // limit of plumb's p99 divided by the reference's
	Own    float64 `json:"own,omitempty"`    // limit of plumb's median divided by its median on an empty host
	Above  float64 `json:"above,omitempty"`  // limit of plumb's median minus the median of VERSION, in milliseconds
}

// both contains the roles of a scenario that does not list its own.
var both = []role{{name: plumb}, {name: reference, reference: true}}

const (
	plumb     = "plumb"
	reference = "reference"
	empty     = "plumb, empty" // the baseline for hosts with objects of other containers
)

// A bench runs scenarios.
type bench struct {
	bins
	iterations int
	limit      time.Duration // time after which a scenario starts no iteration; 0 means no limit
	containers int           // the number of containers in a burst
	memory     map[string]map[string]*memory
}

// memory is the peak memory of an executable, and the scenario and verb in which it occurred.
type memory struct {
	KiB   int    `json:"kib"`
	Where string `json:"where"`
}

// An outcome contains the results of a scenario.
type outcome struct {
	Scenario string        `json:"scenario"`
	Verbs    []verbOutcome `json:"verbs"`
	// Breakdown contains an entry for each plugin of the chain.
	Breakdown []breakdown         `json:"breakdown,omitempty"`
	Others    float64             `json:"othersCPU"` // the share of all processors that other processes used
	Error     string              `json:"error,omitempty"`
	Skipped   string              `json:"skipped,omitempty"` // what the kernel lacks
	samples   map[string][]sample // the samples by verb and side
	reasons   map[string]string
}

type verbOutcome struct {
	Verb  string             `json:"verb"`
	Aim   aim                `json:"budget"`
	Sides map[string]summary `json:"sides"`
	Ratio map[string]float64 `json:"ratios,omitempty"` // the ratios of medians, by the names of the sides
}

func (b *bench) run(sc scenario) *outcome {
	o := &outcome{Scenario: sc.name, samples: map[string][]sample{}, reasons: map[string]string{}}
	if sc.roles == nil {
		sc.roles = both
	}
	usage := startUsage()
	err := withBed(func(bed *bed) error {
		r := runner{bench: b, scenario: sc, outcome: o}
		for _, role := range sc.roles {
			s := newSide(bed, role, b.bins)
			if sc.prepare != nil {
				sc.prepare(s)
			}
			r.sides = append(r.sides, s)
		}
		switch {
		case sc.burst > 0:
			return r.bursts()
		case sc.connect:
			return r.connections()
		}
		if err := r.turns(); err != nil || !sc.breakdown {
			return err
		}
		return r.breakDown()
	})
	switch {
	case errors.Is(err, errSkipped):
		o.Skipped = err.Error()
	case err != nil:
		o.Error = err.Error()
	}
	o.Others = usage.since()
	o.Verbs = o.summarize(sc)
	return o
}

// A runner runs a scenario on its sides.
type runner struct {
	*bench
	scenario
	*outcome
	sides []*side
}

// turns runs the iterations, and then one more that measures peak memory.
func (r *runner) turns() error {
	begin := time.Now()
	for i := range r.iterations + warmups {
		if r.limit > 0 && i > warmups+1 && time.Since(begin) > r.limit {
			break
		}
		timed := func(_ string, s *side, c call) (sample, []byte, error) { return execute(s, c) }
		if err := r.iteration(i, i >= warmups, timed); err != nil {
			return err
		}
	}
	return r.iteration(r.iterations+warmups, false, func(verb string, s *side, c call) (sample, []byte, error) {
		kib, out, err := peak(s, c)
		r.remember(s, c, kib, verb)
		return sample{}, out, err
	})
}

// iteration calls each verb of the scenario once on each side.
func (r *runner) iteration(i int, keep bool, by func(string, *side, call) (sample, []byte, error)) error {
	at := map[*side]*attachment{}
	for _, s := range r.sides {
		if r.before != nil {
			r.before(s)
		}
		at[s] = r.attach(s, 0, fmt.Sprintf("container-%d", i))
	}
	runtime.GC() // before the timed calls, so that no garbage collection runs during them
	for _, v := range r.verbs {
		for _, k := range order(len(r.sides), i) {
			s := r.sides[k]
			key := v.name + "/" + s.name
			if r.reasons[key] != "" {
				continue
			}
			a := *at[s]
			if v.unknown {
				a.id, a.prev = "unknown", nil
			}
			took, err := a.do(v.calls(), func(s *side, c call) (sample, []byte, error) { return by(v.name, s, c) })
			at[s].prev = a.prev
			switch {
			case v.fails && err == nil:
				return fmt.Errorf("%s: %s: want an error, got success", s.name, v.name)
			case !v.fails && err != nil && s.reference:
				r.reasons[key] = err.Error()
			case !v.fails && err != nil:
				return fmt.Errorf("%s: %w", s.name, err)
			case keep:
				r.samples[key] = append(r.samples[key], took)
			}
		}
	}
	return nil
}

func (v verb) calls() string {
	if v.command != "" {
		return v.command
	}
	return v.name
}

func (r *runner) attach(s *side, i int, id string) *attachment {
	a := &attachment{side: s, chain: r.chain(s, i), id: id, container: s.containers[i].Path(), ifn: ifName}
	if r.ifn != "" {
		a.ifn = r.ifn
	}
	if r.base != nil {
		a.base = r.base(s)
	}
	return a
}

func (r *runner) remember(s *side, c call, kib int, verb string) {
	set := plumb
	if s.reference {
		set = reference
	}
	if r.memory[set] == nil {
		r.memory[set] = map[string]*memory{}
	}
	if m := r.memory[set][c.plugin]; m == nil || kib > m.KiB {
		r.memory[set][c.plugin] = &memory{kib, r.name + " " + verb}
	}
}

func (o *outcome) summarize(sc scenario) []verbOutcome {
	var all []verbOutcome
	for _, v := range sc.verbs {
		vo := verbOutcome{Verb: v.name, Aim: v.aim, Sides: map[string]summary{}, Ratio: map[string]float64{}}
		for _, role := range sc.roles {
			s := summarize(o.samples[v.name+"/"+role.name])
			s.Reason = o.reasons[v.name+"/"+role.name]
			vo.Sides[role.name] = s
		}
		for _, p := range pairs(vo.Sides) {
			if a, b := vo.Sides[p[0]], vo.Sides[p[1]]; a.N > 0 && b.N > 0 {
				vo.Ratio[p[0]+" / "+p[1]] = a.Median / b.Median
			}
		}
		all = append(all, vo)
	}
	return all
}

// pairs returns the pairs of sides to compare. It pairs plumb with the reference and, if these sides exist, with itself
// on an empty host. It pairs plumb's iptables backend with the reference, and plumb with the reference's nftables backend.
// The reference plugins do not include
// cluster-local, which is therefore paired with plumb's host-local.
func pairs(sides map[string]summary) [][2]string {
	all := [][2]string{{plumb, reference}}
	if _, ok := sides[empty]; ok {
		all = append(all, [2]string{plumb, empty})
	}
	if _, ok := sides[withHostLocal]; ok {
		return [][2]string{{plumb, withHostLocal}}
	}
	if _, ok := sides[withNFTables]; ok {
		all = append(all, [2]string{plumb, withNFTables})
	}
	if _, ok := sides[withIPTables]; ok {
		all = append(all, [2]string{withIPTables, reference})
	}
	return all
}
