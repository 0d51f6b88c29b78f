package attach_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func lease() []types.IP {
	return []types.IP{
		{Address: prefix("10.9.0.2/24"), Gateway: addr("10.9.0.1")},
		{Address: prefix("fd00::2/64"), Gateway: addr("fd00::1")},
	}
}

func TestRoutesHaveTheGatewayOfTheirFamilyAndNoDuplicates(t *testing.T) {
	got := attach.Routes(lease(), []types.Route{
		{Dst: prefix("0.0.0.0/0")},
		{Dst: prefix("0.0.0.0/0"), GW: addr("10.9.0.1")},
		{Dst: prefix("::/0")},
		{Dst: prefix("::/0"), GW: addr("fd00::1"), Priority: 1024},
		{Dst: prefix("10.7.0.0/16"), GW: addr("10.9.0.7"), MTU: 1300, AdvMSS: 1200, Priority: 5, Table: 100},
	})
	want := []string{
		"0.0.0.0/0 via 10.9.0.1", "::/0 via fd00::1", "10.7.0.0/16 via 10.9.0.7 table 100 metric 5 mtu 1300 advmss 1200",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got[2].MTU != 1300 || got[2].AdvMSS != 1200 {
		t.Errorf("metrics lost: %+v", got[2])
	}
}

func TestARouteWithoutAGatewayIsOnTheLink(t *testing.T) {
	ips := []types.IP{{Address: prefix("10.9.0.2/24")}}
	got := attach.Routes(ips, []types.Route{{Dst: prefix("10.8.0.0/16")}, {Dst: prefix("fd01::/64")}})
	if got[0].Scope != nl.ScopeLink || got[0].GW.IsValid() || got[1].Scope != nl.ScopeGlobal {
		t.Errorf("got %+v", got)
	}
}

func TestContainerSpecAndContainerSysctlsFollowTheDADMode(t *testing.T) {
	for _, c := range []struct {
		dad               attach.DADMode
		noDAD, optimistic bool
		acceptDAD         string
	}{
		{attach.DADOff, true, false, "0"},
		{attach.DADOn, false, false, "1"},
		{attach.DADOptimistic, false, true, "1"},
	} {
		s := attach.ContainerSpec("eth0", c.dad, lease(), nil)
		if a := s.Addrs[1]; a.NoDAD != c.noDAD || a.Optimistic != c.optimistic {
			t.Errorf("DAD mode %d: address %+v", c.dad, a)
		}
		if a := s.Addrs[0]; a.NoDAD || a.Optimistic {
			t.Errorf("DAD mode %d: IPv4 address %+v", c.dad, a)
		}
		sysctls := attach.ContainerSysctls("eth0", c.dad)
		for key, value := range map[string]string{"accept_dad": c.acceptDAD, "ndisc_notify": "1"} {
			if want := (sysctl.Setting{Key: sysctl.IPv6("eth0", key), Value: value, Optional: true}); !slices.Contains(sysctls, want) {
				t.Errorf("DAD mode %d: no %+v in %+v", c.dad, want, sysctls)
			}
		}
	}
	only4 := attach.ContainerSpec("eth0", attach.DADOff, lease()[:1], nil)
	if len(only4.Sysctls) != 0 {
		t.Errorf("a container without an IPv6 address gets %+v", only4.Sysctls)
	}
}

func TestLinkAliasIsShortEnoughForLongNames(t *testing.T) {
	long := types.Attachment{Network: strings.Repeat("n", 200), ContainerID: strings.Repeat("c", 300), IfName: "eth0123456789ab"}
	other := long
	other.ContainerID += "x"
	if a := attach.LinkAlias(long); len(a) > 255 || a == attach.LinkAlias(other) {
		t.Errorf("%d bytes: %s", len(a), a)
	}
	short := types.Attachment{Network: "net1", ContainerID: "cid", IfName: "eth0"}
	if a := attach.LinkAlias(short); a != "plumb:net1/cid/eth0" {
		t.Error(a)
	}
}

// A testbed is a host with a container, and netlink connections to both.
type testbed struct {
	hostNS, containerNS *nstest.NS
	host, container     *nl.Conn
}

func newTestbed(t *testing.T) testbed {
	t.Helper()
	b := testbed{}
	b.hostNS, b.containerNS = nstest.NewHostAndContainer(t)
	b.host, b.container = connect(t, b.hostNS), connect(t, b.containerNS)
	return b
}

func connect(t *testing.T, n *nstest.NS) *nl.Conn {
	t.Helper()
	c, err := nl.Open(n.Open(t, &trace.Tracer{}))
	nstest.Must(t, err)
	return c
}

func attachment(id string) types.Attachment {
	return types.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}
}

