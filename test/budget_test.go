package test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A budget is the number of lines of Go that a package, plugin or program may have without its tests, in multiples of 20. A
// change that needs more raises it, and says why. A change that needs less lowers it.
type budget struct {
	lines int
	why   string // why it was raised
}

// budgets lists the budget of each package under pkg, of each plugin, and of the tool, with their
// subdirectories.
var budgets = map[string]budget{
	"cmd/cni-conformance":     {lines: 3420},
	"cmd/plumb":               {lines: 13300, why: "reading, judging and removing are packages of their own"},
	"pkg/attach":              {lines: 2060},
	"pkg/claims":              {lines: 840},
	"pkg/hostfile":            {lines: 280},
	"pkg/invoke":              {lines: 580},
	"pkg/ipam":                {lines: 340},
	"pkg/iptables":            {lines: 920, why: "go-iptables reads the rules; what it lacks (time limit, namespace, single listings) is here"},
	"pkg/lock":                {lines: 140},
	"pkg/masq":                {lines: 560},
	"pkg/nft":                 {lines: 2140, why: "rules of iptables are read with their matches, so that firewall runs no program to check and delete them"},
	"pkg/nl":                  {lines: 4180, why: "a list that changes meanwhile is requested again"},
	"pkg/ns":                  {lines: 300},
	"pkg/pool":                {lines: 2760},
	"pkg/skel":                {lines: 1480, why: "errors of environment variables say what is allowed, and long values are shortened"},
	"pkg/statefile":           {lines: 240},
	"pkg/sysctl":              {lines: 280},
	"pkg/tables":              {lines: 200},
	"pkg/trace":               {lines: 440},
	"pkg/types":               {lines: 1660, why: "the errors of routes and MACs begin with the key"},
	"pkg/undo":                {lines: 80},
	"pkg/version":             {lines: 60},
	"plugins/bandwidth":       {lines: 840},
	"plugins/bridge":          {lines: 2000},
	"plugins/cluster-local":   {lines: 5880, why: "both datastores and what they share are in its subtree"},
	"plugins/dhcp":            {lines: 3220, why: "the daemon and the DHCP client are in its subtree"},
	"plugins/dummy":           {lines: 120},
	"plugins/firewall":        {lines: 1780},
	"plugins/host-access":     {lines: 740, why: "the code was in pkg/attach; the filter of what a container reaches is new; DEL finds a pair without its alias"},
	"plugins/host-device":     {lines: 1380, why: "DEL finds a namespace that only processes keep; CHECK and REPAIR of a copied configuration, which no other plugin uses"},
	"plugins/host-local":      {lines: 100},
	"plugins/ipvlan":          {lines: 320},
	"plugins/loopback":        {lines: 140},
	"plugins/macvlan":         {lines: 220},
	"plugins/portmap":         {lines: 2440},
	"plugins/ptp":             {lines: 480},
	"plugins/route-override":  {lines: 340},
	"plugins/sbr":             {lines: 660},
	"plugins/static":          {lines: 280},
	"plugins/tap":             {lines: 300},
	"plugins/tc-redirect-tap": {lines: 360},
	"plugins/tuning":          {lines: 900},
	"plugins/vlan":            {lines: 320},
	"plugins/vrf":             {lines: 440},
}

// TestBudgets compares the budgets with the sources.
func TestBudgets(t *testing.T) {
	counted := map[string]int{}
	for _, pattern := range []string{"pkg/*", "plugins/*", "cmd/*"} {
		dirs, err := filepath.Glob("../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if n := countLines(t, dir); n > 0 {
				counted[strings.TrimPrefix(dir, "../")] = n
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		n := (counted[name] + 19) / 20 * 20
		switch b, ok := budgets[name]; {
		case !ok:
			t.Errorf("%s has no budget; add %q: {lines: %d}", name, name, n)
		case n > b.lines:
			t.Errorf("%s has %d lines; its budget is %d (%s): remove something, or raise it to %d and say why", name, counted[name], b.lines, b.why, n)
		case n < b.lines:
			t.Errorf("%s has %d lines; lower its budget from %d to %d", name, counted[name], b.lines, n)
		}
	}
	for name := range budgets {
		if counted[name] == 0 {
			t.Errorf("%s has a budget, but no sources", name)
		}
	}
}

// countLines returns the number of lines of the Go files in a directory and its subdirectories, without tests.
func countLines(t *testing.T, dir string) (lines int) {
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		lines += bytes.Count(text, []byte("\n"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
