package types

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// MaxIfName is the largest length of an interface name, in bytes (IFNAMSIZ of the kernel
// without the terminating zero).
const MaxIfName = 15

// CheckIfName returns an error that says why the name cannot be that of an interface, or nil.
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
