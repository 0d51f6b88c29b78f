package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// A family specifies which addresses a container gets.
type family int

const (
	v4 family = iota
	dualStack
)

func ipam(s *side, f family) conf {
	ranges := [][]conf{{{"subnet": "10.88.0.0/16"}}}
	routes := []conf{{"dst": "0.0.0.0/0"}}
	if f == dualStack {
		ranges = append(ranges, []conf{{"subnet": "fd00:88::/64"}})
		routes = append(routes, conf{"dst": "::/0"})
	}
	return conf{"type": "host-local", "dataDir": s.dir, "ranges": ranges, "routes": routes}
}

func bridge(s *side, f family) conf {
	return conf{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam(s, f)}
}

// masq enables masquerade in c and returns c. The side's role may select the backend.
func (c conf) masq(s *side) conf {
	c["ipMasq"] = true
	if s.backend != "" {
		c["ipMasqBackend"] = s.backend
	}
	return c
}

func tuning(s *side) conf {
	return conf{"type": "tuning", "dataDir": s.dir, "sysctl": conf{
		"net.core.somaxconn": "500", "net.ipv4.tcp_keepalive_time": "600", "net.ipv4.ip_local_port_range": "20000\t60000",
	}}
}

func bandwidth(*side) conf {
	const rate, burst = 100_000_000, 10_000_000
	return conf{"type": "bandwidth", "runtimeConfig": conf{"bandwidth": conf{
		"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst,
	}}}
}

// portmap returns a configuration that maps n host ports, starting with firstPort+first.
func portmap(first, n int) conf {
	mappings := make([]conf, n)
	for i := range mappings {
		mappings[i] = conf{"hostPort": firstPort + first + i, "containerPort": 80, "protocol": "tcp"}
	}
	return conf{"type": "portmap", "runtimeConfig": conf{"portMappings": mappings}}
}

const (
	firstPort    = 20000
	firstForeign = 40000
)

// veth creates a new veth pair. The container's end is eth0, and the host end is host0.
func veth(s *side) {
	_, _ = s.host.Exec("ip", "link", "delete", "host0")
	s.host.Batch(s.bed,
		"link add host0 type veth peer name eth0 netns "+s.containers[0].Path(),
		"address add 10.88.0.1/16 dev host0", "link set host0 up")
	s.containers[0].Batch(s.bed, "address add 10.88.0.2/16 dev eth0", "link set eth0 up", "route add default via 10.88.0.1")
	s.host.SetSysctl(s.bed, "net/ipv4/ip_forward", "1")
}

// attached returns the result of a plugin that created the interfaces of veth.
func attached(s *side) json.RawMessage {
	return fmt.Appendf(nil, `{"cniVersion": %q, "interfaces": [{"name": "host0", "mac": %q}, {"name": "eth0", "mac": %q, "sandbox": %q}],
		"ips": [{"address": "10.88.0.2/16", "gateway": "10.88.0.1", "interface": 1}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {}}`,
		cniVersion, s.mac(s.host.Exec, "host0"), s.mac(s.containers[0].Exec, "eth0"), s.containers[0].Path())
}

func (s *side) mac(run func(string, ...string) (string, error), link string) string {
	out, err := run("ip", "-json", "link", "show", "dev", link)
	s.must(err)
	var links []struct{ Address string }
	s.must(json.Unmarshal([]byte(out), &links))
	return links[0].Address
}

// uplink creates the master for macvlan on the host. It is a veth pair, because not every kernel supports dummy.
func uplink(s *side) {
	s.host.Batch(s.bed, "link add up0 type veth peer name up1", "link set up1 up", "link set up0 up")
}

// pool is the subnet for host-local without an interface plugin. The first address for a container follows the
// gateway's address.
const pool = "10.64.0.0/10"

func nth(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 64 + byte((i+2)>>16), byte((i + 2) >> 8), byte(i + 2)})
}

// ipamOnly returns a configuration of host-local without an interface plugin. Its range contains the given number of addresses,
// or all addresses of pool if the number is 0.
func ipamOnly(s *side, addresses int) conf {
	r := conf{"subnet": pool}
	if addresses > 0 {
		r["rangeStart"], r["rangeEnd"] = nth(0).String(), nth(addresses-1).String()
	}
	return conf{"ipam": conf{"type": "host-local", "dataDir": s.dir, "ranges": [][]conf{{r}}}}
}

