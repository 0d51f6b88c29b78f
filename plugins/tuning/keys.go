package main

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// An assignment is an entry of "sysctl".
type assignment struct {
	written string   // the key as written in the configuration
	paths   []string // the paths below /proc/sys that it can mean, the more likely first; never empty
	value   string
}

// assignments merges the entries of the configuration (below) and of args.cni (above),
// which replace entries for the same setting. They are sorted, so that every ADD writes
// them in the same order: "all" before an interface, whose value it overwrites.
func assignments(below, above rawSysctls, ifName string) ([]assignment, error) {
	base, err := entries(below, ifName)
	over, aboveErr := entries(above, ifName)
	base = slices.DeleteFunc(base, func(a assignment) bool { return slices.ContainsFunc(over, a.same) })
	all := append(base, over...)
	slices.SortFunc(all, func(a, b assignment) int { return strings.Compare(a.paths[0], b.paths[0]) })
	return all, errors.Join(err, aboveErr)
}

// entries reads one object. Two spellings of one key are duplicates, too.
func entries(object rawSysctls, ifName string) ([]assignment, error) {
	var all []assignment
	var errs []error
	for key, value := range object {
		paths, err := pathsOf(key, ifName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a := assignment{key, paths, value}
		if i := slices.IndexFunc(all, a.same); i >= 0 {
			errs = append(errs, fmt.Errorf("duplicated sysctl keys are not allowed: %q and %q are the same", min(key, all[i].written), max(key, all[i].written)))
		}
		all = append(all, a)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return all, errors.Join(errs...)
}

// same reports whether both can mean the same setting.
func (a assignment) same(b assignment) bool {
	return slices.ContainsFunc(a.paths, func(p string) bool { return slices.Contains(b.paths, p) })
}

// swapSeparator returns a slash for a dot, and a dot for a slash.
func swapSeparator(r rune) rune {
	switch r {
	case '.':
		return '/'
	case '/':
		return '.'
	}
	return r
}

// interfaceName is the placeholder in keys for the name of the container's interface.
const interfaceName = "IFNAME"

// pathsOf returns the paths that a key can mean. As in sysctl(8), whichever of dot and
// slash occurs first is the separator, and the other one then stands for a dot within a
// name: net.ipv4.conf.eth0/100.arp_notify and net/ipv4/conf/eth0.100/arp_notify are the
// same. The second meaning is that of the reference plugin, for which every dot is a
// separator. With an empty ifName the placeholder is not replaced.
func pathsOf(key, ifName string) ([]string, error) {
	meanings := []string{key, strings.ReplaceAll(key, ".", "/")}
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
		meanings[0] = strings.Map(swapSeparator, key)
	}
	var paths []string
	for _, p := range meanings {
		if ifName != "" {
			p = strings.Replace(p, interfaceName, ifName, 1)
		}
		clean := path.Clean(p)
		if !strings.HasPrefix(clean, "net/") || slices.Contains(strings.Split(p, "/"), "..") || strings.ContainsRune(p, 0) {
			return nil, fmt.Errorf("invalid net sysctl key: %q: only what is below net. can be set", key)
		}
		if !slices.Contains(paths, clean) {
			paths = append(paths, clean)
		}
	}
	return paths, nil
}
