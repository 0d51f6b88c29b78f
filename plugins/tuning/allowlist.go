package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

// An allowlist is the file in which an administrator lists the sysctls that a
// configuration may set: one regular expression per line, which has to match a part of
// the key as it is written in the configuration.
type allowlist struct {
	path  string
	lines []*regexp.Regexp
	all   bool // everything is allowed: there is no file
}

// readAllowlist reads the file and compiles its expressions. Without a file everything is
// allowed.
func readAllowlist(path string) (*allowlist, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &allowlist{path: path, all: true}, nil
	}
	if err != nil {
		return nil, types.Errorf(types.CodeIO, "read allowlist of sysctls: %w", err)
	}
	list := &allowlist{path: path}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			return nil, types.Errorf(types.CodeConfig, "allowlist of sysctls %s, line %d: %w", path, n, err)
		}
		list.lines = append(list.lines, re)
	}
	return list, nil
}

// check returns an error that names each key that no line allows.
func (l *allowlist) check(sysctls []assignment) error {
	if l.all {
		return nil
	}
	var errs []error
	for _, a := range sysctls {
		if !slices.ContainsFunc(l.lines, func(re *regexp.Regexp) bool { return re.MatchString(a.written) }) {
			errs = append(errs, fmt.Errorf("sysctl %q is not allowed: no line of %s matches it", a.written, l.path))
		}
	}
	return types.Coded(types.CodeConfig, errors.Join(errs...))
}
