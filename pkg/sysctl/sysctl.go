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
		return h.Do(func() error {
			for _, s := range settings {
				if err := s.write(); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Ensure writes the settings that have another value, for what the node shares:
// nothing is touched that is right already.
func Ensure(h *ns.Handle, settings ...Setting) error {
	return h.Step("ensure sysctls "+names(settings), func() error {
		return h.Do(func() error {
			for _, s := range settings {
				if now, err := read(s.Key); err == nil && now == s.Value {
					continue
				}
				if err := s.write(); err != nil {
					return err
				}
			}
			return nil
		})
	})
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

// writeFile writes without creating or truncating: one write is one setting. A write
// of nothing would be none; a line without text empties a list.
func writeFile(file, value string) error {
	if value == "" {
		value = "\n"
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func read(key string) (string, error) {
	file, err := file(key)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
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