// clusterOnly returns the configuration of ipamOnly for cluster-local.
func clusterOnly(s *side, addresses int) conf {
	c := ipamOnly(s, addresses)
	ipam := c["ipam"].(conf)
	ipam["type"], ipam["node"], ipam["datastore"] = "cluster-local", "n1", conf{"type": filepath.Base(s.datastoreFile())}
	return c
}

func (s *side) datastoreFile() string { return filepath.Join(s.bin, "bench-datastore") }

// warmPoolDatastore writes a datastore that assigns addresses to the host in the first ADD, which is not timed. The
// host keeps the addresses after each DEL.
func warmPoolDatastore(s *side) {
	s.must(os.WriteFile(s.datastoreFile(), []byte(`#!/bin/sh
case $(cat) in
*'"verb":"register"'*) echo '{"free": 200, "revision": 1}' ;;
*'"verb":"claim"'*) echo '{"addresses": {"10.64.0.2": "0000000000000000000000000000000a", "10.64.0.3": "0000000000000000000000000000000b"}, "free": 198, "revision": 2}' ;;
*) exit 1 ;;
esac
`), 0o755))
}

// reserve writes the reservations of other containers in the format of both sides.
func reserve(s *side) {
	dir := filepath.Join(s.dir, network)
	s.must(os.MkdirAll(dir, 0o755))
	for i := range s.fill {
		s.must(os.WriteFile(filepath.Join(dir, nth(i).String()), fmt.Appendf(nil, "%064x\r\neth0", i), 0o600))
	}
	if s.fill > 0 {
		s.setCursor(nth(s.fill - 1))
	}
}

// rewind sets the cursor before the first reservation.
func rewind(s *side) {
	if s.fill > 0 {
		s.setCursor(nth(-1))
	}
}

func (s *side) setCursor(addr netip.Addr) {
	s.must(os.WriteFile(filepath.Join(s.dir, network, "last_reserved_ip.0"), []byte(addr.String()), 0o600))
}

// mapForeign maps s.fill host ports for other containers, each of which has the given number of host ports. Because the
// reference plugin is slow with iptables, it maps only those of the first container. iptables-restore adds copies of its
// rules, with other names and ports, for the other containers.
func mapForeign(s *side, each int) {
	if s.fill == 0 {
		return
	}
	base := attached(s)
	add := func(i int) {
		c := portmap(firstForeign-firstPort+i*each, each).withBackend(s)
		a := &attachment{
			side: s, chain: []conf{c}, id: fmt.Sprintf("foreign-%d", i),
			container: s.containers[0].Path(), ifn: ifName, base: base,
		}
		_, err := a.do("ADD", execute)
		s.must(err)
	}
	if !s.reference || s.backend == "nftables" {
		for i := range s.fill / each {
			add(i)
		}
		return
	}
	add(0)
	out, err := s.host.Exec("iptables-save", "-t", "nat")
	s.must(err)
	_, err = s.host.ExecInput(copies(out, s.fill/each, each), "iptables-restore", "--noflush")
	s.must(err)
}

// copies returns n-1 copies of the rules for the foreign container with the first ports, as input for iptables-restore.
func copies(saved string, n, ports int) string {
	var chain string
	for line := range strings.Lines(saved) {
		if fields := strings.Fields(line); strings.Contains(line, fmt.Sprint("--dports ", firstForeign)) {
			chain = fields[len(fields)-1]
		}
	}
	var named, rules []string
	for line := range strings.Lines(saved) {
		switch {
		case chain == "" || !strings.Contains(line, chain):
		case line[0] == ':':
			named = append(named, line)
		default:
			rules = append(rules, line)
		}
	}
	var text strings.Builder
	text.WriteString("*nat\n")
	for _, lines := range [][]string{named, rules} {
		for i := 1; i < n; i++ {
			own := []string{chain, fmt.Sprintf("CNI-DN-foreign%05d", i), "foreign-0", fmt.Sprint("foreign-", i)}
			for p := range ports {
				own = append(own, fmt.Sprint(firstForeign+p), fmt.Sprint(firstForeign+i*ports+p))
			}
			replacer := strings.NewReplacer(own...)
			for _, line := range lines {
				text.WriteString(replacer.Replace(line))
			}
		}
	}
	text.WriteString("COMMIT\n")
	return text.String()
}
