package nstest

import (
	"strings"
	"testing"
)

func TestSnapshotSeesWhatPluginsTouch(t *testing.T) {
	LeakCheck(t)
	n := NewHost(t)
	n.Batch(t, "link add br0 type bridge", "link add v0 type veth peer name v1", "link set br0 up")
	state := func() string { return Snapshot(t, n) }
	before := WaitStable(state)
	for _, change := range []string{
		"ip link set v0 alias x", "ip link set v0 mtu 1400", "ip link set v0 master br0", "ip link set v0 up",
		"bridge link set dev v0 hairpin on", "bridge link set dev v0 isolated on",
		"ip link set v0 address 02:00:00:00:00:01", "ip link set br0 promisc on",
		"ip addr add 10.0.0.1/24 dev br0", "ip addr add 2001:db8::1/64 dev br0 nodad",
		"ip route add 10.9.0.0/16 via 10.0.0.2", "ip -6 route add 2001:db8:9::/48 via 2001:db8::2 table 7",
		"ip rule add from 10.0.0.5 table 9", "ip -6 rule add from 2001:db8::5 table 9",
		"ip neigh add 10.0.0.7 lladdr 02:00:00:00:00:07 dev br0",
		"bridge fdb add 02:00:00:00:00:09 dev v0 master static",
		"tc qdisc add dev v0 root tbf rate 1mbit burst 32k latency 50ms", "tc qdisc add dev v1 clsact",
		"tc filter add dev v1 egress protocol ip u32 match ip dst 10.0.0.1/32 action mirred egress redirect dev v0",
		"nft add table inet x", "nft 'add map inet x m { type ipv4_addr : ipv4_addr; }'",
		`nft 'add element inet x m { 10.0.0.1 comment "a, b" : 10.0.0.2 }'`,
		"iptables-nft -t nat -N CNI-x", "ip6tables-nft -t nat -N CNI-x", "iptables-legacy -t nat -N CNI-x",
		"sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv6.conf.v0.accept_ra=0", "ip link del v0",
	} {
		n.Must(t, "sh", "-c", change)
		after := WaitStable(state)
		if Compare(before, after) == "" {
			t.Errorf("the snapshot does not show the change by %s", change)
		}
		before = after
	}
}

// TestSnapshotWhileLinksComeAndGo tests that Snapshot tolerates interfaces that are removed while it runs.
func TestSnapshotWhileLinksComeAndGo(t *testing.T) {
	LeakCheck(t)
	n := NewHost(t)
	end, ended := make(chan bool), make(chan error)
	go func() {
		for {
			select {
			case <-end:
				ended <- nil
				return
			default:
			}
			script := "ip link add v0 type veth peer name v1; tc qdisc add dev v0 clsact; tc qdisc add dev v1 ingress; ip link del v0"
			if _, err := n.Exec("sh", "-ec", script); err != nil {
				<-end
				ended <- err
				return
			}
		}
	}()
	for range 30 {
		if _, err := n.snapshot(); err != nil {
			t.Error(err)
		}
	}
	end <- true
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestSnapshotWaitsForTheKernel tests that a snapshot contains the changes that earlier calls caused. From
// the second change on, the kernel reports a carrier that comes and goes with a delay.
func TestSnapshotWaitsForTheKernel(t *testing.T) {
	n := NewHost(t)
	n.Batch(t, "link add v0 type veth peer name v1", "link set v1 up")
	for range 4 {
		n.Batch(t, "link set v0 up", "addr add 2001:db8::1/64 dev v0 nodad")
		up := Snapshot(t, n)
		for _, want := range []string{"link v1 operstate=UP", "route dev=v0 dst=2001:db8::1 "} {
			if !strings.Contains(up, want) {
				t.Errorf("no %q in\n%s", want, up)
			}
		}
		if diff := Compare(up, WaitStable(func() string { return Snapshot(t, n) })); diff != "" {
			t.Errorf("the snapshot still changes:\n%s", diff)
		}
		n.Batch(t, "link set v0 down")
		if down := Snapshot(t, n); !strings.Contains(down, "link v1 operstate=LOWERLAYERDOWN") {
			t.Errorf("v1 is not down in\n%s", down)
		}
	}
}

// TestSnapshotWaitsForABridge tests that Snapshot waits until a bridge gets a carrier and a link-local
// address.
func TestSnapshotWaitsForABridge(t *testing.T) {
	n := NewHost(t)
	n.Batch(t, "link add v0 type veth peer name v1", "link set v0 up", "link set v1 up")
	for range FullOrShort(8, 2) {
		n.Batch(t, "link add br0 type bridge", "link set br0 up", "link set v0 master br0")
		state := Snapshot(t, n)
		for _, want := range []string{"link br0 operstate=UP", "link br0 addr_info={family=inet6"} {
			if !strings.Contains(state, want) {
				t.Errorf("no %q in\n%s", want, state)
			}
		}
		n.Batch(t, "link del br0")
	}
	n.Batch(t, "link add br1 type bridge", "link set br1 up")
	if lines, err := n.iproute(); err != nil || isChanging(lines) {
		t.Errorf("Snapshot waits for a bridge without ports (%v)", err)
	}
}

// TestSnapshotWaitsForAVLAN covers a VLAN that gets its carrier after its master, as on Linux 6.1.
func TestSnapshotWaitsForAVLAN(t *testing.T) {
	state := []string{"link base flags=[UP LOWER_UP]", "link eth0 flags=[UP LOWER_UP]", "link eth0 link=base"}
	for operstate, waits := range map[string]bool{"UNKNOWN": true, "UP": false} {
		if got := isChanging(append(state, "link eth0 operstate="+operstate)); got != waits {
			t.Errorf("with operstate %s: want waiting %v, got %v", operstate, waits, got)
		}
	}
}

// TestSnapshotHasNoUnknownState tests that snapshots do not show whether the kernel has already set a link
// with a carrier UP, as for a veth interface on Linux 6.1, but show that a link is down.
func TestSnapshotHasNoUnknownState(t *testing.T) {
	for state, want := range map[string]string{
		"link eth0 flags=[UP LOWER_UP]":  "link eth0 operstate=UP",
		"link eth0 flags=[BROADCAST UP]": "link eth0 operstate=UNKNOWN",
	} {
		if got := withoutUnknown([]string{"link eth0 operstate=UNKNOWN", state}); got[0] != want {
			t.Errorf("with %q: want %q, got %q", state, want, got[0])
		}
	}
}

// TestSnapshotSortsRoutesOfEveryLink tests that the order in which two links came up does not change the
// order of their link-local and multicast routes. The order of other lines counts.
func TestSnapshotSortsRoutesOfEveryLink(t *testing.T) {
	var states []string
	for _, order := range [][]string{{"v0", "v1"}, {"v1", "v0"}} {
		n := NewHost(t)
		n.Batch(t, "link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02")
		for _, link := range order {
			n.Batch(t, "link set "+link+" up")
		}
		states = append(states, WaitStable(func() string { return Snapshot(t, n) }))
	}
	if diff := Compare(states[0], states[1]); diff != "" || !strings.Contains(states[0], "dst=ff00::/8") {
		t.Errorf("want no difference, got %q between\n%s\nand\n%s", diff, states[0], states[1])
	}
	if diff := Compare("a\nb\n", "b\na\n"); !strings.HasSuffix(diff, `"b" is now where "a" was`) {
		t.Errorf("want a difference in the order of other lines, got %q", diff)
	}
}
