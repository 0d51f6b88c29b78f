package main

import (
	"net/netip"
	"strings"
)

// An owner is whom a reservation belongs to. A legacy one, of the days before
// several interfaces a container, has no IfName.
type owner struct{ containerID, ifName string }

// legacy is the owner under whom old reservations of the same container stand.
func (o owner) legacy() owner { return owner{containerID: o.containerID} }

// text is the content of a reservation file.
func (o owner) text() string {
	if o.ifName == "" {
		return o.containerID
	}
	return o.containerID + "\r\n" + o.ifName
}

// parseOwner reads a reservation file. White space around the content is nothing,
// as in the reference. ok is false for what a crash leaves of a file that was
// created first and written later: nothing, zeros, or no name of an owner.
func parseOwner(content []byte) (o owner, ok bool) {
	id, ifName, two := strings.Cut(strings.TrimSpace(string(content)), "\r\n")
	if !validID(id) || two && !validIfName(ifName) {
		return owner{}, false
	}
	return owner{id, ifName}, true
}

// validID is the specification's rule for container IDs.
func validID(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}

// validIfName is what the kernel takes as the name of an interface.
func validIfName(s string) bool {
	return s != "" && len(s) <= 15 && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c == '/' || c == ':' || c == 0x7f
	})
}

// parseName reads the name of a reservation file. Only the form that the plugins
// write is a reservation: lock and last_reserved_ip.N are not.
func parseName(name string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(name)
	return ip, err == nil && !ip.Is4In6() && ip.Zone() == "" && ip.String() == name
}
