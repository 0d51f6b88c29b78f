package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/sysctl"
)

// A Path has the hops of the packets from and to the container of an attachment.
type Path struct {
	Network     string `json:"network"`
	ContainerID string `json:"container"`
	IfName      string `json:"ifName"`
	Out         []Hop  `json:"out"` // from the container
	In          []Hop  `json:"in"`  // to the container
}

// A Hop is one thing that processes packets, such as an interface, a route or a rule, or the reason why they are lost.
type Hop struct {
	Where string `json:"where"` // "container" or "node"
	What  string `json:"what"`
}

// The values of Hop.Where.
const (
	inContainer = "container"
	onNode      = "node"
)

// Find returns the attachments of the container whose ID is or begins with prefix, or of one of its interfaces.
// If no container or more than one has the prefix, Find returns an error.
func (inv *Inventory) Find(prefix, ifName string) ([]*Attachment, error) {
	var found []*Attachment
	ids := map[string]bool{}
	exact := slices.ContainsFunc(inv.Attachments, func(a *Attachment) bool { return a.ContainerID == prefix })
	for _, a := range inv.Attachments {
		matches := a.ContainerID == prefix || !exact && strings.HasPrefix(a.ContainerID, prefix)
		if a.ContainerID != "" && matches && (ifName == "" || a.IfName == ifName) {
			found = append(found, a)
			ids[a.ContainerID] = true
		}
	}
	switch {
	case len(found) == 0 && ifName != "":
		return nil, fmt.Errorf("no container whose ID begins with %q has an interface %q in a network of this node; plumb list shows all", prefix, ifName)
	case len(found) == 0:
		return nil, fmt.Errorf("no container whose ID begins with %q is attached to a network of this node; plumb list shows all", prefix)
	case len(ids) > 1:
		return nil, fmt.Errorf("%d containers have IDs that begin with %q; give more of the ID", len(ids), prefix)
	}
	return found, nil
}

// Explain returns the hops of the attachment's packets, in the order in which the packets pass them.
func (inv *Inventory) Explain(a *Attachment) (p *Path, err error) {
	node, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	c, err := nl.Open(node)
	if err != nil {
		return nil, err
	}
	e := &explainer{inv: inv, a: a, node: c, path: &Path{a.Network, a.ContainerID, a.IfName, []Hop{}, []Hop{}}}
	container, err := e.containerHops()
	if err != nil {
		return nil, err
	}
	host, err := e.hostHops()
	if err != nil {
		return nil, err
	}
	e.out(container...)
	e.out(host...)
	if err := e.nodeHops(node); err != nil {
		return nil, err
	}
	if e.portMaps, err = readPortMaps(node); err != nil && !errors.Is(err, nft.ErrUnavailable) && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := e.incoming(); err != nil {
		return nil, err
	}
	slices.Reverse(host)
	e.in(host...)
	if len(container) > 0 {
		e.in(container[0])
	}
	return e.path, nil
}

// An explainer collects the hops of a path.
type explainer struct {
	inv  *Inventory
	a    *Attachment
	node *nl.Conn
	path *Path
	// master is the index of the master of the container's interface, if that has one.
	master   int
	portMaps []portMap
}

func (e *explainer) out(hops ...Hop) { e.path.Out = append(e.path.Out, hops...) }
func (e *explainer) in(hops ...Hop)  { e.path.In = append(e.path.In, hops...) }

// hop returns a hop with a text that is formatted as by fmt.Sprintf.
func hop(where, format string, args ...any) Hop { return Hop{where, fmt.Sprintf(format, args...)} }

// containerHops returns hops for the interface in the container, the rules for its addresses, and its routes.
func (e *explainer) containerHops() ([]Hop, error) {
	if e.a.NetNS == "" {
		return []Hop{hop(inContainer, "not shown: libcni's cache does not tell the container's namespace")}, nil
	}
	h, err := ns.Open(e.a.NetNS, nil)
	if err == nil && !e.a.HasNamespace() {
		return []Hop{hop(inContainer, "not shown: another process has the number of %s", e.a.NetNS)}, h.Close()
	}
	if err != nil {
		return []Hop{hop(inContainer, "not shown: %v", err)}, nil
	}
	hops, err := e.containerHopsIn(h, e.a.IfName)
	return hops, errors.Join(err, h.Close())
}

// containerHopsIn is containerHops in the namespace. It sets the index of the master.
func (e *explainer) containerHopsIn(h *ns.Handle, ifName string) ([]Hop, error) {
	c, err := nl.Open(h)
	if err != nil {
		return nil, err
	}
	l, err := c.Link(ifName)
	if errors.Is(err, fs.ErrNotExist) {
		return []Hop{hop(inContainer, "%s does not exist in %s", ifName, h.Path())}, nil
	}
	if err != nil {
		return nil, err
	}
	addrs, err := c.Addrs(l)
	if err != nil {
		return nil, err
	}
	routes, err := c.Routes(l)
	if err != nil {
		return nil, err
	}
	e.master = l.Peer
	rules, err := c.SourceRules()
	hops := []Hop{hop(inContainer, "%s%s", linkText(l), addrsText(addrs))}
	for _, r := range rules {
		if slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr() == r.Source }) {
			hops = append(hops, hop(inContainer, "rule %s", r))
		}
	}
	for _, dst := range e.a.cached.routes {
		if !slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dst == dst }) {
			hops = append(hops, hop(inContainer, "has no route %s dev %s, which its ADD returned", dst, l.Name))
		}
	}
	for _, r := range routes {
		if !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() {
			hops = append(hops, hop(inContainer, "route %s dev %s", defaultText(r), l.Name))
		}
	}
	return hops, err
}