// request returns a DEL of the attachment. prev may be nil.
func (b testbed) request(t *testing.T, id string, prev *types.Result) *skel.Request {
	t.Helper()
	r := &skel.Request{Command: "DEL", ContainerID: id, IfName: "eth0", HostNS: b.hostNS.Open(t, &trace.Tracer{}), Version: types.Newest}
	r.Conf.Name = "net1"
	if prev != nil {
		text, err := prev.Marshal(types.Newest)
		nstest.Must(t, err)
		r.Conf.PrevResult = text
	}
	return r
}

func (b testbed) add(t *testing.T, id string) nl.Link {
	t.Helper()
	var u undo.Stack
	hostEnd, _, err := attach.AddVeth(&u, attach.Pair{Host: b.host, Container: b.container, Owner: attachment(id)})
	nstest.Must(t, err)
	return hostEnd
}

// hostName returns the first name that AddVeth tries for the host end of the attachment.
func (b testbed) hostName(t *testing.T, id string) string {
	t.Helper()
	host, container := connect(t, nstest.New(t)), connect(t, nstest.New(t))
	return testbed{host: host, container: container}.add(t, id).Name
}

func (b testbed) del(t *testing.T, id string) {
	t.Helper()
	wait, err := attach.DelVeth(b.request(t, id, nil), b.host, nil)
	nstest.Must(t, err)
	nstest.Must(t, wait())
}

func TestParseAliasAndOwnerOfReadTheAttachment(t *testing.T) {
	long := strings.Repeat("n", 200)
	short := types.Attachment{Network: "net1", ContainerID: "cid", IfName: "eth0"}
	longNetwork := types.Attachment{Network: long, ContainerID: "cid", IfName: "eth0"}
	none := types.Attachment{}
	for _, c := range []struct {
		alias             string
		owner             types.Attachment // as ParseAlias returns it, which any network can call
		created, complete bool
		ofNetwork         types.Attachment // as OwnerOf returns it, which knows the network
	}{
		{attach.LinkAlias(short), short, true, true, short},
		{attach.LinkAlias(longNetwork), none, true, false, longNetwork},
		{attach.LinkAlias(types.Attachment{Network: "net1", ContainerID: long, IfName: "eth0"}), none, true, false, none},
		{"", none, false, false, none},
		{"uplink", none, false, false, none},
		{"net1/cid/eth0", none, false, false, none},
		{"plumb:net1/cid", none, false, false, none},
	} {
		l := nl.Link{Alias: c.alias}
		owner, created, complete := attach.ParseAlias(l)
		if created != c.created || created && (complete != c.complete || complete && owner != c.owner) {
			t.Errorf("ParseAlias(%q) = %v, %t, %t", c.alias, owner, created, complete)
		}
		for network, want := range map[string]types.Attachment{"net": none, "net1": none, c.ofNetwork.Network: c.ofNetwork} {
			if got, ok := attach.OwnerOf(l, network); ok != (want != none) || ok && got != want {
				t.Errorf("OwnerOf(%q) in network %s = %v, %t, want %v", c.alias, network, got, ok, want)
			}
		}
	}
}

