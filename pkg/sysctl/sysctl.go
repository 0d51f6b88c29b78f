// Package sysctl reads and writes the kernel settings of a network namespace. It is
// the only package that opens /proc/sys, whose net folder belongs to the namespace
// of the thread that opens it.
package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
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
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(value))
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

// readFile is os.ReadFile without what that does for files that block.
func readFile(file string) (string, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	var content []byte
	for {
		content = slices.Grow(content, 512)
		n, err := unix.Read(fd, content[len(content):cap(content)])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return "", err
		}
		if err == nil && n == 0 {
			return string(content), nil
		}
		content = content[:len(content)+max(n, 0)]
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
