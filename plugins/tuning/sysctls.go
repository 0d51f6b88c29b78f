package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
)

// An assignment is an entry of "sysctl", which assigns a value to a key.
type assignment struct {
	written string   // the key as it is written in the configuration
	paths   []string // the paths below /proc/sys that the key can mean, at least one, the more likely one first
	value   string
}

// assignments returns the entries of the configuration and of args.cni. An entry of args.cni replaces the
// entry of the configuration for the same sysctl. The result is sorted, so that every ADD writes in the same
// order, and writes "all" before the interfaces whose values it overwrites.
func assignments(configured, fromArgs rawSysctls, ifName string) ([]assignment, error) {
	all, err := parseSysctls("sysctl", configured, ifName)
	replacing, argsErr := parseSysctls("args.cni.sysctl", fromArgs, ifName)
	all = slices.DeleteFunc(all, func(a assignment) bool { return slices.ContainsFunc(replacing, a.sameSysctl) })
	all = append(all, replacing...)
	slices.SortFunc(all, func(a, b assignment) int { return strings.Compare(a.paths[0], b.paths[0]) })
	return all, errors.Join(err, argsErr)
}

// parseSysctls returns the entries of the object of a key, and an error if two keys mean the same sysctl.
func parseSysctls(name string, object rawSysctls, ifName string) ([]assignment, error) {
	var all []assignment
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(object)) {
		paths, err := pathsOf(key, ifName)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		a := assignment{key, paths, object[key]}
		if i := slices.IndexFunc(all, a.sameSysctl); i >= 0 {
			errs = append(errs, fmt.Errorf("%s: duplicated sysctl keys are not allowed: %q and %q are the same", name, all[i].written, key))
		}
		all = append(all, a)
	}
	return all, errors.Join(errs...)
}

// sameSysctl reports whether a and b can mean the same sysctl.
func (a assignment) sameSysctl(b assignment) bool {
	return slices.ContainsFunc(a.paths, func(p string) bool { return slices.Contains(b.paths, p) })
}

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

// pathsOf returns the paths below /proc/sys that a key can mean. The first path is the meaning in sysctl(8).
// If a dot comes before any slash, dots are separators, and a slash stands for a dot in a name. For example,
// net.ipv4.conf.eth0/100.arp_notify means net/ipv4/conf/eth0.100/arp_notify. Otherwise slashes are
// separators. The second path is the meaning in the reference plugin, for which every dot and every slash is
// a separator. pathsOf replaces the placeholder, unless ifName is empty.
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
			return nil, fmt.Errorf("invalid net sysctl key: %q; a key must begin with \"net.\"", key)
		}
		if !slices.Contains(paths, clean) {
			paths = append(paths, clean)
		}
	}
	return paths, nil
}

// A currentSysctl is a configured sysctl with its current value in the container.
type currentSysctl struct {
	sysctl.Setting
	now     string
	noValue bool // the sysctl cannot be read now, see hasNoValue
}

// readSysctls reads the sysctls of the assignments. It tries all, and joins the errors.
func readSysctls(container *ns.Handle, assignments []assignment) ([]currentSysctl, error) {
	if len(assignments) == 0 {
		return nil, nil
	}
	var all []currentSysctl
	err := container.Do(func() error {
		var errs []error
		for _, a := range assignments {
			s, err := readFirst(container, a)
			all, errs = append(all, s), append(errs, err)
		}
		return errors.Join(errs...)
	})
	return all, err
}

// readFirst reads the first path of an assignment that exists in the container.
func readFirst(container *ns.Handle, a assignment) (currentSysctl, error) {
	var err error
	for _, path := range a.paths {
		s := currentSysctl{Setting: sysctl.Setting{Key: path, Value: a.value}}
		s.now, err = sysctl.Get(container, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case hasNoValue(err):
			s.noValue, err = true, nil
		}
		return s, err
	}
	return currentSysctl{}, fmt.Errorf("sysctl %q does not exist in the container: %w; check the spelling, load its kernel module, or remove it if it is not per namespace", a.written, err)
}

// hasNoValue reports whether err means that a sysctl cannot be read now. For example, net.ipv4.route.flush
// can only be written, and stable_secret cannot be read before it is set.
func hasNoValue(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrPermission)
}

// diff returns an error if the current value is not the configured one. It ignores differences in white
// space, because the kernel separates the items of lists with tabs.
func (s currentSysctl) diff(container *ns.Handle) error {
	if s.noValue || slices.Equal(strings.Fields(s.now), strings.Fields(s.Value)) {
		return nil
	}
	return s.Differs(container, s.now).Errorf("sysctl %s of the container is %q, want %q", s.Key, s.now, s.Value)
}
