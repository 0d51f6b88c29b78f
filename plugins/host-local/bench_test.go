package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BenchmarkPool runs the built plugin, as a runtime does, with an empty pool and with a pool of 60000
// reservations of other attachments. The larger pool should take at most 1.3 times as long, except in
// DEL-unknown, which reads all reservations, and in ADD-cursor-before and ADD-last-free, which list the directory:
//
//	go test ./plugins/host-local -run '^$' -bench Pool -benchtime 100x
func BenchmarkPool(b *testing.B) {
	bin := filepath.Join(b.TempDir(), "host-local")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	empty, full := benchPool{bin: bin, dir: b.TempDir()}, benchPool{bin: bin, dir: b.TempDir(), n: 60000}
	for _, p := range []benchPool{empty, full} {
		p.fill(b)
	}
	for _, bench := range []struct {
		name string
		run  func(benchPool, *testing.B)
	}{
		{"ADD", func(p benchPool, b *testing.B) { p.cycle(b, "ADD") }},
		{"CHECK", func(p benchPool, b *testing.B) { p.cycle(b, "CHECK") }},
		{"DEL", func(p benchPool, b *testing.B) { p.cycle(b, "DEL") }},
		{"DEL-unknown", func(p benchPool, b *testing.B) { p.repeat(b, "DEL", "nobody", nil) }},
		{"STATUS", func(p benchPool, b *testing.B) { p.repeat(b, "STATUS", "", nil) }},
		{"ADD-cursor-before", benchPool.addBeforeTaken},
		{"ADD-last-free", func(p benchPool, b *testing.B) {
			p.end = address(p.n)
			p.addBeforeTaken(b)
		}},
	} {
		for _, p := range []benchPool{empty, full} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, p.n), func(b *testing.B) { bench.run(p, b) })
		}
	}
}

// address returns the n-th address that is allocated from 10.0.0.0/15.
func address(n int) string {
	n += 2
	return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)
}

// A benchPool is a data directory with n reservations of other attachments.
type benchPool struct {
	bin, dir string
	n        int
	end      string // rangeEnd, or empty for the default
}

// fill writes the reservations as the reference plugin does.
func (p benchPool) fill(b *testing.B) {
	dir := filepath.Join(p.dir, "net")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	for i := range p.n {
		if err := os.WriteFile(filepath.Join(dir, address(i)), fmt.Appendf(nil, "container-%064d\r\neth0", i), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if p.n > 0 {
		p.cursor(b, address(p.n-1))
	}
}

// cursor writes ip as the address that was allocated last.
func (p benchPool) cursor(b *testing.B, ip string) {
	if err := os.WriteFile(filepath.Join(p.dir, "net", "last_reserved_ip.0"), []byte(ip), 0o600); err != nil {
		b.Fatal(err)
	}
}

func (p benchPool) run(b *testing.B, command, id string) {
	cmd := exec.Command(p.bin)
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/dev/null", "CNI_PATH=/nowhere",
	}
	cmd.Stdin = bytes.NewBufferString(fmt.Sprintf(
		`{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.0.0.0/15", "rangeEnd": "%s", "dataDir": "%s"}}`, p.end, p.dir))
	if out, err := cmd.Output(); err != nil {
		b.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// cycle calls ADD, CHECK and DEL for a new container each time, and measures one of the three commands.
func (p benchPool) cycle(b *testing.B, command string) {
	b.StopTimer()
	for i := range b.N {
		for _, c := range []string{"ADD", "CHECK", "DEL"} {
			if c == command {
				b.StartTimer()
			}
			p.run(b, c, fmt.Sprintf("c%d", i))
			b.StopTimer()
		}
	}
}

// addBeforeTaken measures an ADD whose search begins before all reserved addresses.
func (p benchPool) addBeforeTaken(b *testing.B) {
	p.repeat(b, "ADD", "c", func() { p.run(b, "DEL", "c"); p.cursor(b, "10.0.0.1") })
}

// repeat measures a command. It calls prepare before each call, if prepare is not nil.
func (p benchPool) repeat(b *testing.B, command, id string, prepare func()) {
	for b.Loop() {
		if prepare != nil {
			b.StopTimer()
			prepare()
			b.StartTimer()
		}
		p.run(b, command, id)
	}
}
