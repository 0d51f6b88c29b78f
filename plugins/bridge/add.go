package main

import (
	"net/netip"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// How long ADD waits for the kernel, which tells when it is done.
const (
	portDeadline = 10 * time.Second
	dadDeadline  = 10 * time.Second
)

// podIndex is the container's interface in the result: bridge, host end, container.
const podIndex = 2

func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	prev, err := r.Prev()
	if err != nil {
		return nil, err
	}
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return nil, err
	}
	a := &attachment{r: r, conf: conf, node: node, pod: pod, lease: pending}
	if port, found := portOf(prev, conf.bridge); found {
		return a.chain(prev, port)
	}
	result, err := a.create()
	if err != nil {
		return nil, attach.ExplainRemoved(node, a.host, r.IfName, err)
	}
	return withPrevious(result, prev), nil
}

// An attachment is one ADD at work.
type attachment struct {
	r         *skel.Request
	conf      *config
	node, pod *nl.Conn
	bridge    nl.Link
	host, eth nl.Link       // the two ends of the pair
	lease     *ipam.Pending // nil: a network without addresses
}

// create makes the pair while the IPAM plugin works.
func (a *attachment) create() (*types.Result, error) {
	if err := attach.EnsureFree(a.pod, a.r.IfName); err != nil {
		return nil, err
	}
	if !ipam.OverLink(a.r) {
		a.lease.SendConfig()
	}
	var err error
	if a.bridge, err = ensureBridge(a.node, a.conf); err != nil {
		return nil, err
	}
	if err := a.warnOfBridge(); err != nil {
		return nil, err
	}
	a.host, a.eth, err = attach.AddVeth(&a.r.Undo, attach.Pair{
		Node: a.node, Pod: a.pod, Owner: a.r.Attachment(), MAC: a.conf.mac, MTU: a.conf.mtu,
	})
	if err != nil {
		return nil, err
	}
	if err := plug(a.node, a.host, a.bridge, a.conf); err != nil {
		return nil, err
	}
	if a.conf.macSpoofCheck {
		if err := addMACSpoofCheck(&a.r.Undo, a.spoofCheck(a.eth.MAC)); err != nil {
			return nil, err
		}
	}
	result := a.result()
	if a.lease != nil {
		err = a.layer3(result)
	} else if !a.conf.podDown {
		err = a.pod.Apply(a.eth.SetUp())
	}
	if err != nil {
		return nil, err
	}
	return result, a.settle(result.IPs)
}

// result lists what has been made so far: the bridge, the host end, the container's.
func (a *attachment) result() *types.Result {
	return &types.Result{
		Interfaces: []types.Interface{
			{Name: a.bridge.Name, MAC: a.bridge.MAC, MTU: a.bridge.MTU},
			{Name: a.host.Name, MAC: a.host.MAC, MTU: a.host.MTU},
			{Name: a.eth.Name, MAC: a.eth.MAC, MTU: a.eth.MTU, Sandbox: a.r.NetNS},
		},
		DNS: a.r.Conf.DNS,
	}
}

// layer3 takes the lease and puts it to use.
func (a *attachment) layer3(result *types.Result) error {
	if err := attach.Prepare(a.pod, a.eth, attach.Baseline(a.eth.Name, a.conf.segment())...); err != nil {
		return err
	}
	lease, err := a.awaitLease()
	if err != nil {
		return err
	}
	if result.IPs, err = withGateways(lease.IPs, a.conf, podIndex); err != nil {
		return err
	}
	result.Routes = withDefaults(result.IPs, lease.Routes, a.conf)
	if result.DNS.IsZero() {
		result.DNS = lease.DNS
	}
	if err := attach.Apply(a.pod, a.eth, attach.PodSpec(a.eth.Name, a.conf.segment(), result.IPs, result.Routes)); err != nil {
		return err
	}
	return a.serve(result)
}

