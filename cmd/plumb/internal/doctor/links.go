package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
)

// bridgeName returns the name of the bridge of a plugin bridge.
func bridgeName(p plugin) string {
	if name := p.Get("bridge").Text(); name != "" {
		return name
	}
	return "cni0"
}

// link returns the link of the node with this name, or with this alternative name.
func (e *examination) link(name string) (nl.Link, bool) {
	i := slices.IndexFunc(e.links, func(l nl.Link) bool { return l.Name == name || slices.Contains(l.AltNames, name) })
	if i < 0 {
		return nl.Link{}, false
	}
	return e.links[i], true
}

// isHostEnd reports whether a link is one that plumb made for a container.
func (e *examination) isHostEnd(name string) bool {
	l, ok := e.link(name)
	return ok && attach.MadeByPlumb(l)
}

// findBridges finds bridges of configurations that do not exist, while another bridge has containers of the network.
func findBridges(e *examination) (found []Finding) {
	for _, f := range e.good() {
		for _, p := range f.plugins {
			if p.typ != "bridge" {
				continue
			}
			name := bridgeName(p)
			other := e.bridgeOf(f.name())
			if other == "" || other == name {
				continue
			}
			e.broken[f] = true
			what := fmt.Sprintf("the bridge of network %q is %s, and its containers are on %s: new containers do not reach them", f.name(), name, other)
			found = append(found, Finding{Where: f.at(p.Value), What: what, Mend: e.mendBridge(f, p, other)})
		}
	}
	return found
}

// mendBridge returns how to mend that the containers of a plugin are on another bridge than the configuration names. The
// results of the containers say which of both has changed.
func (e *examination) mendBridge(f *file, p plugin, other string) string {
	name, added := bridgeName(p), e.bridgesAtAdd(f.name())
	_, exists := e.link(name)
	switch key := p.Get("bridge"); {
	case added[other] && !added[name] && key.Text() != "":
		return f.replace(key.Line, key.Key, key.Literal(), fmt.Sprintf("%q", other))
	case added[name] && !added[other] && !exists:
		return fmt.Sprintf("ip link set dev %[1]s name %[2]s || { ip link set dev %[1]s down && ip link set dev %[1]s name %[2]s && ip link set dev %[2]s up; }", node.Quote(other), node.Quote(name))
	case added[other] || exists:
		return edit + fmt.Sprintf("write \"bridge\": %q into %s, or replace the containers on %s", other, f.path, other)
	}
	return edit + fmt.Sprintf("rename %s to %s if somebody has renamed the bridge, or write \"bridge\": %q into %s if somebody has edited the file", other, name, other, f.path)
}

// bridgesAtAdd returns the names of the bridges in the configurations with which the containers of a network were added.
func (e *examination) bridgesAtAdd(network string) map[string]bool {
	names := map[string]bool{}
	if e.inventory == nil {
		return names
	}
	for _, a := range e.inventory.Attachments {
		list, _ := a.Added()
		if a.Network != network || list == nil {
			continue
		}
		for _, conf := range list.Plugins {
			if v, err := schema.Parse(conf.Bytes); err == nil && conf.Network.Type == "bridge" {
				names[bridgeName(plugin{Value: v})] = true
			}
		}
	}
	return names
}

// bridgeOf returns the name of the bridge that has host ends of the network, or "".
func (e *examination) bridgeOf(network string) string {
	for _, l := range e.links {
		if _, ours := attach.OwnerOf(l, network); !ours || l.Master == 0 {
			continue
		}
		i := slices.IndexFunc(e.links, func(b nl.Link) bool { return b.Index == l.Master && b.Kind == "bridge" })
		if i >= 0 {
			return e.links[i].Name
		}
	}
	return ""
}

// findMasters finds interfaces that configurations name and that the node does not have, or that are down.
func findMasters(e *examination) (found []Finding) {
	keys := map[string]string{"macvlan": "master", "ipvlan": "master", "vlan": "master"}
	for _, f := range e.parsed() {
		for _, p := range f.plugins {
			key := keys[p.typ]
			v := p.Get(key)
			if key == "" || v.Text() == "" || p.Get("linkInContainer").Bool() {
				continue
			}
			switch l, exists := e.link(v.Text()); {
			case !exists:
				e.broken[f] = true
				found = append(found, e.noMaster(f, v))
			case !l.Up:
				found = append(found, Finding{Where: f.at(v), What: fmt.Sprintf("%s: %s is down: containers send and receive nothing through it", v.Path, l.Name),
					Mend: "ip link set dev " + node.Quote(l.Name) + " up"})
			}
		}
	}
	return found
}

// noMaster returns the finding for a master that does not exist. It does not guess which one was meant: an interface with
// a similar name, such as eth0 for eth1, may lead to another network.
func (e *examination) noMaster(f *file, v *schema.Value) Finding {
	var names []string
	for _, l := range e.links {
		if !attach.MadeByPlumb(l) && l.Name != "lo" {
			names = append(names, l.Name)
		}
	}
	mend := fmt.Sprintf("%swrite the name of an interface of this node into line %d of %s", edit, v.Line, f.path)
	if slices.Sort(names); len(names) > 0 {
		mend += ": " + strings.Join(names, ", ")
	}
	return Finding{Where: f.at(v), What: fmt.Sprintf("%s: the node has no interface %q", v.Path, v.Text()), Mend: mend}
}
