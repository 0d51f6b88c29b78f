package iptables

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

// newTool returns a Tool in a new namespace.
func newTool(t *testing.T, v Variant) Tool {
	t.Helper()
	return Tool{HostNS: nstest.New(t).Open(t, nil), Family: nft.IPv4, Variant: v}
}

func TestRestoreAppliesAllChangesOrNone(t *testing.T) {
	for _, v := range []Variant{Default, Legacy, NFT} {
		t.Run(string("iptables"+v), func(t *testing.T) {
			tool := newTool(t, v)
			nstest.Must(t, tool.Restore("add", "*nat\n-N A\n-A A -s 192.0.2.1 -m comment --comment "+Quote(`a "b" \c`)+" -j RETURN\nCOMMIT\n"))
			err := tool.Restore("add", "*nat\n-N B\n-N A\nCOMMIT\n")
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), ": add: ") {
				t.Errorf("Restore of a chain that already exists returned %v, want ErrRefused with the description", err)
			}
			table, err := tool.Read(Part{Table: NAT, Chains: []string{"A"}})
			if err != nil || len(table.Rules) != 1 {
				t.Fatalf("read %+v, %v, want one rule", table, err)
			}
			if table.HasChain("B") {
				t.Errorf("Restore executed a part of a refused script: %+v", table)
			}
			got := Words(table.Rules[0].Line)
			want := []string{"-A", "A", "-s", "192.0.2.1/32", "-m", "comment", "--comment", `a "b" \c`, "-j", "RETURN"}
			if !slices.Equal(got, want) {
				t.Errorf("want a saved rule with the words %q, got %q", want, got)
			}
			if _, found, err := LegacyTool(tool.HostNS, nft.IPv4, "nat"); err != nil || found != (v == Legacy) {
				t.Errorf("LegacyTool of nat = %v, %v, want %v", found, err, v == Legacy)
			}
		})
	}
}

func TestProgramReturnsWhyItFailed(t *testing.T) {
	host, shell := newTool(t, Default).HostNS, Program{Path: "/bin/sh", Args: []string{"-c", "read line; echo $line; echo two words >&2; exit 3"}, Stdin: "in\n", Limit: time.Minute}
	_, err := shell.Run(host, "run sh")
	var exit *ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || err.Error() != "run sh: exit status 3: two words" {
		t.Errorf("the error is %v, want an ExitError with status 3 and what the program wrote to stderr", err)
	}
	shell.Args[1] = "read line; echo $line"
	if out, err := shell.Run(host, "run sh"); err != nil || out != "in\n" {
		t.Errorf("Run returned %q, %v, want what the program wrote to stdout", out, err)
	}
	shell.Args[1], shell.Limit = "while :; do :; done", time.Millisecond
	_, err = shell.Run(host, "run sh")
	expectCode(t, err, types.CodeTryAgain)
}

func TestChangeTriesAgainAfterARefusal(t *testing.T) {
	tool := newTool(t, Default)
	calls := 0
	err := tool.Change(Part{Table: NAT}, "add A", func(table Table) (string, error) {
		if calls++; calls == 1 { // another program creates the chain in the meantime
			if err := tool.Restore("add A before", Script(NAT, "-N A")); err != nil {
				t.Error(err)
			}
		}
		if table.HasChain("A") {
			return Script(NAT), nil
		}
		return Script(NAT, "-N A"), nil
	})
	if err != nil || calls != 2 {
		t.Errorf("Change returned %v after %d calls of the function, want nil after 2", err, calls)
	}
	expectCode(t, tool.Change(Part{Table: NAT}, "add A", func(Table) (string, error) { return Script(NAT, "-N A"), nil }), types.CodeConfig)
	wrong := errors.New("wrong")
	if err := tool.Change(Part{Table: NAT}, "add A", func(Table) (string, error) { return Script(NAT, "-N B"), wrong }); !errors.Is(err, wrong) {
		t.Errorf("Change returned %v, want the error of the function", err)
	}
	if table, err := tool.Read(Part{Table: NAT}); err != nil || table.HasChain("B") {
		t.Errorf("Change executed the script of a function that failed: %v, %+v", err, table)
	}
}

func TestRestoreReturnsTryAgainIfLockIsHeld(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	f, err := os.Create(lock)
	nstest.Must(t, err)
	defer func() { _ = f.Close() }()
	nstest.Must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	tool := newTool(t, Legacy)
	expectCode(t, tool.restore("add", "*nat\n-N A\nCOMMIT\n", time.Second), types.CodeTryAgain)
}

