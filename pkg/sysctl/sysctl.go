// Package sysctl reads and writes the kernel settings of a network namespace. It is
// the only package that opens /proc/sys, whose net folder belongs to the namespace
// of the thread that opens it.
package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/plumb-cni/plumb/pkg/ns"
	"golang.org/x/sys/unix"
)

const root = "/proc/sys/"

// A Setting is a value for a key. Keys are paths below /proc/sys with '/' between
// their parts, so that an interface name may hold a dot.
type Setting struct {
	Key   string
	Value string
	// Optional: a kernel without the key has nothing to set.
	Optional bool
}

// IPv4 is the key of an IPv4 setting of an interface, or of "all" or "default".
func IPv4(ifName, name string) string { return "net/ipv4/conf/" + ifName + "/" + name }

// IPv6 is the key of an IPv6 setting of an interface, or of "all" or "default".
func IPv6(ifName, name string) string { return "net/ipv6/conf/" + ifName + "/" + name }

// Get reads a key, without the closing newline. The error matches fs.ErrNotExist
// where the kernel has no such key.
func Get(h *ns.Handle, key string) (value string, err error) {
	err = h.Step("read sysctl "+key, func() error {
		return h.Do(func() error {
			value, err = read(key)
			return err
		})
	})
	return value, err
}

// Set writes the settings in their order, in one visit to the namespace.
func Set(h *ns.Handle, settings ...Setting) error {
	if len(settings) == 0 {
		return nil
	}
	return h.Step("write sysctls "+names(settings), func() error {
		return h.Do(func() error { return set(settings) })
	})
}

// Ensure writes the settings that have another value, for what the node shares:
// nothing is touched that is right already.
func Ensure(h *ns.Handle, settings ...Setting) error {
	return h.Step("ensure sysctls "+names(settings), func() error {
		return h.Do(func() error { return ensure(settings) })
	})
}

// A Visit is a stay in a namespace, for who has more than one call to make: to enter
// and leave it costs twice what reading a key does. Its methods are the functions of
// their names.
type Visit struct{ h *ns.Handle }

// Within runs f in the namespace, and ends the visit with it.
func Within(h *ns.Handle, f func(Visit) error) error {
	return h.Do(func() error { return f(Visit{h}) })
}

// Get is Get in the namespace of the visit.
func (v Visit) Get(key string) (value string, err error) {
	err = v.h.Step("read sysctl "+key, func() error {
		value, err = read(key)
		return err
	})
	return value, err
}

// Set is Set in the namespace of the visit.
func (v Visit) Set(settings ...Setting) error {
	if len(settings) == 0 {
		return nil
	}
	return v.h.Step("write sysctls "+names(settings), func() error { return set(settings) })
}

// Ensure is Ensure in the namespace of the visit.
func (v Visit) Ensure(settings ...Setting) error {
	return v.h.Step("ensure sysctls "+names(settings), func() error { return ensure(settings) })
}

func set(settings []Setting) error {
	for _, s := range settings {
		if err := s.write(); err != nil {
			return err
		}
	}
	return nil
}

func ensure(settings []Setting) error {
	for _, s := range settings {
		if now, err := read(s.Key); err == nil && now == s.Value {
			continue
		}
		if err := s.write(); err != nil {
			return err
		}
	}
	return nil
}

// Diff names each setting that has another value.
func Diff(h *ns.Handle, settings ...Setting) error {
	var errs []error
	for _, s := range settings {
		now, err := Get(h, s.Key)
		switch {
		case err != nil && s.Optional && errors.Is(err, os.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case now != s.Value:
			errs = append(errs, fmt.Errorf("sysctl %s is %q, not %q", s.Key, now, s.Value))
		}
	}
	return errors.Join(errs...)
}

// write sets one key. A /proc/sys that cannot be written is no error where the
// value is right already.
func (s Setting) write() error {
	file, err := file(s.Key)
	if err != nil {
		return err
	}
	err = writeFile(file, s.Value)
	switch {
	case err == nil, s.Optional && errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, unix.EROFS), errors.Is(err, os.ErrPermission):
		if now, rerr := read(s.Key); rerr == nil && now == s.Value {
			return nil
		}
	}
	return fmt.Errorf("write sysctl %s = %q: %w", s.Key, s.Value, err)
}

// writeFile writes without creating or truncating. One write is one setting, but of a
// list longer than a page the kernel takes the entries that fit, and adds those of the
// next write (proc_do_large_bitmap). A write of nothing would be none; a line without
// text empties a list.
func writeFile(file, value string) error {
	if value == "" {
		value = "\n"
	}
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n, err := unix.Write(fd, []byte(value))
	for err == nil && n > 0 && n < len(value) {
		value = value[n:]
		n, err = unix.Write(fd, []byte(value))
	}
	return errors.Join(err, unix.Close(fd))
}

func read(key string) (string, error) {
	file, err := file(key)
	if err != nil {
		return "", err
	}
	value, err := readFile(file)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return strings.TrimSuffix(value, "\n"), nil
}

// readFile reads a value in one piece: where the kernel prints a list
// (ip_local_reserved_ports), what the first read had no room for is lost to the next
// (proc_do_large_bitmap, proc_dointvec), and a value with room left is all of it.
func readFile(file string) (string, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	for room := make([]byte, 512); ; {
		n, err := unix.Pread(fd, room, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", err
		case n < len(room):
			return string(room[:n]), nil
		default:
			room = make([]byte, 4*len(room))
		}
	}
}

// file is the path of a key. One that leads out of /proc/sys is refused.
func file(key string) (string, error) {
	file := path.Join(root, key)
	if !strings.HasPrefix(file, root) {
		return "", fmt.Errorf("sysctl %q leads out of %s", key, root)
	}
	return file, nil
}

func names(settings []Setting) string {
	var b strings.Builder
	for i, s := range settings {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s.Key + "=" + s.Value)
	}
	return b.String()
}
