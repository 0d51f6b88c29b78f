package main

import (
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const someClaim = "f7a80c5f3e2d4b1a9c8e7d6f5a4b3c2d"

// FuzzAnswer checks that each accepted answer of a datastore contains only requested addresses, that each address has one
// text form and a claim that fits into a line of the state, and that an error comes without addresses.
func FuzzAnswer(f *testing.F) {
	for _, a := range []string{
		`{"addresses": {"10.1.2.5": "` + someClaim + `"}, "free": 3, "revision": 4}`,
		`{"addresses": {"10.1.2.5": "short"}}`, `{"addresses": {"10.1.2.5": "with space ` + someClaim + `"}}`,
		`{"addresses": {"::ffff:10.1.2.5": "` + someClaim + `"}}`, `{"addresses": {"fe80::1%eth0": "` + someClaim + `"}}`,
		`{"addresses": {"10.1.2.1": "` + someClaim + `", "10.9.9.9": "` + someClaim + `"}}`, `{"revision": -1}`, `{"free": -1}`, `null`, `[]`,
		`{"error": {"code": 11, "reason": "full", "msg": "no"}}`, `{"error": {}}`, `{"addresses": {"10.1.2.5": "` + someClaim + `"}, "error": {"code": 1, "reason": "x", "msg": "y"}}`,
	} {
		for verb := range 5 {
			f.Add(a, verb)
		}
	}
	five := netip.MustParseAddr("10.1.2.5")
	requests := []datastore.Request{
		{Verb: datastore.Claim, Want: 1, Ranges: []datastore.Range{{First: netip.MustParseAddr("10.1.2.1"), Last: netip.MustParseAddr("10.1.2.9")}}, Exclude: []netip.Prefix{netip.MustParsePrefix("10.1.2.1/32")}},
		{Verb: datastore.Claim, Requested: []netip.Addr{five}},
		{Verb: datastore.Release, Addresses: map[netip.Addr]string{five: someClaim}},
		{Verb: datastore.Register},
		{Verb: datastore.Resync, Addresses: map[netip.Addr]string{five: ""}},
	}
	f.Fuzz(func(t *testing.T, output string, n int) {
		req := requests[uint(n)%uint(len(requests))]
		a, err := decodeAnswer([]byte(output), req)
		if err != nil {
			return
		}
		if a.Error != nil && (len(a.Addresses) > 0 || a.Error.Code == 0 || a.Error.Msg == "") || a.Revision < 0 {
			t.Errorf("%s: %+v", output, a)
		}
		for ip := range a.Addresses {
			inRange := ip.Is4() && ip.Compare(netip.MustParseAddr("10.1.2.1")) > 0 && ip.Compare(netip.MustParseAddr("10.1.2.9")) <= 0
			if req.Verb == datastore.Claim && len(req.Requested) == 0 && !inRange || len(req.Requested)+len(req.Addresses) > 0 && ip != five {
				t.Errorf("%s: %s was not requested", output, ip)
			}
		}
		if req.Verb == datastore.Claim && a.Error == nil && len(a.Addresses) != 1 {
			t.Errorf("%s: %d addresses", output, len(a.Addresses))
		}
		st := owned.New("boot", "scope", a.Revision)
		maps.Copy(st.Claims, a.Addresses)
		again, ok := owned.Parse(st.Text())
		if !ok || !maps.Equal(again.Claims, st.Claims) {
			t.Errorf("%s: the state cannot contain it: %s", output, st.Text())
		}
	})
}

// FuzzState checks that each state that can be read survives a round trip, and that its addresses have one text form each.
func FuzzState(f *testing.F) {
	full := owned.New("boot", `cluster-local-etcd net n1 "/x"`, 7)
	full.Unsettled, full.Failed = true, time.Minute
	full.Free[netip.MustParseAddr("10.1.2.1")] = 3
	full.Claims[netip.MustParseAddr("fd00::1")] = someClaim
	f.Add(full.Text())
	f.Add("boot\n")
	f.Add("boot\n10.1.2.3 " + someClaim)
	f.Add("boot\nscope a\nlastRevision x\n")
	f.Add(strings.Repeat("\x00", 64))
	f.Fuzz(func(t *testing.T, text string) {
		st, ok := owned.Parse(text)
		if !ok {
			return
		}
		again, ok := owned.Parse(st.Text())
		if !ok || again.Text() != st.Text() || !maps.Equal(st.Claims, again.Claims) {
			t.Errorf("%q: %q", text, st.Text())
		}
		for ip, claim := range st.Claims {
			if !datastore.IsAddress(ip) || strings.ContainsAny(claim, " \n") {
				t.Errorf("%q: %s %q", text, ip, claim)
			}
		}
	})
}

// FuzzConfig checks that each accepted configuration contains names that can be keys of a store, and a warm pool and a
// timeout within their limits, and that its sets do not contain addresses of exclude or onRequestOnly.
func FuzzConfig(f *testing.F) {
	for _, keys := range []string{
		`{"subnet": "10.1.2.0/24", "datastore": {"type": "e"}}`,
		`{"subnet": "10.1.2.0/24", "segment": "lan", "node": "a", "warmPool": 0, "onRequestOnly": ["10.1.2.8/29"], "exclude": ["10.1.2.9"], "datastore": {"type": "e", "timeout": 60, "prefix": "/x y"}}`,
		`{"ranges": [[{"subnet": "fd00::/64"}, {"subnet": "fd01::/8"}]], "warmPool": -1, "datastore": {"type": ".."}}`,
		`{"subnet": "10.1.2.0/24", "datastore": null}`, `null`, `{"datastore": []}`, `{"onRequestOnly": [null], "datastore": {"timeout": 1e9}}`,
	} {
		f.Add(keys)
	}
	f.Fuzz(func(t *testing.T, keys string) {
		if !json.Valid([]byte(keys)) {
			return
		}
		h := host{pool.ThisMachine(), nil, func() (string, error) { return "n1", nil }, nil}
		p := h.plugin()
		p.Add = func(r *skel.Request) (*types.Result, error) {
			n, err := h.parse(r)
			if err == nil {
				checkNetwork(t, n)
			}
			return &types.Result{}, err
		}
		r := nstest.Run(p, nstest.Call{Command: "ADD", NetNS: "/dev/null", Config: `{"cniVersion": "1.0.0", "name": "net", "type": "x", "ipam": ` + keys + `}`})
		if r.Exit != 0 {
			if f := r.Failure(t); f.Code == types.CodeInternal {
				t.Errorf("%s: %s", keys, f)
			}
		}
	})
}

func checkNetwork(t *testing.T, n *network) {
	t.Helper()
	if !datastore.IsName(n.segment) || !datastore.IsName(strings.Replace(n.node, separator, "", 1)) || !datastore.IsName(n.program) || strings.Contains(n.scope, "\n") {
		t.Errorf("segment %q, node %q, datastore %q, scope %q", n.segment, n.node, n.program, n.scope)
	}
	if n.warmPool < 0 || n.warmPool > maxWarmPool || n.timeout < time.Second || n.timeout > maxTimeout*time.Second {
		t.Errorf("warmPool %d, timeout %s", n.warmPool, n.timeout)
	}
	for i, s := range n.sets {
		for _, p := range s.Exclude {
			if s.Contains(p.Addr()) || n.setIndex(p.Addr()) == i {
				t.Errorf("set %d contains %s, which is excluded", i, p)
			}
		}
		for free := range uint64(3) {
			st := owned.New("b", n.scope, 0)
			n.setFree(st, i, free<<uint(20*free))
			if target := n.target(st, i); target < 0 || target > n.warmPool {
				t.Errorf("target %d", target)
			}
		}
	}
}

// TestState compares the text of a state with a golden file, because other versions read it.
func TestState(t *testing.T) {
	st := owned.New("6f1e8a52-0000-4000-8000-000000000001", `cluster-local-etcd vlan7 n1:pods "/plumb/v1"`, 1234)
	st.ID, st.Store, st.Registered, st.Second = 5, someClaim, true, true
	st.Unsettled, st.Failed, st.Calls = true, 90*time.Second, owned.Calls{Total: 12, Failed: 3, LastSuccess: 1764270000}
	st.Free[netip.MustParseAddr("10.7.0.10")] = 113
	st.Free[netip.MustParseAddr("fd00::1")] = 1 << 53
	st.Claims[netip.MustParseAddr("10.7.0.41")] = someClaim
	st.Claims[netip.MustParseAddr("10.7.0.9")] = strings.Repeat("0", 32)
	nstest.Golden(t, "owned", st.Text())
	text, err := os.ReadFile("testdata/owned.golden")
	again, ok := owned.Parse(string(text))
	if err != nil || !ok || again.Text() != st.Text() {
		t.Errorf("read again: %v, %+v", err, again)
	}
}

func TestTargetShrinksAsThePoolFills(t *testing.T) {
	n := &network{warmPool: 8, sets: []pool.Set{{
		Ranges:  []pool.Range{{First: netip.MustParseAddr("10.0.0.0"), Last: netip.MustParseAddr("10.0.3.255")}},
		Exclude: []netip.Prefix{netip.MustParsePrefix("10.0.3.224/27"), netip.MustParsePrefix("10.0.3.232/32"), netip.MustParsePrefix("10.0.3.250/32"), netip.MustParsePrefix("10.0.4.0/24")},
	}}}
	if size := n.sets[0].Size(); size != 1024-32 {
		t.Fatalf("size %d", size)
	}
	st := owned.New("b", "s", 0)
	if got := n.target(st, 0); got != 8 {
		t.Errorf("got target %d before the number of free addresses is known, want 8", got)
	}
	for free, want := range map[uint64]int{992: 8, 298: 8, 297: 4, 149: 4, 148: 1, 80: 1, 79: 0, 0: 0} {
		n.setFree(st, 0, free)
		if got := n.target(st, 0); got != want {
			t.Errorf("got target %d with %d free, want %d", got, free, want)
		}
	}
	small := pool.Set{Ranges: []pool.Range{{First: netip.MustParseAddr("10.9.0.1"), Last: netip.MustParseAddr("10.9.0.14")}}}
	n.sets[0] = small
	n.setFree(st, 0, 14)
	if got := n.target(st, 0); got != 1 {
		t.Errorf("got target %d of 14 free addresses, want 1", got)
	}
}

func TestSetSize(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	for _, c := range []struct {
		name string
		set  pool.Set
		want uint64
	}{
		{"nothing excluded", pool.Set{Ranges: []pool.Range{{First: addr("10.0.0.1"), Last: addr("10.0.0.254")}}}, 254},
		{"a prefix that is partly outside", pool.Set{Ranges: []pool.Range{{First: addr("10.0.0.5"), Last: addr("10.0.0.20")}}, Exclude: []netip.Prefix{prefix("10.0.0.0/29")}}, 13},
		{"the same twice", pool.Set{Ranges: []pool.Range{{First: addr("10.0.0.1"), Last: addr("10.0.0.9")}}, Exclude: []netip.Prefix{prefix("10.0.0.1/32"), prefix("10.0.0.1/32")}}, 8},
		{"a /64", pool.Set{Ranges: []pool.Range{{First: addr("fd00::"), Last: addr("fd00::ffff:ffff:ffff:ffff")}}}, pool.MaxSize},
		{"more than a /64", pool.Set{Ranges: []pool.Range{{First: addr("fd00::"), Last: addr("fd01::")}}}, pool.MaxSize},
		{"all excluded", pool.Set{Ranges: []pool.Range{{First: addr("10.0.0.1"), Last: addr("10.0.0.9")}}, Exclude: []netip.Prefix{prefix("10.0.0.0/8")}}, 0},
	} {
		if got := c.set.Size(); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestMachine(t *testing.T) {
	dir := t.TempDir()
	uuid, id := filepath.Join(dir, "uuid"), filepath.Join(dir, "id")
	h := host{identity: []string{uuid, id}}
	if _, err := h.machineID(); err == nil || types.AsError(err).Code != types.CodeConfig {
		t.Errorf("without any: %v", err)
	}
	for path, text := range map[string]string{id: "0123\n", uuid: "4C4C-44\n"} {
		nstest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	if got, err := h.machineID(); err != nil || got != "4C4C-44/0123" {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{"", "00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "03000200-0400-0500-0006-000700080009", "Not Settable"} {
		nstest.Must(t, os.WriteFile(uuid, []byte(text), 0o600))
		if got, err := h.machineID(); err != nil || got != "0123" {
			t.Errorf("%q beside a machine ID: %q, %v", text, got, err)
		}
	}
	nstest.Must(t, os.WriteFile(id, []byte("uninitialized\n"), 0o600))
	if got, err := h.machineID(); err == nil || types.AsError(err).Code != types.CodeConfig || !strings.Contains(err.Error(), uuid) || !strings.Contains(err.Error(), id) {
		t.Errorf("bogus IDs only: %q, %v", got, err)
	}
}
