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

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
	"golang.org/x/sys/unix"
)

// newTool returns a Tool in a new namespace.
func newTool(t *testing.T, v Variant) Tool {
	t.Helper()
	h, err := ns.Open(nstest.New(t).Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return Tool{Node: h, Family: V4, Variant: v}
}

func TestRestoreMakesAllChangesOrNone(t *testing.T) {
	for _, v := range []Variant{Default, Legacy, "-nft"} {
		t.Run(string("iptables"+v), func(t *testing.T) {
			p := newTool(t, v)
			if err := p.Restore("add", "*nat\n-N A\n-A A -s 192.0.2.1 -m comment --comment "+Quote(`a "b" \c`)+" -j RETURN\nCOMMIT\n"); err != nil {
				t.Fatal(err)
			}
			err := p.Restore("add", "*nat\n-N B\n-N A\nCOMMIT\n")
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), ": add: ") {
				t.Errorf("a chain that exists: %v, want ErrRefused", err)
			}
			saved, err := p.Save("nat")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(saved, ":B") {
				t.Errorf("a part of a refused script was executed:\n%s", saved)
			}
			i := strings.Index(saved, "-A A")
			got := Words(strings.SplitN(saved[i:], "\n", 2)[0])
			want := []string{"-A", "A", "-s", "192.0.2.1/32", "-m", "comment", "--comment", `a "b" \c`, "-j", "RETURN"}
			if !slices.Equal(got, want) {
				t.Errorf("words %q, want %q", got, want)
			}
			if used, err := InUse(p.Node, V4, "nat"); err != nil || used != (v == Legacy) {
				t.Errorf("older tables in use: %v, %v", used, err)
			}
		})
	}
}

func TestRestoreReturnsTryAgainIfTheLockIsHeld(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p := newTool(t, Legacy)
	p.Wait = time.Second
	expectCode(t, p.Restore("add", "*nat\n-N A\nCOMMIT\n"), types.CodeTryAgain)
}

func TestErrorNamesAMissingProgram(t *testing.T) {
	p := newTool(t, "-nonesuch")
	for _, err := range []error{p.Find(), p.Restore("add", "")} {
		expectCode(t, err, types.CodeConfig)
		if err != nil && !strings.Contains(err.Error(), "iptables-nonesuch-restore: install iptables") {
			t.Errorf("the error does not say what to do: %v", err)
		}
	}
}

func TestFindWithoutPATH(t *testing.T) {
	t.Setenv("PATH", "")
	if err := newTool(t, Default).Find(); err != nil {
		t.Error(err)
	}
}

func expectCode(t *testing.T, err error, code uint) {
	t.Helper()
	var coded *types.Error
	if !errors.As(err, &coded) || coded.Code != code {
		t.Errorf("error %v, want one with code %d", err, code)
	}
}

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

func TestExclusive(t *testing.T) {
	p := newTool(t, Default)
	other, err := ns.Open(p.Node.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	err = Exclusive(p.Node, time.Minute, func() error {
		err := Exclusive(other, time.Millisecond, func() error { t.Error("both functions run at the same time"); return nil })
		var coded *types.Error
		if !errors.As(err, &coded) || coded.Code != types.CodeTryAgain {
			t.Errorf("%v, want code %d", err, types.CodeTryAgain)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	third, err := ns.Open(p.Node.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = third.Close() }()
	// The call of other still waits in the background. It may get the lock before third does,
	// and loses it when other is closed.
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	ran := false
	if err := Exclusive(third, time.Minute, func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("%v, ran: %t", err, ran)
	}
}

func TestParse(t *testing.T) {
	table := Parse("*nat\n:A - [0:0]\n-A A -s 192.0.2.1/32 -p tcp -m comment --comment \"a \\\"b\\\"\" -m multiport --dports 80,81 -j DNAT --to-destination 10.0.0.1:80\n" +
		"-A A -s 192.0.2.1/32 -p tcp -m multiport --dports 80,81\nCOMMIT\n")
	rules := table.Rules
	if len(rules) != 2 || !table.HasChain("A") || table.HasChain("B") {
		t.Fatalf("%+v", table)
	}
	r := rules[0]
	if r.Chain != "A" || r.Source != netip.MustParsePrefix("192.0.2.1/32") || r.Comment != `a "b"` || r.Jump != "DNAT" || r.Matches != rules[1].Matches || rules[1].Jump != "" {
		t.Errorf("%+v", rules)
	}
	if !r.Mentions(netip.MustParseAddr("10.0.0.1")) || r.Mentions(netip.MustParseAddr("10.0.0.11")) || r.Mentions(netip.MustParseAddr("fd00::1")) {
		t.Error("Mentions does not distinguish the target's address from others")
	}
	if want := "-D A -s 192.0.2.1/32 -p tcp -m multiport --dports 80,81"; rules[1].Deletion() != want {
		t.Errorf("%s, want %s", rules[1].Deletion(), want)
	}
}
