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

// How long ADD waits at most for an event of the kernel.
const (
	portDeadline = 10 * time.Second
	dadDeadline  = 10 * time.Second
)

// podIndex is the index of the container end in the result, after the bridge and the host
// end.
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
	if name, found := nodeInterface(prev, conf.bridge); found {
		return a.connectExisting(prev, name)
	}
	result, err := a.connectNewPair()
	if err != nil {
		return nil, attach.ExplainRemoved(node, a.host, r.IfName, err)
	}
	return appendPrevious(result, prev), nil
}

// An attachment is the state of one ADD.
type attachment struct {
	r         *skel.Request
	conf      *config
	node, pod *nl.Conn
	bridge    nl.Link
	host, eth nl.Link       // the host end and the container end of the pair
	lease     *ipam.Pending // nil: the configuration has no IPAM plugin
}

// connectNewPair makes a veth pair, while the IPAM plugin works, and connects the container
// to the bridge with it.
func (a *attachment) connectNewPair() (*types.Result, error) {
	if err := attach.EnsureNameFree(a.pod, a.r.IfName); err != nil {
		return nil, err
	}
	a.lease.AllowAllocation()
	var err error
	if a.bridge, err = ensureBridge(a.node, a.conf); err != nil {
		return nil, err
	}
	if err := a.warnOfSTPAndMTU(); err != nil {
		return nil, err
	}
	a.host, a.eth, err = attach.AddVeth(&a.r.Undo, attach.Pair{
		Node: a.node, Pod: a.pod, Owner: a.r.Attachment(), MAC: a.conf.mac, MTU: a.conf.mtu,
	})
	if err != nil {
		return nil, err
	}
	if err := makePort(a.node, a.host, a.bridge, a.conf); err != nil {
		return nil, err
	}
	if a.conf.macSpoofCheck {
		if err := addMACSpoofCheck(&a.r.Undo, a.spoofCheck(a.eth.MAC)); err != nil {
			return nil, err
		}
	}
	result := a.result()
	if a.lease != nil {
		err = a.configureAddresses(result)
	} else if !a.conf.podDown {
		err = a.pod.SetUp(a.eth)
	}
	if err != nil {
		return nil, err
	}
	return result, a.awaitReachable(result.IPs)
}

// result returns a result with the bridge, the host end and the container end.
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

// configureAddresses waits for the lease, and configures the container and the node for it.
func (a *attachment) configureAddresses(result *types.Result) error {
	if err := attach.Prepare(a.pod, a.eth, attach.PodSysctls(a.eth.Name, a.conf.dadMode())...); err != nil {
		return err
	}
	lease, err := a.awaitLease()
	if err != nil {
		return err
	}
	if result.IPs, err = withGateways(lease.IPs, a.conf, podIndex); err != nil {
		return err
	}
	result.Routes = withDefaultRoutes(result.IPs, lease.Routes, a.conf)
	if result.DNS.IsZero() {
		result.DNS = lease.DNS
	}
	if err := attach.Apply(a.pod, a.eth, attach.PodSpec(a.eth.Name, a.conf.dadMode(), result.IPs, result.Routes)); err != nil {
		return err
	}
	return a.configureNode(result)
}

// awaitLease waits for the lease. Both ends are up now. Before an IPAM plugin that works over
// the link (dhcp) allocates addresses, awaitLease waits until the port forwards.
func (a *attachment) awaitLease() (*ipam.Lease, error) {
	if ipam.OverLink(a.r) {
		if err := a.node.AwaitRunning(a.host, portDeadline); err != nil {
			return nil, err
		}
	}
	return a.lease.Wait()
}

// configureNode adds to the node what the addresses of the container need: the gateway
// addresses, forwarding and masquerade, as far as they are configured.
func (a *attachment) configureNode(result *types.Result) error {
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

// awaitReachable waits until the port forwards and the container receives packets for its
// addresses, and then announces the addresses to the hosts on the bridge.
func (a *attachment) awaitReachable(ips []types.IP) error {
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

// withGateways returns the IPs with the interface index. If the bridge is the gateway, an IP
// without a gateway gets the first address of its network as gateway. It is an error if a
// gateway is also the address of the container.
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
		isGateway := func(other types.IP) bool { return other.Address.Addr() == ip.Gateway }
		if conf.isGateway && slices.ContainsFunc(out, isGateway) {
			return nil, types.Errorf(types.CodeConfig, "%s is the address of the container and of its gateway, bridge %s: "+
				"change one of the two (\"gateway\" in \"ipam\")", ip.Gateway, conf.bridge)
		}
	}
	return out, nil
}

// withDefaultRoutes adds the default routes that isDefaultGateway asks for. It adds none for
// a family for which the IPAM plugin has returned a default route.
func withDefaultRoutes(ips []types.IP, routes []types.Route, conf *config) []types.Route {
	if !conf.isDefaultGateway {
		return routes
	}
	for _, dst := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		gw := attach.FirstGateway(ips, dst)
		if gw.IsValid() && !hasDefaultRoute(routes, dst) {
			routes = append(routes, types.Route{Dst: dst, GW: gw})
		}
	}
	return routes
}

func hasDefaultRoute(routes []types.Route, dst netip.Prefix) bool {
	for _, route := range routes {
		if route.Dst == dst && route.Table == 0 {
			return true
		}
	}
	return false
}

// gatewaysOf returns the gateways without duplicates, with the prefix lengths of their IPs.
func gatewaysOf(ips []types.IP) []netip.Prefix {
	lease := ipam.Lease{IPs: ips}
	return lease.Gateways()
}

// dadMode returns the mode of duplicate address detection that enabledad asks for.
func (c *config) dadMode() attach.DADMode {
	if c.awaitDAD {
		return attach.DADOn
	}
	return attach.DADOff
}
