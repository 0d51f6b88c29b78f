package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A breakdown lists the parts of a plugin's ADD, as medians in milliseconds.
type breakdown struct {
	Plugin string             `json:"plugin"`
	Parts  map[string]float64 `json:"parts"`
}

// These are the parts of an ADD. The last three are kinds of steps that a plugin logs.
const (
	whole     = "whole call"
	start     = "start"
	rtnetlink = "rtnetlink"
	nfTables  = "nf_tables"
	sysctls   = "sysctls"
)

// stepKinds maps the first words of a step's name to its kind. The kind of other steps is rtnetlink. Steps of the kind
// "" are not measured.
var stepKinds = map[string]string{
	"nft": nfTables, "open nftables": nfTables, "read sysctl": sysctls, "write sysctls": sysctls, "ensure sysctls": sysctls,
	"read": "", "run": "",
}

// stepsOf returns the duration of the steps in the log of a plugin's ADD, by kind. It ignores the steps of an IPAM plugin in the
// same log.
func stepsOf(plugin, log string) map[string]time.Duration {
	total := map[string]time.Duration{}
	for line := range strings.Lines(log) {
		words := strings.Fields(line) // plugin, command, offset, duration, name of the step
		if len(words) < 5 || words[0] != plugin {
			continue
		}
		took, err := time.ParseDuration(words[3])
		if err != nil {
			continue
		}
		kind := rtnetlink
		for n := range min(2, len(words)-4) {
			if k, ok := stepKinds[strings.Join(words[4:5+n], " ")]; ok {
				kind = k
			}
		}
		total[kind] += took
	}
	return total
}

// breakDown measures the parts of each ADD of plumb's chain.
func (r *runner) breakDown() error {
	samples := map[string][]sample{}
	var plugins []string
	for i := range r.iterations {
		a := r.attach(r.sides[0], 0, fmt.Sprintf("steps-%d", i))
		_, err := a.do("ADD", func(s *side, c call) (sample, []byte, error) {
			version, logged := c, c
			version.environ = append(slices.Clone(c.environ), "CNI_COMMAND=VERSION")
			logged.environ = append(slices.Clone(c.environ), "CNI_LOG_LEVEL=debug")
			started, _, err := execute(s, version)
			if err != nil {
				return sample{}, nil, err
			}
			took, out, log, err := runPlugin(s, logged)
			parts := stepsOf(c.plugin, log)
			parts[start], parts[whole] = started.wall, took.wall
			for part, d := range parts {
				samples[c.plugin+part] = append(samples[c.plugin+part], sample{wall: d})
			}
			if !slices.Contains(plugins, c.plugin) {
				plugins = append(plugins, c.plugin)
			}
			return took, out, err
		})
		if err == nil {
			_, err = a.do("DEL", execute)
		}
		if err != nil {
			return err
		}
	}
	for _, plugin := range plugins {
		b := breakdown{plugin, map[string]float64{}}
		for _, part := range []string{whole, start, rtnetlink, nfTables, sysctls} {
			b.Parts[part] = summarize(samples[plugin+part]).Median
		}
		r.outcome.Breakdown = append(r.outcome.Breakdown, b)
	}
	return nil
}

func (r *report) breakdown(w io.Writer) {
	parts := []string{start, rtnetlink, nfTables, sysctls}
	fmt.Fprintf(w, "\n| plugin | %s | %s | rest |\n|%s\n", whole, strings.Join(parts, " | "), strings.Repeat("---|", len(parts)+3))
	for _, o := range r.Scenarios {
		for _, b := range o.Breakdown {
			rest := b.Parts[whole]
			fmt.Fprintf(w, "| `%s` | %s |", b.Plugin, figure(rest))
			for _, part := range parts {
				rest -= b.Parts[part]
				fmt.Fprintf(w, " %s |", figure(b.Parts[part]))
			}
			fmt.Fprintf(w, " %s |\n", figure(rest))
		}
	}
}
