package types

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// MaxIfName is the largest length of an interface name in bytes (IFNAMSIZ of the kernel without the terminating zero).
const MaxIfName = 15

// CheckIfName returns nil if an interface can have the name, and otherwise an error that gives the reason.
func CheckIfName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > MaxIfName:
		return fmt.Errorf("longer than %d bytes", MaxIfName)
	case name == "." || name == "..":
		return errors.New("'.' and '..' are not allowed")
	case name == "all" || name == "default": // net.ipv4.conf.all (net/core/dev.c, dev_valid_name; net/ipv4/devinet.c)
		return errors.New("the kernel's settings for all interfaces have that name")
	case strings.ContainsAny(name, "/:%"): // the kernel replaces %d by a number
		return errors.New("'/', ':' and '%' are not allowed")
	case strings.ContainsFunc(name, unicode.IsSpace):
		return errors.New("white space is not allowed")
	}
	return nil
}

// IDRule is advice for an error about a text for which IsID returns false.
const IDRule = "; use only the characters a-z, A-Z, 0-9, '_', '.' and '-', and begin with a letter or digit"

// IsID reports whether s is a valid container ID or network name, which is a letter or digit, then letters, digits, '_', '.'
// and '-' (SPEC 1.1.0). It can be used as the name of a file.
func IsID(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}
