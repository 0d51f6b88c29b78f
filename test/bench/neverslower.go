package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// neverSlower names the scenarios of --never-slower, which together call each verb of each plugin of the reference except
// dhcp, which needs a daemon.
const neverSlower = "start,loopback,tuning,host-local/0,static,bridge/v4,bridge/dual,bridge/L2,bridge/v4/masq,ptp/v4,macvlan/v4,ipvlan,vlan,dummy,tap," +
	"host-device,bandwidth,portmap/1,firewall,vrf,sbr,chain"

// noise is the ratio of medians above which plumb is slower than the reference plugins. A ratio between 1 and noise is only
// printed, because two runs of the same executable differ by as much.
const noise = 1.03

// slower prints the calls for which plumb's median is above the reference's, and returns an error for those above noise.
func (r *report) slower(w io.Writer) error {
	var above, failed []string
	for _, o := range r.Scenarios {
		for _, v := range o.Verbs {
			ratio := v.Ratio[plumb+" / "+reference]
			text := fmt.Sprintf("%s %s (%.2f)", o.Scenario, v.Verb, ratio)
			switch {
			case ratio > noise:
				failed = append(failed, text)
			case ratio > 1:
				above = append(above, text)
			}
		}
	}
	if len(above) > 0 {
		fmt.Fprintf(w, "\nAbove the reference's median, by at most 3%%: %s\n", strings.Join(above, ", "))
	}
	if len(failed) > 0 {
		return errors.New("slower than the reference plugins: " + strings.Join(failed, ", "))
	}
	return nil
}

// links returns scenarios of plugins that other groups do not contain. A scenario is skipped if the kernel lacks the kind of
// link.
func links() []scenario {
	none := verbs(aim{}, aim{}, aim{})
	onMaster := func(plugin, key string, value any) func(*side, int) []conf {
		return one(func(s *side) conf { return conf{"type": plugin, "master": "up0", key: value, "ipam": ipam(s, v4)} })
	}
	withIPAM := func(plugin string) func(*side, int) []conf {
		return one(func(s *side) conf { return conf{"type": plugin, "ipam": ipam(s, v4)} })
	}
	return []scenario{
		{name: "static", verbs: none, chain: one(func(*side) conf {
			return conf{"ipam": conf{"type": "static", "addresses": []conf{{"address": "10.1.2.3/24"}}}}
		})},
		{name: "ipvlan", verbs: none, chain: onMaster("ipvlan", "mode", "l2"), prepare: needs("link up0 name probe0 type ipvlan")},
		{name: "vlan", verbs: none, chain: onMaster("vlan", "vlanId", 5), prepare: needs("link up0 name probe0 type vlan id 9")},
		{name: "dummy", verbs: none, chain: withIPAM("dummy"), prepare: needs("name probe0 type dummy")},
		{name: "tap", verbs: none, chain: withIPAM("tap")},
		{name: "host-device", verbs: none, prepare: uplink, chain: one(func(s *side) conf {
			return conf{"type": "host-device", "device": "up0", "ipam": ipam(s, v4)}
		})},
		{name: "vrf", verbs: none, chain: one(func(*side) conf { return conf{"type": "vrf", "vrfname": "blue"} }),
			prepare: needs("name probe0 type vrf table 9"), before: veth, base: attached},
		{name: "sbr", verbs: none, chain: one(func(*side) conf { return conf{"type": "sbr"} }), before: veth, base: attached},
	}
}

// needs returns a function for scenario.prepare that creates up0, and skips the scenario if the kernel cannot add the link.
func needs(link string) func(*side) {
	return func(s *side) {
		uplink(s)
		_, err := s.host.Exec("ip", strings.Fields("link add "+link)...)
		if err != nil {
			s.Skipf("%v", err)
		}
		_, err = s.host.Exec("ip", "link", "delete", "probe0")
		s.must(err)
	}
}
