package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/plumb-cni/plumb/test/nstest"
)

// A bed is what a scenario runs on: it stands in for a test towards nstest, and what
// is made through it is removed when the scenario ends.
type bed struct {
	root     string
	temps    int
	cleanups []func()
	errs     []error
}

// A failure is what Fatalf panics with; guard makes it an error again.
type failure struct{ error }

func (b *bed) Helper()                   {}
func (b *bed) Name() string              { return "bench" }
func (b *bed) Cleanup(f func())          { b.cleanups = append(b.cleanups, f) }
func (b *bed) Logf(string, ...any)       {}
func (b *bed) Failed() bool              { return len(b.errs) > 0 }
func (b *bed) Errorf(f string, a ...any) { b.errs = append(b.errs, fmt.Errorf(f, a...)) }
func (b *bed) Fatalf(f string, a ...any) { panic(failure{fmt.Errorf(f, a...)}) }
func (b *bed) Skipf(f string, a ...any)  { b.Fatalf(f, a...) }

// TempDir makes a directory that is gone with the bed.
func (b *bed) TempDir() string {
	b.temps++
	dir := filepath.Join(b.root, fmt.Sprint(b.temps))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatalf("%w", err)
	}
	return dir
}

func (b *bed) must(err error) {
	if err != nil {
		b.Fatalf("%w", err)
	}
}

// withBed runs f on a bed of its own and removes all that was made.
func withBed(f func(*bed) error) (err error) {
	root, err := os.MkdirTemp("", "plumb-bench-")
	if err != nil {
		return err
	}
	b := &bed{root: root}
	err = guard(func() error { return f(b) })
	for _, cleanup := range slices.Backward(b.cleanups) {
		cleanup()
	}
	return errors.Join(append(b.errs, err, os.RemoveAll(root))...)
}

func guard(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	return f()
}

// A side is one of those compared in a scenario: a set of executables, with a host, a
// container and a directory for state of its own.
type side struct {
	*bed
	role
	bin        string // the directory of the executables
	host       *nstest.NS
	containers []*nstest.NS
	dir        string
}

// A role says what is different about a side.
type role struct {
	name      string
	reference bool
	fill      int    // reservations or mappings that are there before
	backend   string // ipMasqBackend, backend: what of the two the plugin is told
}

func newSide(b *bed, r role, bins bins) *side {
	s := &side{bed: b, role: r, bin: bins.plumb, dir: b.TempDir(), host: nstest.NewHost(b)}
	if r.reference {
		s.bin = bins.reference
	}
	s.containers = append(s.containers, nstest.New(b))
	return s
}

// bins are the directories of the executables.
type bins struct{ plumb, reference string }

// installed copies the executables of both sides into root, as an installation does. The kernel
// maps a file from the page cache in pieces as large as it came in there: an executable
// as the linker wrote it, page by page, takes a sixth longer to start than its copy, and
// so does one that was read in bit by bit.
func (b bins) installed(root string) (copies bins, err error) {
	copies = bins{filepath.Join(root, "plumb"), filepath.Join(root, "reference")}
	for _, way := range [][2]string{{b.plumb, copies.plumb}, {b.reference, copies.reference}} {
		names, err := executables(way[0])
		if err != nil {
			return bins{}, err
		}
		if err := os.Mkdir(way[1], 0o755); err != nil {
			return bins{}, err
		}
		for _, name := range names {
			content, err := os.ReadFile(filepath.Join(way[0], name))
			if err == nil {
				err = os.WriteFile(filepath.Join(way[1], name), content, 0o755)
			}
			if err != nil {
				return bins{}, err
			}
		}
	}
	return copies, nil
}
