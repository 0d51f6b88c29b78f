package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
)

// An explainedConf has the keys of a plugin's configuration that explain compares with the node.
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

// explainedConfs returns the configurations of the plugins that the ADD called, in their order. There are none if
// libcni's cache does not have them.
func (a *Attachment) explainedConfs() (all []explainedConf) {
	list, _ := a.Added()
	if list == nil {
		return nil
	}
	for _, p := range list.Plugins {
		if p.Network.Type == "loopback" {
			continue // it makes no interface
		}
		var c explainedConf
		_ = json.Unmarshal(p.Bytes, &c) // a value of a wrong type: the plugin has refused it too, and has made nothing
		c.Type = p.Network.Type
		all = append(all, c)
	}
	return all
}

// InterfacePlugin returns the type of the plugin that made the interface, or "" if it is not known.
func (a *Attachment) InterfacePlugin() string { return a.interfaceConf().Type }

// interfaceConf returns the configuration of the first plugin but loopback, which made the interface. If it is not known,
// its Type is empty.
func (a *Attachment) interfaceConf() explainedConf {
	if all := a.explainedConfs(); len(all) > 0 {
		return all[0]
	}
	return explainedConf{}
}

// bridgeName returns the name of the bridge, or "" if the plugin is not bridge.
func (c explainedConf) bridgeName() string {
	if c.Type != "bridge" {
		return ""
	}
	return cmp.Or(c.Bridge, "cni0")
}

// hasMaster reports whether the plugin makes the interface on a master that is on the node.
func (c explainedConf) hasMaster() bool {
	return slices.Contains([]string{"macvlan", "ipvlan", "vlan"}, c.Type) && !c.LinkInContainer
}

// missingHops returns a hop for each of these that the ADD made and that is missing on the node: the host end, the
// gateway addresses of the bridge, and the elements of nftables for masquerading.
func (e *explainer) missingHops() (hops []Hop, err error) {
	c := e.a.interfaceConf()
	if (c.Type == "bridge" || c.Type == "ptp") && len(e.a.has(Link)) == 0 {
		hops = append(hops, hop(onNode, "has no host end of %s", e.a.IfName))
	}
	if c.Type == "bridge" && (c.IsGateway || c.IsDefaultGateway) {
		missing, err := e.missingGateways(c.bridgeName())
		if err != nil {
			return nil, err
		}
		hops = append(hops, missing...)
	}
	if c.IPMasq && c.IPMasqBackend != "iptables" && e.hasPlumbHostEnd() {
		for _, address := range e.a.Addresses {
			if !e.hasMasqueradeElement(address) {
				hops = append(hops, hop(onNode, "does not masquerade: table inet plumb has no element for %s", address))
			}
		}
	}
	return hops, nil
}

// hasMasqueradeElement reports whether the attachment has an element of nftables that masquerades the address.
func (e *explainer) hasMasqueradeElement(address string) bool {
	return slices.ContainsFunc(e.a.has(Element), func(t Thing) bool { return strings.HasPrefix(t.sub, "masq") && t.Address == address })
}

// hasPlumbHostEnd reports whether the node has a host end of the attachment that plumb made. Without it, another
// program may have made the attachment, and have its own rules.
func (e *explainer) hasPlumbHostEnd() bool {
	return slices.ContainsFunc(e.a.has(Link), func(t Thing) bool {
		l, err := e.node.Link(t.Name)
		return err == nil && attach.MadeByPlumb(l)
	})
}

// missingGateways returns a hop for each gateway of the container that the bridge does not have as an address.
func (e *explainer) missingGateways(bridge string) (hops []Hop, err error) {
	l, err := e.node.Link(bridge)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the hops of the host end already show that it has no bridge
	}
	if err != nil {
		return nil, err
	}
	addrs, err := e.node.Addrs(l)
	if err != nil {
		return nil, err
	}
	for _, gateway := range e.a.cached.gateways {
		if !slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr() == gateway }) {
			hops = append(hops, hop(onNode, "%s, the gateway of the container, is no address of %s", gateway, bridge))
		}
	}
	return hops, nil
}

// A portMapping is one element of runtimeConfig.portMappings, which a runtime passes to portmap.
type portMapping struct {
	HostPort int    `json:"hostPort"`
	Protocol string `json:"protocol"`
	HostIP   string `json:"hostIP"`
}

// missingPorts returns a hop for each host port of the attachment that has no element of nftables, if portmap
// forwards with nftables.
func (e *explainer) missingPorts() (hops []Hop) {
	_, runtime := e.a.Added()
	usesNFT := slices.ContainsFunc(e.a.explainedConfs(), func(c explainedConf) bool {
		return c.Type == "portmap" && c.Capabilities["portMappings"] && c.Backend != "iptables" && c.ExternalSetMarkChain == "" && len(c.ConditionsV4)+len(c.ConditionsV6) == 0
	})
	if !usesNFT || !e.hasPlumbHostEnd() {
		return nil
	}
	var mappings []portMapping
	text, err := json.Marshal(runtime.CapabilityArgs["portMappings"])
	if err == nil {
		_ = json.Unmarshal(text, &mappings) // no error: portmap has decoded the same text
	}
	for _, m := range mappings {
		for _, f := range e.families() {
			if m.HostPort != 0 && m.hasFamily(f) && !e.hasPort(m, f) {
				hops = append(hops, hop(onNode, "host port %s %d of IP version %s %s", m.protocol(), m.HostPort, familyVersion(f), e.otherTarget(m, f)))
			}
		}
	}
	return hops
}

// protocol returns the protocol as the keys of the elements have it.
func (m portMapping) protocol() string { return strings.ToLower(cmp.Or(m.Protocol, "tcp")) }

// hasFamily reports whether the mapping forwards packets to host addresses of the family. Without HostIP, and with
// 0.0.0.0, it is for both families.
func (m portMapping) hasFamily(f nft.Family) bool {
	ip, err := netip.ParseAddr(m.HostIP)
	if err != nil || ip == netip.IPv4Unspecified() {
		return true
	}
	return nft.FamilyOf(ip.Unmap()) == f
}

// hasPort reports whether the attachment has an element for the host port. If another container claimed the port
// later, that is the element of the attachment in the map of former owners.
func (e *explainer) hasPort(m portMapping, f nft.Family) bool {
	key := fmt.Sprintf("%s . %d", m.protocol(), m.HostPort)
	return slices.ContainsFunc(e.a.has(Element), func(t Thing) bool {
		return (isHostPortMap(t.sub) || isFormerHostPort(t)) && strings.HasPrefix(t.sub, "hostport"+familyVersion(f)) && strings.Contains(" . "+t.Name+" . ", " . "+key+" . ")
	})
}
