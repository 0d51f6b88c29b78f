package main

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// checkAllowlist returns an error that names each sysctl that the allowlist does not allow. The allowlist is
// the file in which an administrator lists the sysctls that a configuration may set. Each line is a regular
// expression, which must match a part of the key as it is written in the configuration. If the file does not
// exist, every sysctl is allowed.
func checkAllowlist(path string, sysctls []assignment) error {
	text, err := hostfile.ReadConfig(path, hostfile.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return types.Errorf(types.CodeIO, "read allowlist of sysctls: %w", err)
	}
	allowed, err := compileLines(string(text))
	if err != nil {
		return types.Errorf(types.CodeConfig, "allowlist of sysctls %s, %w", path, err)
	}
	var errs []error
	for _, a := range sysctls {
		if !slices.ContainsFunc(allowed, func(re *regexp.Regexp) bool { return re.MatchString(a.written) }) {
			errs = append(errs, fmt.Errorf("sysctl %q is not allowed: no line of %s matches it", a.written, path))
		}
	}
	return types.Coded(types.CodeConfig, errors.Join(errs...))
}

// compileLines compiles the regular expression in each line of a text. It ignores blank lines.
func compileLines(text string) ([]*regexp.Regexp, error) {
	var all []*regexp.Regexp
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, "\r")
		if strings.TrimSpace(line) == "" {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		all = append(all, re)
	}
	return all, nil
}
