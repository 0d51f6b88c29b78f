// Package explain lists the objects that packets from and to a container pass.
package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Path lists the hops of the packets from and to the container of an attachment.
type Path struct {
	Network     string `json:"network"`
	ContainerID string `json:"container"`
	IfName      string `json:"ifName"`
	Out         []Hop  `json:"out"`   // packets from the container
	In          []Hop  `json:"in"`    // packets to the container
	Check       []Hop  `json:"check"` // what CHECK reports
}

// A Hop is one object that processes packets, for example an interface, a route or a rule, or the reason why they are lost.
type Hop struct {
	Where string `json:"where"` // "container" or "host"
	What  string `json:"what"`
}

// These are the values of Hop.Where.
const (
	inContainer = "container"
	onHost      = "host"
)

// AddDamage adds a hop for a problem that CHECK reports.
func (p *Path) AddDamage(plugin, problem string) {
	p.Check = append(p.Check, hop(onHost, "CHECK of %s: %s", plugin, problem))
}

// AddNotChecked adds a hop that says why CHECK of no plugin was called. It ignores a nil error.
func (p *Path) AddNotChecked(err error) {
	if err != nil {
		p.Check = append(p.Check, hop(onHost, "CHECK skipped: %v", err))
	}
}

// New returns the hops of the attachment's packets, in the order in which the packets pass them.
func New(inv *node.Inventory, a *node.Attachment) (p *Path, err error) {
	host, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	c, err := nl.Open(host)
	if err != nil {
		return nil, err
	}
	e := &explainer{inv: inv, a: a, ns: host, host: c, path: &Path{a.Network, a.ContainerID, a.IfName, []Hop{}, []Hop{}, []Hop{}}}
	container := e.containerHops() // before interfaceHops, because it sets e.master
	out, in := e.interfaceHops()
	e.out(append(container, out...)...)
	e.outgoing()
	e.incoming()
	slices.Reverse(in)
	e.in(in...)
	if len(container) > 0 {
		e.in(container[0])
	}
	return e.path, e.err
}

// An explainer collects the hops of a path.
type explainer struct {
	inv    *node.Inventory
	a      *node.Attachment
	ns     *ns.Handle // the host's namespace
	host   *nl.Conn
	path   *Path
	master int   // the index of the master of the container's interface, or 0
	err    error // the errors of objects that exist, but cannot be read
}

// exists reports whether err is nil. It records the error, unless the error only says that an object does not exist.
func (e *explainer) exists(err error) bool {
	e.err = errors.Join(e.err, types.IgnoreNotExist(err))
	return err == nil
}

func (e *explainer) out(hops ...Hop) { e.path.Out = append(e.path.Out, hops...) }
func (e *explainer) in(hops ...Hop)  { e.path.In = append(e.path.In, hops...) }

func hop(where, format string, args ...any) Hop { return Hop{where, fmt.Sprintf(format, args...)} }

// containerHops returns hops for the interface in the container, the rules for its addresses, and its routes.
func (e *explainer) containerHops() []Hop {
	if e.a.NetNS == "" {
		return []Hop{hop(inContainer, "not shown: libcni's cache does not contain the container's namespace")}
	}
	h, err := ns.Open(e.a.NetNS, nil)
	if err != nil {
		return []Hop{hop(inContainer, "not shown: %v", err)}
	}
	defer func() { _ = h.Close() }()
	if !e.a.HasNamespace() {
		return []Hop{hop(inContainer, "not shown: another process has the PID in %s", e.a.NetNS)}
	}
	c, err := nl.Open(h)
	if !e.exists(err) {
		return nil
	}
	l, err := c.Link(e.a.IfName)
	if !e.exists(err) {
		return []Hop{hop(inContainer, "%s does not exist in %s", e.a.IfName, h.Path())}
	}
	e.master = l.Peer
	addrs, addrsErr := c.Addrs(l)
	routes, routesErr := c.Routes(l)
	rules, rulesErr := c.SourceRules()
	e.exists(errors.Join(addrsErr, routesErr, rulesErr))
	hops := []Hop{hop(inContainer, "%s%s", linkText(l), addrsText(addrs))}
	for _, r := range rules {
		if slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr() == r.Source }) {
			hops = append(hops, hop(inContainer, "rule %s", r))
		}
	}
	for _, r := range routes {
		if !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() {
			hops = append(hops, hop(inContainer, "route %s dev %s", defaultText(r), l.Name))
		}
	}
	return hops
}

