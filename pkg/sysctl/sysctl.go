// Package sysctl reads and writes the kernel settings of a network namespace. No other package
// opens files in /proc/sys, because /proc/sys/net shows the namespace of the thread that opens a
// file there.
package sysctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

const root = "/proc/sys/"

// A Setting is a value for a key. Key is a path below /proc/sys with '/' between its parts, because
// the name of an interface can contain a dot.
type Setting struct {
	Key   string
	Value string
	// Optional means that an attachment works without the setting, which only improves security or
	// speed. If the kernel has no such key, the setting is ignored. If the key cannot be written,
	// it keeps its value, and the user gets a warning.
	Optional bool
}

// IPv4 returns the key of an IPv4 setting. ifName is an interface, "all" or "default".
func IPv4(ifName, name string) string { return "net/ipv4/conf/" + ifName + "/" + name }

// IPv6 returns the key of an IPv6 setting. ifName is an interface, "all" or "default".
func IPv6(ifName, name string) string { return "net/ipv6/conf/" + ifName + "/" + name }

// Get returns the value of a key, without the final newline. The error matches fs.ErrNotExist if
// the kernel has no such key.
func Get(h *ns.Handle, key string) (value string, err error) {
	err = stepIn(h, "read sysctl "+key, func() (err error) {
		value, err = read(key)
		return err
	})
	return value, err
}

// InterfacesWith returns the interfaces whose IPv6 setting has the value, among those that match. It returns none if the
// kernel has no IPv6.
func InterfacesWith(h *ns.Handle, name, value string, match func(ifName string) bool) (found []string, err error) {
	err = stepIn(h, "find interfaces with "+name+"="+value, func() error {
		directory, err := os.Open(root + "net/ipv6/conf")
		if err != nil {
			return types.IgnoreNotExist(err)
		}
		defer func() { _ = directory.Close() }()
		names, err := directory.Readdirnames(-1) // in contrast to os.ReadDir, it does not sort the names
		for _, ifName := range names {
			if match(ifName) && (Setting{Key: IPv6(ifName, name), Value: value}).isSet() {
				found = append(found, ifName)
			}
		}
		return err
	})
	slices.Sort(found)
	return found, err
}

func stepIn(h *ns.Handle, step string, f func() error) error {
	return h.Step(step, func() error { return h.Do(f) })
}

// Set writes the settings in their order. Errors match fs.ErrNotExist if the kernel has no such
// key, and unix.EROFS if /proc/sys is mounted read-only.
func Set(h *ns.Handle, settings ...Setting) error {
	if len(settings) == 0 {
		return nil
	}
	return stepIn(h, "write sysctls "+settingsText(settings), func() error { return set(h, settings) })
}

// Ensure writes settings like Set, but only if their values differ from the present values. It is
// for settings that attachments share on the host.
func Ensure(h *ns.Handle, settings ...Setting) error {
	if len(settings) == 0 {
		return nil
	}
	return stepIn(h, "ensure sysctls "+settingsText(settings), func() error {
		return set(h, slices.DeleteFunc(slices.Clone(settings), Setting.isSet))
	})
}

// set writes the settings from a thread that is in the namespace. It prints one warning for all
// optional settings that cannot be written.
func set(h *ns.Handle, settings []Setting) error {
	var refused []Setting
	var why error
	for _, s := range settings {
		err := s.write()
		switch {
		case err != nil && s.Optional && isRefused(err):
			refused, why = append(refused, s), cause(err)
		case err != nil:
			return err
		}
	}
	if why != nil {
		h.Trace().Warn("sysctls that cannot be written keep their values (%v): %s", why, settingsText(refused))
	}
	return nil
}

// isSet reports whether the key has the value in the thread's namespace.
func (s Setting) isSet() bool {
	now, err := read(s.Key)
	return err == nil && now == s.Value
}

