package main

import (
	"cmp"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// settings contains either the configured settings of an interface, or its settings before ADD. A nil value
// means that the setting is not configured, or was not saved.
type settings struct {
	MAC      *types.MAC `json:"mac,omitempty"`
	Promisc  *bool      `json:"promisc,omitempty"`
	MTU      *int       `json:"mtu,omitempty"`
	AllMulti *bool      `json:"allmulti,omitempty"`
	TxQLen   *int       `json:"txQLen,omitempty"`
}

// A difference is a setting whose current value differs from the wanted value.
type difference struct {
	name          string
	current, want any
	set           func(*nl.Conn, nl.Link) error // sets the link to want
}

// differences returns the settings that differ on the link, in the order in which ADD and DEL set them.
func (s settings) differences(l nl.Link) []difference {
	return slices.Concat(
		compare("mtu", s.MTU, l.MTU, (*nl.Conn).SetMTU),
		compare("mac", s.MAC, l.MAC, (*nl.Conn).SetMAC),
		compare("promisc", s.Promisc, l.Promisc, toggle((*nl.Conn).SetPromisc, (*nl.Conn).ClearPromisc)),
		compare("allmulti", s.AllMulti, l.AllMulti, toggle((*nl.Conn).SetAllMulti, (*nl.Conn).ClearAllMulti)),
		compare("txQLen", s.TxQLen, l.TxQueue, (*nl.Conn).SetTxQueue),
	)
}

// compare returns the difference between the wanted and the current value of one setting. It returns nil if
// they are equal, or if want is nil.
func compare[T comparable](name string, want *T, current T, set func(*nl.Conn, nl.Link, T) error) []difference {
	if want == nil || *want == current {
		return nil
	}
	return []difference{{name, current, *want, func(c *nl.Conn, l nl.Link) error { return set(c, l, *want) }}}
}

// toggle returns a setter that calls turnOn or turnOff.
func toggle(turnOn, turnOff func(*nl.Conn, nl.Link) error) func(*nl.Conn, nl.Link, bool) error {
	return func(c *nl.Conn, l nl.Link, on bool) error {
		if on {
			return turnOn(c, l)
		}
		return turnOff(c, l)
	}
}

// readCurrent returns the current values of the settings that s contains.
func (s settings) readCurrent(l nl.Link) settings {
	return settings{
		MAC:      readCurrent(s.MAC, l.MAC),
		Promisc:  readCurrent(s.Promisc, l.Promisc),
		MTU:      readCurrent(s.MTU, l.MTU),
		AllMulti: readCurrent(s.AllMulti, l.AllMulti),
		TxQLen:   readCurrent(s.TxQLen, l.TxQueue),
	}
}

// readCurrent returns the current value of one setting, or nil if want is nil.
func readCurrent[T any](want *T, current T) *T {
	if want == nil {
		return nil
	}
	return &current
}

// withDefaults returns s, completed with the values of other for the settings that s does not contain.
func (s settings) withDefaults(other settings) settings {
	return settings{
		MAC:      cmp.Or(s.MAC, other.MAC),
		Promisc:  cmp.Or(s.Promisc, other.Promisc),
		MTU:      cmp.Or(s.MTU, other.MTU),
		AllMulti: cmp.Or(s.AllMulti, other.AllMulti),
		TxQLen:   cmp.Or(s.TxQLen, other.TxQLen),
	}
}
