package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// settings are settings of an interface: those that are asked for, or those that it
// had before. nil: not among them.
type settings struct {
	MAC      *types.MAC `json:"mac,omitempty"`
	Promisc  *bool      `json:"promisc,omitempty"`
	MTU      *int       `json:"mtu,omitempty"`
	AllMulti *bool      `json:"allmulti,omitempty"`
	TxQLen   *int       `json:"txQLen,omitempty"`
}

// A knob is one setting of an interface, as all verbs turn and read it.
type knob struct {
	in     func(*settings) bool               // is it among them?
	read   func(*settings, nl.Link)           // notes what the link has
	copy   func(to, from *settings)           // takes it over
	change func(*settings, nl.Link) nl.Change // sets the link to it
	diff   func(*settings, nl.Link) error     // says how the link differs
}

// table lists the knobs in the order in which they are turned. The MTU is the first:
// below 1280 the kernel takes IPv6 from an interface, and with it its sysctls.
func table() []knob {
	return []knob{
		row("mtu", func(s *settings) **int { return &s.MTU }, func(l nl.Link) int { return l.MTU }, nl.Link.SetMTU),
		row("mac", func(s *settings) **types.MAC { return &s.MAC }, func(l nl.Link) types.MAC { return l.MAC }, nl.Link.SetMAC),
		row("promisc", func(s *settings) **bool { return &s.Promisc }, func(l nl.Link) bool { return l.Promisc }, toggle(nl.Promisc)),
		row("allmulti", func(s *settings) **bool { return &s.AllMulti }, func(l nl.Link) bool { return l.AllMulti }, toggle(nl.AllMulti)),
		row("txQLen", func(s *settings) **int { return &s.TxQLen }, func(l nl.Link) int { return l.TxQueue }, nl.Link.SetTxQueue),
	}
}

// row makes a knob of where its value stands in settings, where in a link, and of the
// change that sets it.
func row[T comparable](name string, at func(*settings) **T, have func(nl.Link) T, set func(nl.Link, T) nl.Change) knob {
	return knob{
		in:     func(s *settings) bool { return *at(s) != nil },
		read:   func(s *settings, l nl.Link) { now := have(l); *at(s) = &now },
		copy:   func(to, from *settings) { *at(to) = *at(from) },
		change: func(s *settings, l nl.Link) nl.Change { return set(l, **at(s)) },
		diff: func(s *settings, l nl.Link) error {
			if now := have(l); now != **at(s) {
				return fmt.Errorf("%s of interface %s is %v, not %v", name, l.Name, now, **at(s))
			}
			return nil
		},
	}
}

func toggle(f nl.Flag) func(nl.Link, bool) nl.Change {
	return func(l nl.Link, on bool) nl.Change {
		if on {
			return l.SetFlag(f)
		}
		return l.ClearFlag(f)
	}
}

// knobs are those that s has a value for.
func (s *settings) knobs() []knob {
	var some []knob
	for _, k := range table() {
		if k.in(s) {
			some = append(some, k)
		}
	}
	return some
}

// of reads from the link what s has values for.
func (s *settings) of(l nl.Link) settings {
	var now settings
	for _, k := range s.knobs() {
		k.read(&now, l)
	}
	return now
}

// override takes over what o has values for.
func (s *settings) override(o settings) {
	for _, k := range o.knobs() {
		k.copy(s, &o)
	}
}

// changes are what the link needs to be as s says.
func (s *settings) changes(l nl.Link) []nl.Change {
	var all []nl.Change
	for _, k := range s.knobs() {
		if k.diff(s, l) != nil {
			all = append(all, k.change(s, l))
		}
	}
	return all
}

// diff names each setting in which the link is not as s says.
func (s *settings) diff(l nl.Link) error {
	var errs []error
	for _, k := range s.knobs() {
		errs = append(errs, k.diff(s, l))
	}
	return errors.Join(errs...)
}