// Diff returns an error that names each setting whose value differs. It ignores optional settings
// with a key that does not exist or cannot be written.
func Diff(h *ns.Handle, settings ...Setting) error {
	var errs []error
	for _, s := range settings {
		now, err := Get(h, s.Key)
		switch {
		case err != nil && s.Optional && errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case now != s.Value && !(s.Optional && !writable(h, s.Key)):
			errs = append(errs, s.Differs(h, now).Errorf("sysctl %s is %q, want %q", s.Key, now, s.Value))
		}
	}
	return errors.Join(errs...)
}

// Differs describes the problem that the setting has the value now instead of s.Value.
func (s Setting) Differs(h *ns.Handle, now string) types.Problem {
	p := h.Problem("sysctl "+s.Key, types.ProblemDiffers)
	p.Want, p.Got, p.Fix = s.Value, now, h.Command("sysctl", "-w", s.Key+"="+s.Value)
	return p
}

// writable reports whether the process may write the key.
func writable(h *ns.Handle, key string) bool {
	return !isRefused(h.Do(func() error {
		file, err := file(key)
		if err != nil {
			return err
		}
		return unix.Access(file, unix.W_OK)
	}))
}

// isRefused reports whether an error means that an existing key cannot be written, because
// /proc/sys is mounted read-only or the process lacks the permission.
func isRefused(err error) bool {
	return errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission)
}

// write writes one setting. If the key cannot be written but already has the value, write returns
// nil.
func (s Setting) write() error {
	file, err := file(s.Key)
	if err != nil {
		return err
	}
	err = writeFile(file, s.Value)
	if err == nil || s.Optional && errors.Is(err, fs.ErrNotExist) || isRefused(err) && s.isSet() {
		return nil
	}
	return s.explain(file, fmt.Errorf("write sysctl %s = %q: %w", s.Key, s.Value, cause(err)))
}

// explain adds advice to the error of a write.
func (s Setting) explain(file string, err error) error {
	switch info, statErr := os.Stat(file); {
	case errors.Is(err, unix.EROFS):
		return types.Errorf(types.CodeIO, "%w: mount /proc/sys writable for the plugin, or give the key this value beforehand", err)
	case errors.Is(err, fs.ErrPermission) && statErr == nil && info.Mode()&0o222 == 0:
		return types.Errorf(types.CodeConfig, "%w: the key is read-only in this namespace; only the host can set what is not per namespace", err)
	}
	return err
}

// writeFile writes a value. If a list is longer than a page, the kernel accepts the entries that
// fit, and adds the entries of the next write to them (proc_do_large_bitmap). WriteString writes
// until everything is written. An empty value, which empties a list, is written as a newline,
// because the kernel ignores a write of zero bytes.
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
	value, err := readFile(file)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, cause(err))
	}
	return strings.TrimSuffix(value, "\n"), nil
}

// readFile reads a value with one read. If a long list (ip_local_reserved_ports) does not fit into
// the buffer, a second read does not return the rest (proc_do_large_bitmap, proc_dointvec).
// Therefore readFile starts again with a larger buffer until the value does not fill the buffer.
func readFile(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	for size := 512; ; size *= 4 {
		buffer := make([]byte, size)
		n, err := f.ReadAt(buffer, 0)
		switch {
		case errors.Is(err, io.EOF):
			return string(buffer[:n]), nil
		case err != nil:
			return "", err
		}
	}
}

// cause returns the kernel's error number, if err wraps one. It drops the path, because the
// caller's error names the key.
func cause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func file(key string) (string, error) {
	file := path.Join(root, key)
	if !strings.HasPrefix(file, root) {
		return "", fmt.Errorf("sysctl %q is not below %s", key, root)
	}
	return file, nil
}

// settingsText returns the settings for errors and steps, for example "net/ipv4/ip_forward=1 …".
func settingsText(settings []Setting) string {
	texts := make([]string, len(settings))
	for i, s := range settings {
		texts[i] = s.Key + "=" + s.Value
	}
	return strings.Join(texts, " ")
}
