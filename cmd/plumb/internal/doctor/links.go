package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
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
			mend := fmt.Sprintf("ip link set dev %[1]s name %[2]s || { ip link set dev %[1]s down && ip link set dev %[1]s name %[2]s && ip link set dev %[2]s up; }", node.Quote(other), node.Quote(name))
			if _, exists := e.link(name); exists {
				mend = edit + fmt.Sprintf("write \"bridge\": %q into %s, or replace the containers on %s", other, f.path, other)
			}
			found = append(found, Finding{Where: f.at(p.Value), What: what, Mend: mend})
		}
	}
	return found
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

// noMaster returns the finding for a master that does not exist.
func (e *examination) noMaster(f *file, v *schema.Value) Finding {
	var names, others []string
	for _, l := range e.links {
		if !attach.MadeByPlumb(l) && l.Name != "lo" {
			names = append(names, l.Name)
		}
		if l.Kind == "" && l.Name != "lo" {
			others = append(others, l.Name)
		}
	}
	what := fmt.Sprintf("%s: the node has no interface %q", v.Path, v.Text())
	if likely := types.Nearest(v.Text(), names); likely != "" {
		return Finding{Where: f.at(v), What: what + "; " + likely + " was probably meant",
			Mend: f.replace(v.Line, v.Key, fmt.Sprintf("%q", v.Text()), fmt.Sprintf("%q", likely))}
	}
	mend := fmt.Sprintf("%swrite the name of an interface of this node into line %d of %s", edit, v.Line, f.path)
	if len(others) > 0 {
		mend += "; its network cards are: " + strings.Join(others, ", ")
	}
	return Finding{Where: f.at(v), What: what, Mend: mend}
}