// awaitLease waits for the lease. An IPAM plugin that works over the link is asked for
// it only now that both ends are up, when the port forwards.
func (a *attachment) awaitLease() (*ipam.Lease, error) {
	if ipam.OverLink(a.r) {
		if err := a.node.AwaitRunning(a.host, portDeadline); err != nil {
			return nil, err
		}
		a.lease.SendConfig()
	}
	return a.lease.Wait()
}

// serve does on the node what the container's addresses need: gateway, forwarding,
// masquerade.
func (a *attachment) serve(result *types.Result) error {
	if a.conf.isGateway {
		dev, err := a.ensureGateway(result.IPs)
		if err != nil {
			return err
		}
		if dev.Index != a.bridge.Index {
			result.Interfaces = append(result.Interfaces, types.Interface{Name: dev.Name, MAC: dev.MAC, MTU: dev.MTU})
		}
		if err := attach.EnsureForwarding(a.node, result.IPs); err != nil {
			return err
		}
	}
	if !a.conf.masquerade {
		return nil
	}
	return masq.Add(&a.r.Undo, a.masquerade(), attach.Prefixes(result.IPs))
}

func (a *attachment) masquerade() masq.Masq {
	return masq.Masq{Node: a.r.Node, Owner: a.r.Attachment(), Backend: a.conf.masqBackend, Warn: a.r.Warn}
}

// settle waits until the port forwards and the container takes packets for its
// addresses, and tells the segment of them.
func (a *attachment) settle(ips []types.IP) error {
	if a.conf.podDown {
		return nil
	}
	if err := a.node.AwaitRunning(a.host, portDeadline); err != nil {
		return err
	}
	if a.conf.awaitDAD {
		if err := a.pod.AwaitUsable(a.eth, dadDeadline); err != nil {
			return err
		}
	}
	if err := a.pod.AwaitDelivery(a.eth, addresses(attach.Prefixes(ips)), portDeadline); err != nil {
		return err
	}
	return attach.Announce(a.pod, a.eth)
}

func addresses(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, p.Addr())
	}
	return out
}

// withGateways gives the IPs to the interface, and to those without a gateway the
// first address of their network where the bridge is to be the gateway.
func withGateways(ips []types.IP, conf *config, index int) ([]types.IP, error) {
	out := make([]types.IP, 0, len(ips))
	for _, ip := range ips {
		ip.Interface = index
		if conf.isGateway && (!ip.Gateway.IsValid() || ip.Gateway.IsUnspecified()) {
			ip.Gateway = ip.Address.Masked().Addr().Next()
		}
		out = append(out, ip)
	}
	for _, ip := range out {
		own := func(other types.IP) bool { return other.Address.Addr() == ip.Gateway }
		if conf.isGateway && slices.ContainsFunc(out, own) {
			return nil, types.Errorf(types.CodeConfig, "%s is the address of the container and of its gateway, bridge %s: "+
				"give one of them another (\"gateway\" in \"ipam\")", ip.Gateway, conf.bridge)
		}
	}
	return out, nil
}

// withDefaults adds the default routes that isDefaultGateway asks for. A default
// route that the IPAM plugin gave is that route already.
func withDefaults(ips []types.IP, routes []types.Route, conf *config) []types.Route {
	if !conf.isDefaultGateway {
		return routes
	}
	for _, dst := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		gw := attach.FirstGateway(ips, dst)
		if gw.IsValid() && !hasDefault(routes, dst) {
			routes = append(routes, types.Route{Dst: dst, GW: gw})
		}
	}
	return routes
}

func hasDefault(routes []types.Route, dst netip.Prefix) bool {
	for _, route := range routes {
		if route.Dst == dst && route.Table == 0 {
			return true
		}
	}
	return false
}

// gatewaysOf lists the gateways, each once, with the prefix length of their IP.
func gatewaysOf(ips []types.IP) []netip.Prefix {
	lease := ipam.Lease{IPs: ips}
	return lease.Gateways()
}

// segment says whether anybody but the IPAM plugin hands out addresses on the
// bridge; enabledad says so.
func (c *config) segment() attach.Segment {
	if c.awaitDAD {
		return attach.Shared
	}
	return attach.Owned
}