// defaultText returns the route with the word default for 0.0.0.0/0 and ::/0.
func defaultText(r nl.Route) string {
	text := r.String()
	if r.Dst.Bits() == 0 {
		text = "default" + strings.TrimPrefix(text, r.Dst.String())
	}
	return text
}

// linkText returns the name, kind, state and MTU of a link.
func linkText(l nl.Link) string {
	text := l.Name
	if l.Kind != "" {
		text += " (" + l.Kind + ")"
	}
	switch {
	case !l.Up:
		text += " is down"
	case !l.Carrier:
		text += " has no carrier"
	}
	return fmt.Sprintf("%s, MTU %d", text, l.MTU)
}

// addrsText returns the addresses without link-local ones, and says if the kernel does not use one.
func addrsText(addrs []nl.Addr) string {
	text := ""
	for _, a := range addrs {
		if a.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		text += ", " + a.Prefix.String()
		switch {
		case a.Duplicate:
			text += " (another host has it: not used)"
		case a.Tentative && !a.Optimistic:
			text += " (not used yet: duplicate address detection runs)"
		}
	}
	return text
}

// hostHops returns hops for the interfaces of the attachment on the node, in the order in which packets from the
// container pass them: the host end with its rate limit, and its bridge; or the master.
func (e *explainer) hostHops() ([]Hop, error) {
	var hops []Hop
	for _, t := range e.a.has(Link) {
		l, err := e.node.Link(t.Name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		text := linkText(l)
		if q, err := e.node.Qdisc(l, nl.Root); err == nil && (q.Kind == "tbf" || q.Kind == "htb") {
			text += ", limits the rate (" + q.Kind + "; tc -s qdisc show dev " + l.Name + ")"
		}
		if bridge := e.a.interfaceConf().bridgeName(); t.Where == "" && bridge != "" && l.Kind == "veth" {
			hops = append(hops, hop(onNode, "%s, is no port of %s", text, bridge))
			continue
		}
		if t.Where == "" {
			hops = append(hops, hop(onNode, "%s", text))
			continue
		}
		port, err := e.node.Port(l)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		hops = append(hops, hop(onNode, "%s, port of %s: hairpin %s, isolated %s", text, t.Where, onOff(port.Hairpin), onOff(port.Isolated)))
		bridge, err := e.bridgeHop(t.Where)
		if err != nil {
			return nil, err
		}
		hops = append(hops, bridge)
	}
	if e.a.interfaceConf().hasMaster() && e.master != 0 {
		l, err := e.node.LinkByIndex(e.master)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			hops = append(hops, hop(onNode, "%s, master of %s", linkText(l), e.a.IfName))
		}
	}
	return hops, nil
}

