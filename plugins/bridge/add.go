package main

import (
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
	a := &attachment{r: r, conf: conf, node: node, pod: pod, pending: pending}
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
	pending   *ipam.Pending // nil: the configuration has no IPAM plugin
}

// connectNewPair makes a veth pair, while the IPAM plugin works, and connects the container
// to the bridge with it.
func (a *attachment) connectNewPair() (*types.Result, error) {
	if err := attach.EnsureNameFree(a.pod, a.r.IfName); err != nil {
		return nil, err
	}
	a.pending.AllowAllocation()
	err := a.ensureBridge()
	if err != nil {
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
		if err := addMACSpoofCheck(&a.r.Undo, a.spoofCheck()); err != nil {
			return nil, err
		}
	}
	result := a.result()
	switch {
	case a.pending != nil:
		err = a.configure(result)
	case !a.conf.podDown:
		err = a.pod.SetUp(a.eth)
	}
	if err != nil {
		return nil, err
	}
	return result, a.awaitReachable(result.IPs)
}

// ensureBridge makes or adapts the bridge, and warns of what limits its use.
func (a *attachment) ensureBridge() (err error) {
	if a.bridge, err = ensureBridge(a.node, a.conf); err != nil {
		return err
	}
	return a.warnOfSTPAndMTU()
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

// configure configures the container and the node for the lease.
func (a *attachment) configure(result *types.Result) error {
	if err := a.configurePod(result, podIndex); err != nil {
		return err
	}
	return a.configureNode(result)
}

// configurePod waits for the lease, adds it to the result, and configures the interface of the
// container for it. index is the index of that interface in the result, or types.NoInterface
// if the container has none.
func (a *attachment) configurePod(result *types.Result, index int) error {
	if index != types.NoInterface {
		if err := attach.Prepare(a.pod, a.eth, attach.PodSysctls(a.eth.Name, a.conf.dadMode())...); err != nil {
			return err
		}
	}
	lease, err := a.awaitLease()
	if err != nil {
		return err
	}
	if err := a.conf.setGateways(lease.IPs); err != nil {
		return err
	}
	lease.Routes = a.conf.withDefaultRoutes(lease.IPs, lease.Routes)
	lease.AddTo(result, index)
	if index == types.NoInterface {
		return nil
	}
	return attach.Apply(a.pod, a.eth, attach.PodSpec(a.eth.Name, a.conf.dadMode(), lease.IPs, lease.Routes))
}

// awaitLease waits for the lease. Both ends are up now. Before an IPAM plugin that works over
// the link (dhcp) allocates addresses, awaitLease waits until the port forwards.
func (a *attachment) awaitLease() (*ipam.Lease, error) {
	if ipam.OverLink(a.r) {
		if err := a.node.AwaitRunning(a.host, portDeadline); err != nil {
			return nil, err
		}
	}
	return a.pending.Wait()
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
	return masq.Add(&a.r.Undo, a.conf.masq(a.r), attach.Prefixes(result.IPs))
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