// defaultText returns the text of a route, with "default" instead of 0.0.0.0/0 and ::/0.
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

// addrsText returns the addresses except link-local ones, with a note at each address that the kernel does not use.
func addrsText(addrs []nl.Addr) string {
	text := ""
	for _, a := range addrs {
		if a.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		text += ", " + a.Prefix.String()
		switch {
		case a.Duplicate:
			text += " (not used, because another host uses it)"
		case a.Tentative && !a.Optimistic:
			text += " (not used yet, because duplicate address detection is running)"
		}
	}
	return text
}

// interfaceHops returns hops for the interfaces of the attachment on the host, in the order in which packets from the
// container pass them. They are the host end with its bridge, or the master. out also contains the ifb to which
// bandwidth redirects packets from the container. in also contains the rate limit for packets to the container.
func (e *explainer) interfaceHops() (out, in []Hop) {
	onOff := map[bool]string{false: "off", true: "on"}
	for _, t := range e.a.ResourcesOf(node.Link) {
		if t.LinkKind == "ifb" || attach.IsAccessEnd(t.Name) {
			continue
		}
		l, err := e.host.Link(t.Name)
		if !e.exists(err) {
			continue
		}
		var ofPort string
		var behind []Hop
		if t.Where != "" {
			port, portErr := e.host.Port(l)
			bridge, err := e.host.Link(t.Where)
			if !e.exists(errors.Join(portErr, err)) {
				continue
			}
			addrs, err := e.host.Addrs(bridge)
			e.exists(err)
			ofPort = fmt.Sprintf(", port of %s: hairpin %s, isolated %s", t.Where, onOff[port.Hairpin], onOff[port.Isolated])
			behind = []Hop{hop(onHost, "%s%s", linkText(bridge), addrsText(addrs))}
		}
		out = slices.Concat(out, []Hop{hop(onHost, "%s%s", linkText(l), ofPort)}, e.ifbHops(), behind)
		in = slices.Concat(in, []Hop{hop(onHost, "%s%s%s", linkText(l), e.limitText(l), ofPort)}, behind)
	}
	if e.a.InterfaceKeys().HasMaster() && e.master != 0 {
		if l, err := e.host.LinkByIndex(e.master); e.exists(err) {
			master := hop(onHost, "%s, master of %s", linkText(l), e.a.IfName)
			out, in = append(out, master), append(in, master)
		}
	}
	return out, in
}

func (e *explainer) ifbHops() (hops []Hop) {
	for _, t := range e.a.ResourcesOf(node.Link) {
		if t.LinkKind != "ifb" {
			continue
		}
		if l, err := e.host.Link(t.Name); e.exists(err) {
			hops = append(hops, hop(onHost, "%s%s", linkText(l), e.limitText(l)))
		}
	}
	return hops
}

// limitText describes the rate limit for packets that a link sends. It returns "" if there is none.
func (e *explainer) limitText(l nl.Link) string {
	q, err := e.host.Qdisc(l, nl.Root)
	if err != nil || q.Kind != "tbf" && q.Kind != "htb" {
		return ""
	}
	return ", limits the rate (" + q.Kind + "; tc -s qdisc show dev " + l.Name + ")"
}