// TestAddVethTakesTheNextNameIfALinkHasTheFirst checks links of another attachment and of another program. DEL must not
// delete them.
func TestAddVethTakesTheNextNameIfALinkHasTheFirst(t *testing.T) {
	for _, alias := range []string{attach.LinkAlias(attachment("other")), ""} {
		b := newTestbed(t)
		first := b.hostName(t, "one")
		b.hostNS.Must(t, "ip", "link", "add", first, "type", "veth", "peer", "name", "x0")
		b.hostNS.Must(t, "ip", "link", "set", first, "alias", alias)
		if l, err := attach.HostEnd(b.host, attachment("one"), nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the other link is found as the host end: %+v, %v", l, err)
		}
		second := b.add(t, "one").Name
		if second == first {
			t.Fatalf("both are %s", first)
		}
		if found, err := attach.HostEnd(b.host, attachment("one"), nil); err != nil || found.Name != second {
			t.Errorf("got %s, %v", found.Name, err)
		}
		b.del(t, "one")
		b.del(t, "one")
		if links := b.hostNS.Must(t, "ip", "-br", "link"); !strings.Contains(links, first) || strings.Contains(links, second) {
			t.Errorf("left:\n%s", links)
		}
	}
}

func TestDelVethDeletesAnUnfinishedPair(t *testing.T) {
	b := newTestbed(t)
	// A plugin was killed before it had set the alias.
	var u undo.Stack
	v := nl.Veth{Name: b.hostName(t, "one"), Peer: "eth0", PeerIn: b.container, Group: attach.UnfinishedGroup("net1")}
	if _, _, err := b.host.AddVeth(&u, v); err != nil {
		t.Fatal(err)
	}
	b.del(t, "one")
	if links := b.containerNS.Must(t, "ip", "-br", "link"); strings.Contains(links, "eth0") {
		t.Errorf("left:\n%s", links)
	}
}

