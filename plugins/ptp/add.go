package main

import (
	"net/netip"
	"time"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// kernelDeadline is how long ADD waits for the kernel, which tells when it is done.
const kernelDeadline = 10 * time.Second

// podIndex is the container's interface in the result: host end, container.
const podIndex = 1

// An attachment is one ADD at work.
type attachment struct {
	r         *skel.Request
	conf      *config
	node, pod *nl.Conn
	host, eth nl.Link // the two ends of the pair
}

// add makes the pair while the IPAM plugin works, and gives each end its part of the
// lease.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
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
	if err := attach.EnsureFree(pod, r.IfName); err != nil {
		return nil, err
	}
	a := &attachment{r: r, conf: conf, node: node, pod: pod}
	result, err := a.create(pending)
	return result, attach.ExplainRemoved(node, a.host, r.IfName, err)
}

// create makes the pair and gives each end its part of the lease. An IPAM plugin that
// works over the link is asked for the lease when both ends are up.
func (a *attachment) create(pending *ipam.Pending) (*types.Result, error) {
	if !ipam.OverLink(a.r) {
		pending.SendConfig()
	}
	var err error
	a.host, a.eth, err = attach.AddVeth(&a.r.Undo, attach.Pair{Node: a.node, Pod: a.pod, Owner: a.r.Attachment(), MTU: a.conf.mtu})
	if err != nil {
		return nil, err
	}
	if err := a.prepare(); err != nil {
		return nil, err
	}
	if ipam.OverLink(a.r) {
		pending.SendConfig()
	}
	lease, err := pending.Wait()
	if err != nil {
		return nil, err
	}
	result := a.result(lease)
	if result.IPs, err = complete(lease, a.conf.mtu); err != nil {
		return nil, err
	}
	return result, a.connect(result)
}

// prepare sets both ends up. Without accept_dad=0 the node's link-local address, from
// which it asks for the container's hardware address, would be of no use at first.
func (a *attachment) prepare() error {
	noDAD := sysctl.Setting{Key: sysctl.IPv6(a.host.Name, "accept_dad"), Value: "0", Optional: true}
	if err := attach.Prepare(a.node, a.host, noDAD); err != nil {
		return err
	}
	return attach.Prepare(a.pod, a.eth, attach.Baseline(a.eth.Name, attach.Owned)...)
}

func (a *attachment) result(lease *ipam.Lease) *types.Result {
	result := &types.Result{
		Interfaces: []types.Interface{
			{Name: a.host.Name, MAC: a.host.MAC, MTU: a.host.MTU},
			{Name: a.eth.Name, MAC: a.eth.MAC, MTU: a.eth.MTU, Sandbox: a.r.NetNS},
		},
		Routes: lease.Routes,
		DNS:    a.r.Conf.DNS,
	}
	if result.DNS.IsZero() {
		result.DNS = lease.DNS
	}
	return result
}

// connect puts the lease to use on both ends.
func (a *attachment) connect(result *types.Result) error {
	if err := attach.Apply(a.pod, a.eth, podSide(a.eth.Name, result.IPs, result.Routes)); err != nil {
		return err
	}
	if err := attach.Apply(a.node, a.host, nodeSide(a.host.Name, result.IPs)); err != nil {
		return err
	}
	if err := attach.EnsureForwarding(a.node, result.IPs); err != nil {
		return err
	}
	if a.conf.masquerade {
		if err := masq.Add(&a.r.Undo, a.conf.masq(a.r), attach.Prefixes(result.IPs)); err != nil {
			return err
		}
	}
	return a.introduce(result.IPs)
}

// introduce waits until the ends see each other and take packets for their addresses,
// and tells each of the other's, so that the first packet need not be preceded by a
// question: to ask for the container the node's end would need its link-local address,
// which comes later still.
func (a *attachment) introduce(ips []types.IP) error {
	var addrs, gateways []netip.Addr
	var atPod, atNode []nl.Change
	for _, ip := range ips {
		addrs, gateways = append(addrs, ip.Address.Addr()), append(gateways, ip.Gateway)
		atPod = append(atPod, a.eth.Know(ip.Gateway, a.host.MAC))
		atNode = append(atNode, a.host.Know(ip.Address.Addr(), a.eth.MAC))
	}
	for _, end := range []struct {
		c     *nl.Conn
		l     nl.Link
		addrs []netip.Addr
		knows []nl.Change
	}{{a.node, a.host, gateways, atNode}, {a.pod, a.eth, addrs, atPod}} {
		if err := end.c.AwaitRunning(end.l, kernelDeadline); err != nil {
			return err
		}
		if err := end.c.AwaitDelivery(end.l, end.addrs, kernelDeadline); err != nil {
			return err
		}
		if err := end.c.Apply(end.knows...); err != nil {
			return err
		}
	}
	return nil
}
