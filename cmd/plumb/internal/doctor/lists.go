package doctor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/runtimes"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
)

// chained lists the plugins that need the result of an earlier plugin.
var chained = []string{"bandwidth", "firewall", "host-access", "portmap", "route-override", "sbr", "tc-redirect-tap", "tuning", "vrf"}

// findChains finds chained plugins before the plugin that creates the interface. Another project's plugin may create one.
func findChains(files []*file, add addFunc) {
	for _, f := range usable(files) {
		i := slices.IndexFunc(f.plugins, func(p plugin) bool { return !slices.Contains(chained, p.Type) })
		switch {
		case i < 0 && len(f.plugins) > 0:
			f.explained = true
			add(f.plugins[0].where("type"), f.edit("put a plugin that creates an interface first in plugins, for example bridge"),
				"no plugin of network %q creates an interface, and ADD of %s fails", f.name(), f.plugins[0].Type)
		case i > 0:
			f.explained = true
			add(f.plugins[0].where("type"), f.edit("move %s before %s", f.plugins[i].Type, f.plugins[0].Type),
				"%s comes before %s, which creates the interface, and its ADD fails", f.plugins[0].Type, f.plugins[i].Type)
		}
	}
}

// findCapabilities finds portmap and bandwidth without the capability through which the runtime passes host ports and limits.
func findCapabilities(files []*file, add addFunc) {
	for _, p := range pluginsOf(usable(files)) {
		var keys struct {
			Capabilities, RuntimeConfig map[string]any
			IngressRate, EgressRate     uint64
		}
		unknown := func(v *schema.Value) bool { return !slices.Contains(schema.Capabilities(p.Type), v.Key) }
		if slices.ContainsFunc(p.at.Get("capabilities").Members(), unknown) {
			continue // findKeys reports it
		}
		name := map[string]string{"portmap": "portMappings", "bandwidth": "bandwidth"}[p.Type]
		if name == "" || json.Unmarshal(p.Bytes, &keys) != nil || keys.Capabilities[name] == true || keys.RuntimeConfig[name] != nil ||
			keys.IngressRate+keys.EgressRate > 0 {
			continue
		}
		what := map[string]string{"portmap": "host ports", "bandwidth": "limits"}[p.Type]
		add(p.where("type"), withAdvice(p.file.edit("add \"capabilities\": {%q: true} to %s", name, p.Type), replaceContainers),
			"%s: capabilities.%s is missing, so that the runtime passes it no %s", p.Type, name, what)
	}
}

// findFullPools finds pools of which at least 90 % are in use. It must follow findLeftovers.
func (s *state) findFullPools(files []*file, add addFunc) {
	for _, n := range s.inventory.Networks {
		for _, p := range n.Pools {
			if !p.NearlyFull() {
				continue
			}
			what := fmt.Sprintf("only %d of %d addresses are free", *p.Free, p.Size)
			if *p.Free == 0 {
				what = fmt.Sprintf("all %d addresses are in use, so that ADD fails", p.Size)
			}
			if dead := s.deadIn(n.Name, p); dead > 0 {
				what += fmt.Sprintf("; deleted containers hold %d of them, see above", dead)
			}
			add(cmp.Or(n.File, onHost), enlarge(n.Name, p.Set, files), "network %s, range %s: %s", n.Name, p.Range, what)
		}
	}
}

// enlarge returns the solution for a full pool. It is the edit that doubles the subnet, if the pool is one whole subnet and no file
// contains the addresses that the edit adds.
func enlarge(network string, full pool.Set, files []*file) plugins.Solution {
	all := pluginsOf(files)
	for _, p := range all {
		for _, set := range p.sets() {
			if p.file.name() != network || !slices.Equal(set.Ranges, full.Ranges) || len(set.Ranges) != 1 {
				continue
			}
			old, gateway := set.Gateways[0].Masked(), set.Gateways[0].Addr()
			whole := set.Ranges[0].Contains(old.Addr().Next()) && !old.Contains(set.Ranges[0].Last.Next().Next())
			subnet := netip.PrefixFrom(old.Addr(), old.Bits()-1).Masked()
			overlaps := func(o plugin) bool {
				return slices.ContainsFunc(o.subnets(), func(s netip.Prefix) bool { return s != old && s.Overlaps(subnet) })
			}
			if !whole || slices.ContainsFunc(all, overlaps) {
				continue
			}
			edit, advice := fmt.Sprintf(`write "subnet": "%s"`, subnet), "Or delete containers."
			if gateway != subnet.Addr().Next() && !bytes.Contains(p.IPAM, []byte(`"gateway"`)) { // the default
				edit += fmt.Sprintf(`, "gateway": "%s"`, gateway)
			}
			edit += fmt.Sprintf(` in place of "subnet": "%s"`, old)
			if p.Type == "bridge" && p.isRouted() && !p.ForceAddress {
				edit += `, and add "forceAddress": true to bridge`
			}
			if p.HasMaster() {
				advice = "The router must use the same prefix length. " + advice
			}
			return withAdvice(p.file.edit("%s", edit), "%s", advice)
		}
	}
	return say("Enlarge \"subnet\", or \"rangeEnd\" if it is set, and keep the gateway with \"gateway\", or delete containers. With bridge and isGateway, also set \"forceAddress\": true.")
}