// TestDelVethLeavesAnInterfaceOfAnotherAttachment uses a pair whose host end has no alias, like the
// pairs of the reference plugins and of other programs.
func TestDelVethLeavesAnInterfaceOfAnotherAttachment(t *testing.T) {
	own := types.Interface{Name: "eth0", Sandbox: "/x", MAC: "02:00:00:00:00:01"}
	other := own
	other.MAC = "02:00:00:00:00:02"
	ip := []types.IP{{Address: prefix("10.9.0.2/24"), Interface: types.NoInterface}}
	for name, c := range map[string]struct {
		prev  *types.Result
		stays bool
	}{
		"without prevResult":                              {nil, false},
		"the MAC of prevResult":                           {&types.Result{Interfaces: []types.Interface{own}}, false},
		"the IP of prevResult, another MAC":               {&types.Result{Interfaces: []types.Interface{other}, IPs: ip}, false},
		"another MAC":                                     {&types.Result{Interfaces: []types.Interface{other}}, true},
		"another MAC and another IP":                      {&types.Result{Interfaces: []types.Interface{other}, IPs: lease()[1:]}, true},
		"prevResult lists a host end that does not exist": {&types.Result{Interfaces: []types.Interface{{Name: "vethfeed"}, own}, IPs: ip}, true},
		"prevResult lists an interface of another name":   {&types.Result{Interfaces: []types.Interface{{Name: "eth1", Sandbox: "/x", MAC: other.MAC}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestbed(t)
			b.hostNS.Batch(t, "link add veth0 type veth peer name eth0 address 02:00:00:00:00:01 netns "+b.containerNS.Path())
			b.containerNS.Batch(t, "addr add 10.9.0.2/24 dev eth0")
			wait, err := attach.DelVeth(b.request(t, "old", c.prev), b.host, b.container)
			nstest.Must(t, errors.Join(err, wait()))
			if stays := strings.Contains(b.containerNS.Must(t, "ip", "-br", "link"), "eth0"); stays != c.stays {
				t.Errorf("stays: %v", stays)
			}
		})
	}
}

// Interfaces of these kinds have the MAC of their master, like all other interfaces on that master.
func TestAMACDoesNotIdentifyAnInterfaceThatHasItFromItsMaster(t *testing.T) {
	b := newTestbed(t)
	b.containerNS.Batch(t, "link add eth0 type veth peer name eth1", "address add 192.0.2.7/24 dev eth0")
	l, err := b.container.Link("eth0")
	nstest.Must(t, err)
	prev := &types.Result{
		Interfaces: []types.Interface{{Name: "eth0", MAC: l.MAC.String(), Sandbox: b.containerNS.Path()}},
		IPs:        []types.IP{{Interface: 0, Address: netip.MustParsePrefix("192.0.2.5/24")}},
	}
	for kind, want := range map[string]bool{"macvlan": false, "vlan": true, "ipvlan": true} {
		l.Kind = kind
		if other, err := attach.BelongsToOther(b.request(t, "own", prev), b.container, l); err != nil || other != want {
			t.Errorf("%s with the MAC but no IP of prevResult: belongs to another attachment: %t, %v; want %t", kind, other, err, want)
		}
	}
	prev.IPs = nil
	if other, err := attach.BelongsToOther(b.request(t, "own", prev), b.container, l); other || err != nil {
		t.Errorf("without IPs in prevResult, which tells nothing: %t, %v", other, err)
	}
}

func TestVethGCLeavesOtherNetworks(t *testing.T) {
	b := newTestbed(t)
	keep := b.add(t, "keep").Name
	others := testbed{hostNS: b.hostNS, containerNS: nstest.New(t), host: b.host}
	others.container = connect(t, others.containerNS)
	drop := others.add(t, "drop").Name
	unfinished := b.hostName(t, "unfinished")
	b.hostNS.Must(t, "ip", "link", "add", "vethfeedf00d", "type", "veth", "peer", "name", "x0")
	b.hostNS.Must(t, "ip", "link", "set", "vethfeedf00d", "alias", "plumb:net12/drop/eth0")
	// Two plugins were killed before they had set the alias. A third one is about to set it.
	for name, network := range map[string]string{"vethaaaaaaaa": "net1", "vethbbbbbbbb": "net12", unfinished: "net1"} {
		var u undo.Stack
		v := nl.Veth{Name: name, Peer: "p" + name[4:], PeerIn: b.container, Group: attach.UnfinishedGroup(network)}
		if _, _, err := b.host.AddVeth(&u, v); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Must(t, attach.VethGC(b.host, "net1").Run(types.Set{attachment("keep"): true, attachment("unfinished"): true}))
	links := b.hostNS.Must(t, "ip", "-br", "link")
	if !strings.Contains(links, keep) || !strings.Contains(links, unfinished) || !strings.Contains(links, "vethfeedf00d") || !strings.Contains(links, "vethbbbbbbbb") ||
		strings.Contains(links, drop) || strings.Contains(links, "vethaaaaaaaa") {
		t.Errorf("left:\n%s", links)
	}
}

func TestDeleteAddressFlowsDeletesTheFlowsOfTheAddressOnly(t *testing.T) {
	site := nstest.NewSite(t)
	// The kernel tracks connections if a rule uses their state.
	site.Host.Must(t, "nft", "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new counter")
	nstest.ServeUDP(t, site.Outside, nstest.OutsideV4+":5353")
	if _, err := nstest.DialUDP(site.Host, nstest.OutsideV4+":5353"); err != nil {
		t.Fatal(err)
	}
	count := func() string { return site.Host.Sysctl(t, "net/netfilter/nf_conntrack_count") }
	if count() == "0" {
		t.Fatal("the kernel tracks no connection, so that this test would prove nothing")
	}
	h := site.Host.Open(t, &trace.Tracer{})
	nstest.Must(t, attach.DeleteAddressFlows(h, []netip.Prefix{prefix("198.18.0.77/32")}))
	if count() == "0" {
		t.Error("the flows of another address were deleted")
	}
	nstest.Must(t, attach.DeleteAddressFlows(h, []netip.Prefix{prefix(nstest.OutsideV4 + "/32")}))
	if got := count(); got != "0" {
		t.Errorf("%s flows are left", got)
	}
}
