package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
)

// An explainedConf has the keys of the plugins of an attachment's ADD that explain compares with the node.
type explainedConf struct {
	Type             string `json:"type"`
	Bridge           string `json:"bridge"`
	IsGateway        bool   `json:"isGateway"`
	IsDefaultGateway bool   `json:"isDefaultGateway"`
	IPMasq           bool   `json:"ipMasq"`
	IPMasqBackend    string `json:"ipMasqBackend"`
	LinkInContainer  bool   `json:"linkInContainer"`
	// The keys of portmap, which gets port mappings only with the capability.
	Capabilities         map[string]bool `json:"capabilities"`
	Backend              string          `json:"backend"`
	ExternalSetMarkChain string          `json:"externalSetMarkChain"`
	ConditionsV4         []string        `json:"conditionsV4"`
	ConditionsV6         []string        `json:"conditionsV6"`
}

// explainedConfs returns the configurations of the ADD, as far as libcni's cache has them.
func (a *Attachment) explainedConfs() (all []explainedConf) {
	list, _ := a.Added()
	if list == nil {
		return nil
	}
	for _, p := range list.Plugins {
		var c explainedConf
		_ = json.Unmarshal(p.Bytes, &c) // a plugin that refuses it has made nothing
		c.Type = p.Network.Type
		all = append(all, c)
	}
	return all
}

// madeBy returns the configuration of the plugin that made the interface. Its Type is empty if it is not known.
func (a *Attachment) madeBy() explainedConf {
	if all := a.explainedConfs(); len(all) > 0 {
		return all[0]
	}
	return explainedConf{}
}

// bridgeName returns the name of the bridge, or "" for another plugin than bridge.
func (c explainedConf) bridgeName() string {
	if c.Type == "bridge" && c.Bridge == "" {
		return "cni0"
	}
	return c.Bridge
}

// hasMaster reports whether the interface is on a master of the node.
func (c explainedConf) hasMaster() bool {
	return slices.Contains([]string{"macvlan", "ipvlan", "vlan"}, c.Type) && !c.LinkInContainer
}

// missingHops returns a hop for each thing that the ADD made on the node, and the node does not have any more.
func (e *explainer) missingHops() (hops []Hop, err error) {
	c := e.a.madeBy()
	links := e.a.has(Link)
	if (c.Type == "bridge" || c.Type == "ptp") && len(links) == 0 {
		hops = append(hops, hop(onNode, "has no host end of %s", e.a.IfName))
	}
	if c.Type == "bridge" && (c.IsGateway || c.IsDefaultGateway) {
		lost, err := e.missingGateways(c.bridgeName())
		if err != nil {
			return nil, err
		}
		hops = append(hops, lost...)
	}
	if c.IPMasq && c.IPMasqBackend != "iptables" && e.isOurs() {
		for _, address := range e.a.Addresses {
			if !slices.ContainsFunc(e.a.has(Element), func(t Thing) bool { return strings.HasPrefix(t.sub, "masq") && t.Address == address }) {
				hops = append(hops, hop(onNode, "does not masquerade: table inet plumb has no element for %s", address))
			}
		}
	}
	return hops, nil
}

// isOurs reports whether plumb made the host end.
func (e *explainer) isOurs() bool {
	return slices.ContainsFunc(e.a.has(Link), func(t Thing) bool {
		l, err := e.node.Link(t.Name)
		return err == nil && attach.MadeByPlumb(l)
	})
}

// missingGateways returns a hop for each gateway of the container that is no address of the bridge.
func (e *explainer) missingGateways(bridge string) (hops []Hop, err error) {
	l, err := e.node.Link(bridge)
	if err != nil {
		return nil, nil // bridgeHop says so
	}
	addrs, err := e.node.Addrs(l)
	for _, gateway := range e.a.cached.gateways {
		if !slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr() == gateway }) {
			hops = append(hops, hop(onNode, "%s, the gateway of the container, is no address of %s", gateway, bridge))
		}
	}
	return hops, err
}

// A portMapping is what a runtime passes to portmap.
type portMapping struct {
	HostPort int    `json:"hostPort"`
	Protocol string `json:"protocol"`
	HostIP   string `json:"hostIP"`
}

// missingPorts returns a hop for each host port of the attachment without an element.
func (e *explainer) missingPorts() (hops []Hop) {
	_, runtime := e.a.Added()
	byNFT := slices.ContainsFunc(e.a.explainedConfs(), func(c explainedConf) bool {
		return c.Type == "portmap" && c.Capabilities["portMappings"] && c.Backend != "iptables" && c.ExternalSetMarkChain == "" && len(c.ConditionsV4)+len(c.ConditionsV6) == 0
	})
	if !byNFT || !e.isOurs() {
		return nil
	}
	var mappings []portMapping
	text, err := json.Marshal(runtime.CapabilityArgs["portMappings"])
	if err == nil {
		_ = json.Unmarshal(text, &mappings) // portmap has accepted it
	}
	for _, m := range mappings {
		for _, f := range e.families() {
			if m.HostPort != 0 && m.isOf(f) && !e.hasPort(m, f) {
				hops = append(hops, hop(onNode, "host port %s %d of IP version %s %s", m.protocol(), m.HostPort, familyVersion(f), e.otherTarget(m, f)))
			}
		}
	}
	return hops
}

// protocol returns the protocol as nftables writes it.
func (m portMapping) protocol() string {
	if m.Protocol == "" {
		return "tcp"
	}
	return strings.ToLower(m.Protocol)
}

// isOf reports whether the mapping is for addresses of a family.
func (m portMapping) isOf(f nft.Family) bool {
	ip, err := netip.ParseAddr(m.HostIP)
	return err != nil || ip.IsUnspecified() && ip.Is4() || nft.FamilyOf(ip.Unmap()) == f
}

// hasPort reports whether the attachment has an element for a host port, also if another container claimed it later.
func (e *explainer) hasPort(m portMapping, f nft.Family) bool {
	key := fmt.Sprintf("%s . %d", m.protocol(), m.HostPort)
	return slices.ContainsFunc(e.a.has(Element), func(t Thing) bool {
		return strings.HasPrefix(t.sub, "hostport"+familyVersion(f)) && strings.Contains(" . "+t.Name+" . ", " . "+key+" . ")
	})
}
