package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// settings holds settings of an interface: the configured ones, or those that it had
// before ADD. A nil value means that the setting is not among them.
type settings struct {
	MAC      *types.MAC `json:"mac,omitempty"`
	Promisc  *bool      `json:"promisc,omitempty"`
	MTU      *int       `json:"mtu,omitempty"`
	AllMulti *bool      `json:"allmulti,omitempty"`
	TxQLen   *int       `json:"txQLen,omitempty"`
}

// A linkSetting is one setting of an interface, with all that the verbs do with it.
type linkSetting struct {
	isIn func(*settings) bool                     // reports whether the settings have a value for it
	read func(*settings, nl.Link)                 // copies the value from the link
	copy func(to, from *settings)                 // copies the value from other settings
	set  func(*nl.Conn, nl.Link, *settings) error // sets the value on the link
	diff func(*settings, nl.Link) error           // returns an error if the link has another value
}

// linkSettings lists all settings in the order in which ADD makes them. The MTU is the
// first: with one below 1280 the kernel removes IPv6 from an interface, and with it the
// sysctls.
func linkSettings() []linkSetting {
	return []linkSetting{
		newLinkSetting("mtu", func(s *settings) **int { return &s.MTU }, func(l nl.Link) int { return l.MTU }, (*nl.Conn).SetMTU),
		newLinkSetting("mac", func(s *settings) **types.MAC { return &s.MAC }, func(l nl.Link) types.MAC { return l.MAC }, (*nl.Conn).SetMAC),
		newLinkSetting("promisc", func(s *settings) **bool { return &s.Promisc }, func(l nl.Link) bool { return l.Promisc }, onOff((*nl.Conn).SetPromisc, (*nl.Conn).ClearPromisc)),
		newLinkSetting("allmulti", func(s *settings) **bool { return &s.AllMulti }, func(l nl.Link) bool { return l.AllMulti }, onOff((*nl.Conn).SetAllMulti, (*nl.Conn).ClearAllMulti)),
		newLinkSetting("txQLen", func(s *settings) **int { return &s.TxQLen }, func(l nl.Link) int { return l.TxQueue }, (*nl.Conn).SetTxQueue),
	}
}

// newLinkSetting makes a linkSetting. field returns a pointer to the field of settings with the
// value, current returns the value of a link, and set sets it.
func newLinkSetting[T comparable](name string, field func(*settings) **T, current func(nl.Link) T, set func(*nl.Conn, nl.Link, T) error) linkSetting {
	return linkSetting{
		isIn: func(s *settings) bool { return *field(s) != nil },
		read: func(s *settings, l nl.Link) { now := current(l); *field(s) = &now },
		copy: func(to, from *settings) { *field(to) = *field(from) },
		set:  func(c *nl.Conn, l nl.Link, s *settings) error { return set(c, l, **field(s)) },
		diff: func(s *settings, l nl.Link) error {
			if now := current(l); now != **field(s) {
				return fmt.Errorf("%s of interface %s is %v, not %v", name, l.Name, now, **field(s))
			}
			return nil
		},
	}
}

// onOff returns a function that calls turnOn or turnOff.
func onOff(turnOn, turnOff func(*nl.Conn, nl.Link) error) func(*nl.Conn, nl.Link, bool) error {
	return func(c *nl.Conn, l nl.Link, on bool) error {
		if on {
			return turnOn(c, l)
		}
		return turnOff(c, l)
	}
}

// present lists the settings that s has a value for.
func (s *settings) present() []linkSetting {
	var some []linkSetting
	for _, k := range linkSettings() {
		if k.isIn(s) {
			some = append(some, k)
		}
	}
	return some
}

// readFrom returns the values that the link has for the settings that s has values for.
func (s *settings) readFrom(l nl.Link) settings {
	var now settings
	for _, k := range s.present() {
		k.read(&now, l)
	}
	return now
}

// override replaces values by those of o, as far as o has any.
func (s *settings) override(o settings) {
	for _, k := range o.present() {
		k.copy(s, &o)
	}
}

// differing lists the settings of s for which the link has another value.
func (s *settings) differing(l nl.Link) []linkSetting {
	return slices.DeleteFunc(s.present(), func(k linkSetting) bool { return k.diff(s, l) == nil })
}

// diff returns an error that names each setting for which the link has another value.
func (s *settings) diff(l nl.Link) error {
	var errs []error
	for _, k := range s.present() {
		errs = append(errs, k.diff(s, l))
	}
	return errors.Join(errs...)
}
