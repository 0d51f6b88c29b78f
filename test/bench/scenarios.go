package main

import "fmt"

const (
	withIPTables  = "plumb, iptables"
	withHostLocal = "plumb, host-local"
)

// These are the goals for a process that only starts, and for a plugin that does little more.
var (
	startAim = aim{Median: 0.90}
	smallAim = aim{Median: 0.85}
)

// reported names the scenarios of --report. On two idle processors they take about a quarter of an hour.
const reported = "start/bridge,start/host-local,start/portmap,loopback,tuning,host-local/0,host-local/10000,host-local/60000," +
	"host-local/60000/last-free,cluster-local,bridge,ptp,ptp/dual,macvlan,macvlan/dual,bandwidth,portmap/1,portmap/10,portmap/100," +
	"portmap/1/foreign-1000,portmap/1/foreign-5000,connect/0,connect/5000,firewall,chain,burst/chain/x32"

// scenarios returns all scenarios, in the order of the report.
func scenarios() []scenario {
	var all []scenario
	all = append(all, starts()...)
	all = append(all, small()...)
	all = append(all, hostLocal()...)
	all = append(all, clusterLocal())
	all = append(all, bridges()...)
	all = append(all, interfaces()...)
	all = append(all, links()...)
	all = append(all, portmaps()...)
	all = append(all, connections()...)
	all = append(all, firewalls()...)
	return append(all, chains()...)
}

func verbs(add, check, del aim) []verb {
	return []verb{{name: "ADD", aim: add}, {name: "CHECK", aim: check}, {name: "DEL", aim: del}}
}

// one returns a chain of one plugin that all sides and containers share.
func one(c func(*side) conf) func(*side, int) []conf {
	return func(s *side, _ int) []conf { return []conf{c(s)} }
}

func starts() (all []scenario) {
	for _, plugin := range []string{"bridge", "host-local", "loopback", "macvlan", "ipvlan", "vlan", "ptp", "static", "dhcp", "portmap", "firewall", "bandwidth", "tuning", "vrf", "sbr", "host-device"} {
		all = append(all, scenario{
			name:  "start/" + plugin,
			verbs: []verb{{name: "VERSION", aim: startAim}},
			chain: one(func(*side) conf { return conf{"type": plugin} }),
		})
	}
	return all
}

func small() []scenario {
	return []scenario{
		{
			name: "loopback", verbs: verbs(smallAim, smallAim, smallAim), ifn: "lo",
			chain: one(func(*side) conf { return conf{"type": "loopback"} }),
		},
		{
			name: "tuning", verbs: verbs(aim{Median: 0.95}, aim{Median: 0.85}, aim{Median: 0.90}), chain: one(tuning),
			prepare: veth, base: attached,
		},
	}
}

// hostLocal returns scenarios that call the IPAM plugin alone, with reservations of other containers.
func hostLocal() []scenario {
	withUnknown := func(a, unknown aim) []verb {
		return append(verbs(a, a, a), verb{name: "DEL, unknown", command: "DEL", unknown: true, aim: unknown})
	}
	free := one(func(s *side) conf { return ipamOnly(s, 0) })
	all := []scenario{{name: "host-local/0", verbs: withUnknown(smallAim, smallAim), chain: free}}
	flat := aim{Own: 1.3}
	addDel := []verb{{name: "ADD"}, {name: "DEL", aim: flat}} // ADD lists the directory
	for _, n := range []int{1000, 10000, 60000} {
		sides := []role{{name: plumb, fill: n}, {name: reference, reference: true, fill: n}, {name: empty}}
		name, long := fmt.Sprintf("host-local/%d", n), n > 1000
		all = append(all,
			scenario{name: name, verbs: withUnknown(flat, aim{}), roles: sides, chain: free, prepare: reserve, long: long},
			scenario{
				name: name + "/cursor-before", verbs: addDel, roles: sides, chain: free,
				prepare: reserve, before: rewind, long: long,
			},
			// From the second iteration on, the cursor is at the free address, after all reserved ones.
			scenario{
				name: name + "/last-free", verbs: addDel, roles: sides, prepare: reserve, long: long,
				chain: one(func(s *side) conf { return ipamOnly(s, s.fill+1) }),
			},
			scenario{
				name: name + "/full-pool", verbs: []verb{{name: "ADD", fails: true}}, roles: sides[:2], prepare: reserve, long: long,
				chain: one(func(s *side) conf { return ipamOnly(s, s.fill) }),
			})
	}
	return all
}

// clusterLocal returns the scenario that calls cluster-local alone, with a warm pool, and plumb's host-local.
func clusterLocal() scenario {
	a := aim{Median: 1.15}
	return scenario{
		name: "cluster-local", verbs: verbs(a, a, a), roles: []role{{name: plumb}, {name: withHostLocal}}, prepare: warmPoolDatastore,
		chain: one(func(s *side) conf {
			if s.name == withHostLocal {
				return ipamOnly(s, 200)
			}
			return clusterOnly(s, 200)
		}),
	}
}

func bridges() []scenario {
	masqSides := []role{{name: plumb, backend: "nftables"}, both[1], {name: withIPTables, backend: "iptables"}}
	dual := verbs(aim{P99: 0.25}, aim{Median: 0.80}, aim{Median: 0.90})
	return []scenario{
		{
			name: "bridge/v4", verbs: verbs(aim{Median: 0.66}, aim{Median: 0.72}, aim{Median: 0.90}),
			chain: one(func(s *side) conf { return bridge(s, v4) }),
		},
		{name: "bridge/dual", verbs: dual, chain: one(func(s *side) conf { return bridge(s, dualStack) })},
		{
			name: "bridge/L2", verbs: verbs(aim{}, aim{}, aim{}),
			chain: one(func(*side) conf { return conf{"type": "bridge", "bridge": "cni0"} }),
		},
		{
			name: "bridge/v4/masq", verbs: verbs(aim{Median: 0.30}, aim{}, aim{Median: 0.30}), roles: masqSides,
			chain: one(func(s *side) conf { return bridge(s, v4).masq(s) }),
		},
		{
			name: "bridge/dual/masq", verbs: verbs(aim{}, aim{}, aim{}), roles: masqSides,
			chain: one(func(s *side) conf { return bridge(s, dualStack).masq(s) }),
		},
	}
}