func TestErrorNamesMissingProgram(t *testing.T) {
	tool := newTool(t, "-nonesuch")
	for _, err := range []error{tool.Find(), tool.Restore("add", "")} {
		expectCode(t, err, types.CodeConfig)
		if err != nil && !strings.Contains(err.Error(), "program iptables-nonesuch-restore: ") || err != nil && !strings.HasSuffix(err.Error(), "; install iptables") {
			t.Errorf("want an error that names the program and what to do, got %v", err)
		}
	}
}

func TestFindFindsProgramIfPATHIsEmpty(t *testing.T) {
	t.Setenv("PATH", "")
	if err := newTool(t, Default).Find(); err != nil {
		t.Error(err)
	}
}

// expectCode fails the test if err does not have this error code.
func expectCode(t *testing.T, err error, code uint) {
	t.Helper()
	var coded *types.Error
	if !errors.As(err, &coded) || coded.Code != code {
		t.Errorf("the error is %v, want an error with code %d", err, code)
	}
}

// FuzzQuote checks that Words returns a quoted text as one word, with its original content.
func FuzzQuote(f *testing.F) {
	f.Add(`name: "net1" id: "cid1"`)
	f.Add(`\`)
	f.Fuzz(func(t *testing.T, s string) {
		if !strings.ContainsAny(s, "\n\x00") && strings.ToValidUTF8(s, "") == s {
			if got := Words("-a " + Quote(s) + " b"); !slices.Equal(got, []string{"-a", s, "b"}) {
				t.Errorf("Words(Quote(%q)) = %q", s, got)
			}
		}
	})
}

func TestProgramWaitsAMinuteForTheLock(t *testing.T) {
	tool, dir := newTool(t, Default), t.TempDir()
	nstest.Must(t, os.WriteFile(filepath.Join(dir, "iptables-restore"), []byte("#!/bin/sh\necho \"$@\" >&2\nexit 1\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if err := tool.Restore("add", ""); err == nil || !strings.HasSuffix(err.Error(), "--wait 60: refused") {
		t.Errorf("%v, want the argument --wait 60", err)
	}
}

func TestWithLockRunsOneFunctionAtATime(t *testing.T) {
	tool := newTool(t, Default)
	other, err := ns.Open(tool.HostNS.Path(), nil)
	nstest.Must(t, err)
	defer func() { _ = other.Close() }()
	err = withLock(tool.HostNS, time.Minute, func() error {
		err := withLock(other, time.Millisecond, func() error { t.Error("withLock ran two functions at the same time"); return nil })
		expectCode(t, err, types.CodeTryAgain)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	third, err := ns.Open(tool.HostNS.Path(), nil)
	nstest.Must(t, err)
	defer func() { _ = third.Close() }()
	// The second call of withLock has returned, but its flock(2) still waits in the background. If it
	// gets the lock before third does, closing other releases the lock.
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	ran := false
	if err := withLock(third, time.Minute, func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("want withLock to run the function with a free lock, got %v (function run: %t)", err, ran)
	}
}

func TestParseReadsListedRules(t *testing.T) {
	table := Parse("-P FORWARD DROP", "-N A", "-A A -s 192.0.2.1/32 -p tcp -m comment --comment \"a \\\"b\\\"\" -m multiport --dports 80,81 -j DNAT --to-destination 10.0.0.1:80",
		"-A A -s 192.0.2.1/32 -p tcp -m multiport --dports 80,81")
	rules := table.Rules
	if len(rules) != 2 || !slices.Equal(table.Closed, []string{"FORWARD"}) {
		t.Fatalf("parsed %+v, want two rules and the closed chain FORWARD", table)
	}
	r := rules[0]
	if r.Chain != "A" || r.Source != netip.MustParsePrefix("192.0.2.1/32") || r.Comment != `a "b"` || r.Jump != "DNAT" || r.Matches != rules[1].Matches || rules[1].Jump != "" {
		t.Errorf("parsed %+v, want two rules that differ in comment and target only", rules)
	}
	if !r.Mentions(netip.MustParseAddr("10.0.0.1")) || r.Mentions(netip.MustParseAddr("10.0.0.11")) || r.Mentions(netip.MustParseAddr("fd00::1")) {
		t.Error("Mentions must return true for 10.0.0.1, and false for 10.0.0.11 and fd00::1")
	}
	if want := "-D A -s 192.0.2.1/32 -p tcp -m multiport --dports 80,81"; rules[1].Deletion() != want {
		t.Errorf("the deletion of the rule is %s, want %s", rules[1].Deletion(), want)
	}
}

func TestGoIPTablesFindsTheRulesOfRestore(t *testing.T) {
	tool := newTool(t, Default)
	comment := `a "b" \c`
	nstest.Must(t, tool.Restore("add", Script(NAT, "-N A", "-A A -s 192.0.2.1/32 -m comment --comment "+Quote(comment)+" -j RETURN")))
	err := tool.HostNS.Do(func() error {
		program, err := goiptables.New()
		if err != nil {
			return err
		}
		found, err := program.Exists(NAT, "A", "-s", "192.0.2.1", "-m", "comment", "--comment", comment, "-j", "RETURN")
		if !found {
			t.Error("go-iptables does not find the rule")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestChangeDeletesRulesAndChains(t *testing.T) {
	for _, v := range []Variant{Legacy, NFT} {
		t.Run(string("iptables"+v), func(t *testing.T) {
			tool := newTool(t, v)
			nstest.Must(t, tool.Restore("add", Script(NAT, "-N A", "-A A -m comment --comment "+Quote(`"b" \c`)+" -j RETURN", `-A A -i "a\"b" -j RETURN`)))
			part := Part{Table: NAT, Chains: []string{"A"}}
			for range 2 {
				nstest.Must(t, tool.Change(part, "delete", func(table Table) (string, error) { return Script(NAT, table.Rules[0].Deletion()), nil }))
			}
			if table, err := tool.Read(part); err != nil || len(table.Rules) > 0 || !table.HasChain("A") {
				t.Errorf("read %+v, %v, want a chain without rules", table, err)
			}
			nstest.Must(t, tool.Change(part, "delete", func(Table) (string, error) { return Script(NAT, "-F A", "-X A"), nil }))
			if table, err := tool.Read(part); err != nil || table.HasChain("A") {
				t.Errorf("read %+v, %v, want no chain A", table, err)
			}
		})
	}
}

func TestReadRunsProgramsAgainOnlyAfterAChange(t *testing.T) {
	programs := 0
	host := nstest.New(t).Open(t, &trace.Tracer{Before: func(step string) error {
		programs += strings.Count(step, "iptables: ")
		return nil
	}})
	host.Memo = map[string]any{}
	tool := Tool{HostNS: host, Family: nft.IPv4}
	part := Part{Table: NAT, Chains: []string{"A", "B"}}
	rules := func() int {
		table, err := tool.Read(part)
		nstest.Must(t, err)
		return len(table.Rules)
	}
	nstest.Must(t, tool.Restore("add", Script(NAT, "-N A", "-A A -j RETURN")))
	for range 2 { // the change of the other family changes nothing
		if n := rules(); n != 1 || programs != 3 {
			t.Fatalf("read %d rules with %d programs, want 1 with 3 (version, chains, chain A)", n, programs)
		}
		nstest.Must(t, Tool{HostNS: host, Family: nft.IPv6}.Restore("add", Script(NAT, "-F")))
	}
	nstest.Must(t, Tool{HostNS: host, Family: nft.IPv4, Variant: NFT}.Restore("add", Script(NAT, "-A A -j RETURN")))
	if n := rules(); n != 2 || programs != 5 {
		t.Errorf("read %d rules with %d programs after a change, want 2 with 5", n, programs)
	}
	nstest.Must(t, tool.Change(part, "add", func(table Table) (string, error) { return Script(NAT, "-A A -j RETURN"), nil }))
	if n := rules(); n != 3 || programs != 9 {
		t.Errorf("read %d rules with %d programs after two changes, want 3 with 9, because Change reads the rules again", n, programs)
	}
}

func TestReadFollowsJumpsAndPrefixes(t *testing.T) {
	tool := newTool(t, Default)
	nstest.Must(t, tool.Restore("add", Script(NAT, "-N A", "-N B", "-N C", "-N P-1", "-A A -j B", "-A A -p tcp -j C", "-A B -j RETURN", "-A C -j RETURN", "-A P-1 -j RETURN")))
	table, err := tool.Read(Part{Table: NAT, Chains: []string{"A", "none"}, Prefix: "P-", Follow: func(r Rule) bool { return r.Matches == "" }})
	var lines []string
	for _, r := range table.Rules {
		lines = append(lines, r.Line)
	}
	slices.Sort(lines)
	if want := []string{"-A A -j B", "-A A -p tcp -j C", "-A B -j RETURN", "-A P-1 -j RETURN"}; err != nil || !slices.Equal(lines, want) {
		t.Errorf("read %q, %v, want %q", lines, err, want)
	}
}

func TestReadKillsAProgramThatDoesNotEnd(t *testing.T) {
	tool, dir := newTool(t, Default), t.TempDir()
	nstest.Must(t, os.WriteFile(filepath.Join(dir, "iptables"), []byte("#!/bin/sh\nwhile :; do :; done\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	path, err := tool.path("")
	nstest.Must(t, err)
	c := &client{host: tool.HostNS, path: path, limit: time.Millisecond}
	expectCode(t, c.run("read the version", func() (err error) {
		c.program, err = goiptables.New(goiptables.Path(path))
		return err
	}), types.CodeTryAgain)
}