// bridgeHop returns the hop for the bridge, with its addresses.
func (e *explainer) bridgeHop(name string) (Hop, error) {
	l, err := e.node.Link(name)
	if err != nil {
		return Hop{}, err
	}
	addrs, err := e.node.Addrs(l)
	return hop(onNode, "%s%s", linkText(l), addrsText(addrs)), err
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// nodeHops adds hops for what the node does with packets from the container: checks, forwarding and masquerade.
func (e *explainer) nodeHops(node *ns.Handle) error {
	missing, err := e.missingHops()
	if err != nil {
		return err
	}
	e.out(missing...)
	for _, t := range e.a.has(Element) {
		switch t.sub {
		case "allowed":
			e.out(hop(onNode, "table bridge plumb drops frames from the host end with another source than %s (macspoofchk)", t.Name))
		case "isolated_ports":
			e.out(hop(onNode, "table bridge plumb drops frames to other containers of the bridge (ingressPolicy isolated)"))
		}
	}
	for _, f := range e.families() {
		key := map[nft.Family]string{nft.IPv4: "net/ipv4/ip_forward", nft.IPv6: "net/ipv6/conf/all/forwarding"}[f]
		value, err := sysctl.Get(node, key)
		if err != nil {
			return err
		}
		if value != "1" {
			e.out(hop(onNode, "does not forward packets of IP version %s: %s is %s", familyVersion(f), strings.ReplaceAll(key, "/", "."), value))
		}
	}
	for _, t := range e.a.has(Element) {
		if t.Address != "" && strings.HasPrefix(t.sub, "masq") {
			e.out(hop(onNode, "table inet plumb, chain postrouting: from %s %s, which masquerades, except to the subnet and to multicast addresses", t.Name, t.Value))
		}
	}
	e.out(e.iptablesHops()...)
	return nil
}

// families returns the families of the addresses.
func (e *explainer) families() []nft.Family {
	var all []nft.Family
	for _, text := range e.a.Addresses {
		if ip, err := netip.ParseAddr(text); err == nil && !slices.Contains(all, nft.FamilyOf(ip)) {
			all = append(all, nft.FamilyOf(ip))
		}
	}
	return all
}

// iptablesHops returns a hop that says how to list the rules of iptables, if the configuration asks for iptables.
func (e *explainer) iptablesHops() []Hop {
	list := e.inv.network(e.a.Network).list
	if e.a.cached != nil && e.a.cached.list != nil {
		list = e.a.cached.list
	}
	if list == nil || !strings.Contains(string(list.Bytes), `"iptables"`) {
		return nil
	}
	return []Hop{hop(onNode, "the configuration asks for rules of iptables, which are not shown: iptables-save | grep -e %s", Quote(e.a.ContainerID))}
}

// incoming adds hops for what the node does with packets to the container: host ports, and the route.
func (e *explainer) incoming() error {
	ports := false
	for _, t := range e.a.has(Element) {
		family := strings.TrimPrefix(t.sub, "hostport")
		switch {
		case isHostPortMap(t.sub):
			ports = true
			e.in(hop(onNode, "host port %s of IP version %s leads to %s (table inet plumb, map %s)",
				strings.ReplaceAll(t.Name, " . ", " "), family[:1], strings.Replace(t.Value, " . ", " port ", 1), t.sub))
		case isFormerHostPort(t):
			e.in(hop(onNode, "host port %s leads to %s, which claimed it later", strings.ReplaceAll(t.Name, " . ", " "),
				e.holder(strings.TrimSuffix(t.sub, formerSuffix), t.Name)))
		}
	}
	e.in(e.missingPorts()...)
	if ports {
		e.in(hop(onNode, "Services of Kubernetes see these packets first (kube-proxy has the priority dstnat, host ports dstnat + 1)"))
	}
	if e.a.interfaceConf().hasMaster() {
		return nil // packets come through the master, without a route of the node
	}
	for _, text := range e.a.Addresses {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		l, err := e.node.LinkTo(ip)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			e.in(hop(onNode, "has no route to %s", ip))
		case err != nil:
			return err
		default:
			e.in(hop(onNode, "route to %s through %s%s", ip, l.Name, e.wrongWay(l.Name)))
		}
	}
	return nil
}

// wrongWay returns what to add to a route through an interface that does not lead to the container, as far as the host end
// or the configuration tells. The gateway of a VLAN on a bridge is <bridge>.<ID>.
func (e *explainer) wrongWay(through string) string {
	var right []string
	for _, name := range append(e.hostNames(), e.a.interfaceConf().bridgeName()) {
		if name != "" && (through == name || strings.HasPrefix(through, name+".")) {
			return ""
		}
		if name != "" && !slices.Contains(right, name) {
			right = append(right, name)
		}
	}
	if len(right) == 0 {
		return ""
	}
	return ", which does not lead to the container: it is behind " + strings.Join(right, ", ")
}

// hostNames returns the host ends of the attachment and their bridges.
func (e *explainer) hostNames() (names []string) {
	for _, t := range e.a.has(Link) {
		names = append(names, t.Name, t.Where)
	}
	return names
}

// otherTarget says what becomes of a host port for which the attachment has no element: another element may have taken it.
func (e *explainer) otherTarget(m portMapping, f nft.Family) string {
	set := "hostport" + familyVersion(f)
	key := fmt.Sprintf("%s . %d", m.protocol(), m.HostPort)
	for _, s := range e.portMaps {
		for _, element := range s.elements {
			of, at := s.Set.Name, element.Key.Text(s.Key)
			if of == set && at == key || of == set+"ip" && at == m.HostIP+" . "+key {
				return fmt.Sprintf("leads to %s, by an element that is not of this container (table inet plumb, map %s)",
					strings.Replace(element.Data.Text(s.Data), " . ", " port ", 1), of)
			}
		}
	}
	return "is not forwarded: table inet plumb has no element for it"
}

// A portMap is a map of host ports with its elements.
type portMap struct {
	nft.Set
	elements []nft.Element
}

// readPortMaps reads the maps of host ports.
func readPortMaps(node *ns.Handle) (maps []portMap, err error) {
	c, err := nft.Open(node)
	if err != nil {
		return nil, err
	}
	table := nft.OwnTables()[0]
	sets, err := c.Sets(table)
	for _, s := range sets {
		if isHostPortMap(s.Name) {
			elements, elementsErr := c.Elements(table, s.Name)
			maps, err = append(maps, portMap{s, elements}), errors.Join(err, elementsErr)
		}
	}
	return maps, err
}

// holder returns the attachment that has the element with this key in a map.
func (e *explainer) holder(set, key string) string {
	for _, a := range e.inv.Attachments {
		for _, t := range a.Things {
			if t.sub == set && t.Name == key {
				return a.ID().String()
			}
		}
	}
	return "an unknown container"
}

// familyVersion returns the IP version of a family.
func familyVersion(f nft.Family) string {
	if f == nft.IPv6 {
		return "6"
	}
	return "4"
}
