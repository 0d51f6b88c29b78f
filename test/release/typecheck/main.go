// Command typecheck checks that packages would compile for an architecture:
//
//	typecheck ARCH DIR PATTERN…
//
// The environment variable MODFILE contains the flag that scripts/modfile.sh prints, which may be empty.
// It is a separate program because the race detector, with which the tests run, makes it ten times slower.
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: typecheck ARCH DIR PATTERN…")
		os.Exit(2)
	}
	if err := check(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
}

// check prints the errors of the packages and of their imports, and returns an error if there are any.
func check(arch, dir string, patterns []string) error {
	config := packages.Config{
		Mode:       packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesSizes,
		Dir:        dir,
		Env:        append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0"),
		BuildFlags: strings.Fields(os.Getenv("MODFILE")),
	}
	loaded, err := packages.Load(&config, patterns...)
	if err != nil || len(loaded) == 0 {
		return fmt.Errorf("%s: %d packages: %w", arch, len(loaded), err)
	}
	if n := packages.PrintErrors(loaded); n > 0 {
		return fmt.Errorf("%s: %d errors", arch, n)
	}
	return nil
}