// outgoing adds hops for the checks and the masquerade of packets from the container.
func (e *explainer) outgoing() {
	for _, t := range e.a.ResourcesOf(node.Element) {
		switch t.Set {
		case tables.AllowedMACs:
			e.out(hop(onHost, "table bridge plumb drops frames from the host end with another source than %s (macspoofchk)", t.Name))
		case tables.HostAccessEnds:
			e.out(hop(onHost, "%s carries only packets to and from the host, which table inet plumb limits (host-access)", strings.Trim(t.Name, `"`)))
		case tables.IsolatedPorts:
			e.out(hop(onHost, "table bridge plumb drops frames to other containers of the bridge (ingressPolicy isolated)"))
		}
	}
	for _, t := range e.a.ResourcesOf(node.Element) {
		if node.IsMasqueradeMap(t.Set) {
			except := "the subnet and to multicast addresses"
			if strings.HasPrefix(t.Value, "jump masq_except/") {
				except = "the subnet, to multicast addresses and to ipMasqExcept"
			}
			e.out(hop(onHost, "table inet plumb, chain postrouting: from %s %s, which masquerades, except to %s", t.Name, t.Value, except))
		}
	}
	e.out(e.iptablesHops()...)
}

// iptablesHops returns a hop with the command that lists the iptables rules, if the configuration selects iptables, or
// if portmap's chain of the container exists in the tables of iptables-nft.
func (e *explainer) iptablesHops() []Hop {
	chain := iptables.ContainerChain("CNI-DN-", types.Attachment{Network: e.a.Network, ContainerID: e.a.ContainerID})
	added, _ := e.a.Added()
	list := cmp.Or(added, e.inv.NetworkOf(e.a.Network).List())
	if (list == nil || !strings.Contains(string(list.Bytes), `"iptables"`)) && !e.hasNATChain(chain) {
		return nil
	}
	return []Hop{hop(onHost, "iptables rules of the container are not shown; to list them: { iptables-save; ip6tables-save; } | grep -e %s -e %s",
		types.Command(e.a.ContainerID), chain)}
}

// hasNATChain reports whether the table nat of iptables-nft or ip6tables-nft contains the chain.
func (e *explainer) hasNATChain(chain string) bool {
	c, err := nft.Open(e.ns)
	if err != nil {
		if !errors.Is(err, nft.ErrUnavailable) {
			e.exists(err)
		}
		return false
	}
	return slices.ContainsFunc(nft.Families(), func(f nft.Family) bool {
		return e.exists(c.CheckChain(nft.Table{Family: f, Name: "nat"}, chain))
	})
}

// serviceHop returns a hop that says which packets Services of Kubernetes take from host ports in nftables. In its mode
// ipvs, kube-proxy receives them after the host ports, see tables.ServiceLinks.
func (e *explainer) serviceHop() Hop {
	for _, name := range tables.ServiceLinks() {
		if _, err := e.host.Link(name); e.exists(err) {
			return hop(onHost, "packets to the addresses in the sets %s and %s of table inet plumb, which belong to Services of Kubernetes (%s), are not forwarded",
				tables.ServiceAddrs(nft.IPv4), tables.ServiceAddrs(nft.IPv6), name)
		}
	}
	return hop(onHost, "Services of Kubernetes see these packets first (kube-proxy has the priority dstnat, host ports dstnat + 1)")
}

// incoming adds hops for the host ports and the route of packets to the container.
func (e *explainer) incoming() {
	ports := false
	for _, t := range e.a.ResourcesOf(node.Element) {
		if node.IsHostPortMap(t.Set) {
			ports = true
			e.in(hop(onHost, "host port %s of IP version %s is forwarded to %s (table inet plumb, map %s)", strings.ReplaceAll(t.Name, " . ", " "),
				strings.TrimPrefix(t.Set, "hostport")[:1], strings.Replace(t.Value, " . ", " port ", 1), t.Set))
		}
	}
	if ports {
		e.in(e.serviceHop())
	}
	if e.a.InterfaceKeys().HasMaster() {
		return // packets arrive at the master, and the host does not route them
	}
	for _, text := range e.a.Addresses {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		var refusing *nl.RefusingRoute
		switch l, err := e.host.LinkTo(ip); {
		case e.exists(err):
			e.in(hop(onHost, "route to %s through %s", ip, l.Name))
		case errors.As(err, &refusing):
			e.in(hop(onHost, "%s, which refuses packets to %s", refusing, ip))
		default:
			e.in(hop(onHost, "no route to %s", ip))
		}
	}
}