func interfaces() []scenario {
	ptp := func(f family) func(*side, int) []conf {
		return one(func(s *side) conf { return conf{"type": "ptp", "ipam": ipam(s, f)} })
	}
	macvlan := func(f family) func(*side, int) []conf {
		return one(func(s *side) conf {
			c := conf{"type": "macvlan", "master": "up0", "mode": "bridge", "ipam": ipam(s, f)}
			if f == dualStack && !s.reference {
				c["optimisticDAD"] = true // the reference does not support this key, and waits for DAD
			}
			return c
		})
	}
	return []scenario{
		{name: "ptp/v4", verbs: verbs(aim{Median: 0.66}, aim{Median: 0.80}, aim{Median: 0.90}), chain: ptp(v4)},
		{name: "ptp/dual", verbs: verbs(aim{Median: 0.01}, aim{Median: 0.80}, aim{Median: 0.90}), chain: ptp(dualStack), long: true},
		{name: "macvlan/v4", verbs: verbs(aim{Median: 0.65}, aim{Median: 0.80}, aim{Median: 1}), chain: macvlan(v4), prepare: uplink},
		{name: "macvlan/dual", verbs: verbs(aim{}, aim{}, aim{}), chain: macvlan(dualStack), prepare: uplink, long: true},
		{
			name: "bandwidth", verbs: verbs(aim{Median: 0.80}, aim{Median: 0.85}, aim{Median: 1}),
			chain: one(bandwidth), before: veth, base: attached,
		},
		{ // without a reference, because awslabs/tc-redirect-tap is not packaged
			name: "tc-redirect-tap", verbs: append([]verb{{name: "VERSION"}}, verbs(aim{}, aim{}, aim{})...), roles: []role{{name: plumb}},
			chain: one(func(*side) conf { return conf{"type": "tc-redirect-tap"} }), prepare: veth, base: attached,
		},
	}
}

func portmaps() (all []scenario) {
	for _, n := range []int{1, 10, 100} {
		add := map[int]float64{1: 0.10, 10: 0.03, 100: 0.005}[n]
		all = append(all, scenario{
			name:  fmt.Sprintf("portmap/%d", n),
			verbs: append([]verb{{name: "VERSION"}}, verbs(aim{Median: add}, aim{Above: 4}, aim{Median: 0.20})...),
			chain: one(func(*side) conf { return portmap(0, n) }), prepare: veth, base: attached, long: n == 100,
		})
	}
	flat := aim{Own: 1.4}
	for _, n := range []int{1000, 5000} {
		all = append(all, scenario{
			name: fmt.Sprintf("portmap/1/foreign-%d", n), verbs: verbs(flat, flat, flat),
			roles: []role{{name: plumb, fill: n}, {name: reference, reference: true, fill: n}, {name: empty}},
			chain: one(func(*side) conf { return portmap(0, 1) }),
			prepare: func(s *side) {
				veth(s)
				mapForeign(s, 1)
			},
			base: attached, long: true,
		})
	}
	return all
}

// firewalls returns scenarios that call the plugin behind a veth pair. plumb keeps the policy in nftables, and without a
// backend runs iptables only if an iptables chain drops packets.
func firewalls() []scenario {
	return []scenario{
		{
			name: "firewall/iptables", verbs: verbs(aim{}, aim{}, aim{}), prepare: veth, base: attached,
			chain: one(func(*side) conf { return conf{"type": "firewall", "backend": "iptables"} }),
		},
		{
			name: "firewall/same-bridge", verbs: verbs(aim{Median: 0.15}, aim{}, aim{Median: 0.35}), prepare: veth, base: attached,
			chain: one(func(*side) conf { return conf{"type": "firewall", "ingressPolicy": "same-bridge"} }),
		},
	}
}

// chains returns scenarios of a whole chain of plugins, and of many containers at the same time.
func chains() []scenario {
	whole := func(s *side, i int) []conf {
		c := bridge(s, v4).masq(s)
		c["hairpinMode"] = true
		return []conf{c, portmap(2*i, 2), bandwidth(s), tuning(s)}
	}
	all := []scenario{{name: "chain", verbs: verbs(aim{Median: 0.21}, aim{}, aim{Median: 0.30}), chain: whole, breakdown: true}}
	for _, atATime := range []int{1, 8, 32} {
		all = append(all, scenario{
			name: fmt.Sprintf("burst/bridge/x%d", atATime), burst: atATime, verbs: []verb{{name: "ADD"}, {name: "DEL"}},
			chain: one(func(s *side) conf { return bridge(s, v4) }), long: atATime != 8,
		})
	}
	for _, atATime := range []int{1, 8, 32} {
		var add, del aim
		if atATime == 32 {
			add, del = aim{Median: 0.05}, aim{Median: 0.22}
		}
		all = append(all, scenario{
			name: fmt.Sprintf("burst/chain/x%d", atATime), burst: atATime,
			verbs: []verb{{name: "ADD", aim: add}, {name: "DEL", aim: del}}, chain: whole, long: true,
		})
	}
	return all
}
