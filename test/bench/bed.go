package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A bed implements nstest.TB for a scenario. At the end of the scenario, it removes everything that nstest created for
// it.
type bed struct {
	root     string
	temps    int
	cleanups []func()
	errs     []error
}

// A failure is the panic value of Fatalf. guard returns it as an error.
type failure struct{ error }

// errSkipped matches the error of a scenario that needs a feature that the kernel lacks.
var errSkipped = errors.New("skipped")

func (b *bed) Helper()                   {}
func (b *bed) Name() string              { return "bench" }
func (b *bed) Cleanup(f func())          { b.cleanups = append(b.cleanups, f) }
func (b *bed) Logf(string, ...any)       {}
func (b *bed) Failed() bool              { return len(b.errs) > 0 }
func (b *bed) Errorf(f string, a ...any) { b.errs = append(b.errs, fmt.Errorf(f, a...)) }
func (b *bed) Fatalf(f string, a ...any) { panic(failure{fmt.Errorf(f, a...)}) }
func (b *bed) Skipf(f string, a ...any) {
	panic(failure{fmt.Errorf("%w: %w", errSkipped, fmt.Errorf(f, a...))})
}

// TempDir creates a directory that is removed with the bed.
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

// withBed runs f on a new bed, and removes what f created.
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

// A side is a set of executables to compare, with its own host, containers and state directory.
type side struct {
	*bed
	role
	bin        string // the directory of the executables
	host       *nstest.NS
	containers []*nstest.NS
	dir        string
}

// A role describes how a side differs from the other sides.
type role struct {
	name      string
	reference bool
	fill      int    // the number of reservations or mappings of other containers
	backend   string // the value of the key ipMasqBackend or backend
}

func newSide(b *bed, r role, bins bins) *side {
	s := &side{bed: b, role: r, bin: bins.plumb, dir: b.TempDir(), host: nstest.NewHost(b)}
	if r.reference {
		s.bin = bins.reference
	}
	s.containers = append(s.containers, nstest.New(b))
	return s
}

// bins contains the directories of the executables.
type bins struct{ plumb, reference string }

// installed copies the executables of both sides into root. A process starts a sixth faster from such a copy than from
// a file that the linker wrote, or that was read page by page. The reason is that the kernel maps a file in the pieces
// in which it entered the page cache.
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