// deadIn returns the number of addresses of the pool that are reserved for leftovers of deleted containers.
func (s *state) deadIn(network string, p node.Pool) (count int) {
	for a := range s.left {
		if verdict, _ := s.judge(a); verdict == life.Dead && a.Network == network {
			count += len(slices.DeleteFunc(slices.Clone(a.Resources), func(r node.Resource) bool { return !p.Reserves(r) }))
		}
	}
	return count
}

// bridgeNetfilter is the sysctl that makes iptables and nftables see packets between the ports of a bridge.
const bridgeNetfilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// findBridgeNetfilter finds hosts with kube-proxy on which packets between the ports of a bridge do not pass netfilter. If a
// container connects to a Service whose endpoint is on the same bridge, the answer then keeps the endpoint's address.
func (h host) findBridgeNetfilter(files []*file, add addFunc) {
	i := slices.IndexFunc(pluginsOf(usable(files)), func(p plugin) bool { return p.Type == "bridge" && p.isRouted() })
	value, err := os.ReadFile(bridgeNetfilter)
	if i < 0 || err == nil && strings.TrimSpace(string(value)) != "0" || !h.hasKubeProxy() {
		return
	}
	fix, why := run("sysctl", "-w", "net.bridge.bridge-nf-call-iptables=1"), "net.bridge.bridge-nf-call-iptables is 0"
	if errors.Is(err, os.ErrNotExist) {
		fix.Fix, why = "modprobe br_netfilter && "+fix.Fix, "the kernel module br_netfilter is not loaded"
	}
	p := pluginsOf(usable(files))[i]
	add(inKernel, fix, "%s, so that containers on %s cannot connect to Services of kube-proxy whose endpoints are on the same bridge", why, p.BridgeName())
}

// hasKubeProxy reports whether kube-proxy has created its chains in nftables or iptables-nft, or its interface.
func (h host) hasKubeProxy() bool {
	for _, l := range h.links {
		if l.Name == tables.KubeProxyLink {
			return true
		}
	}
	return slices.ContainsFunc(h.ruleset().chains, func(c nft.ListedChain) bool {
		return c.Table.Name == "nat" && c.Name == "KUBE-SERVICES" || c.Table.Name == "kube-proxy"
	})
}

// findHairpins notes bridges whose containers cannot reach their own host ports.
func findHairpins(files []*file, add addFunc) {
	for _, f := range usable(files) {
		i := slices.IndexFunc(f.plugins, func(p plugin) bool { return p.Type == "bridge" })
		if i < 0 || !slices.Contains(f.types(), "portmap") {
			continue
		}
		var keys struct{ HairpinMode, PromiscMode bool }
		if json.Unmarshal(f.plugins[i].Bytes, &keys) == nil && !keys.HairpinMode && !keys.PromiscMode {
			add(f.plugins[i].where("type"), f.edit("add \"hairpinMode\": true to bridge"),
				"bridge: hairpinMode is not set, so that containers cannot connect to their own host ports")
		}
	}
}

// findWithoutGC finds networks whose cniVersion has no GC, although the runtime and plumb's plugins support it.
func (o Options) findWithoutGC(files []*file, add addFunc) {
	old := func(v string) bool {
		supported, err := version.GreaterThanOrEqualTo(v, "1.1.0")
		return err == nil && !supported
	}
	if slices.ContainsFunc(o.Runtimes, func(r runtimes.Runtime) bool { return r.CNIVersion != "" && old(r.CNIVersion) }) {
		return
	}
	for _, f := range usable(files) {
		if old(f.list.CNIVersion) && !slices.ContainsFunc(f.types(), func(name string) bool { return !slices.Contains(schema.Names(), name) }) {
			add(f.where(f.top.Get("cniVersion")), f.edit(`write "cniVersion": "1.1.0"`),
				"cniVersion %s does not support GC, so that resources that name no attachment remain", f.list.CNIVersion)
		}
	}
}
