package main

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

const (
	kind = "macvlan"
	// dadDeadline limits how long ADD waits for duplicate address detection, which takes
	// one second for each of dad_transmits. The kernel sends an event when it is done.
	dadDeadline = 10 * time.Second
)

func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	where, pod, err := open(r, conf)
	if err != nil {
		return nil, err
	}
	master, err := findMaster(where, conf)
	if err != nil {
		return nil, err
	}
	if err := attach.EnsureNameFree(pod, r.IfName); err != nil {
		return nil, err
	}
	a := &attachment{r: r, conf: conf, pod: pod, master: master, lease: pending}
	a.lease.AllowAllocation()
	if err := a.create(where); err != nil {
		return nil, err
	}
	result := &types.Result{
		Interfaces: []types.Interface{{Name: a.eth.Name, MAC: a.eth.MAC, MTU: a.eth.MTU, Sandbox: r.NetNS}},
		DNS:        r.Conf.DNS,
	}
	if a.lease == nil {
		return result, a.explainUp(pod.SetUp(a.eth))
	}
	return result, a.layer3(result)
}

// open connects to the namespace of the container, and to that of the master (where).
func open(r *skel.Request, conf *config) (where, pod *nl.Conn, err error) {
	if conf.inContainer {
		pod, err = nl.Open(r.Pod)
		return pod, pod, err
	}
	return nl.OpenBoth(r.Node, r.Pod)
}

// An attachment is the state of one ADD.
type attachment struct {
	r      *skel.Request
	conf   *config
	pod    *nl.Conn
	master nl.Link
	eth    nl.Link
	lease  *ipam.Pending // nil: the configuration has no IPAM plugin
}

// create makes the link in the container, under its final name, and sets its alias.
func (a *attachment) create(where *nl.Conn) error {
	var err error
	a.eth, err = where.AddMacvlan(&a.r.Undo, nl.Macvlan{
		Name: a.r.IfName, In: a.pod, Parent: a.master,
		Mode: a.conf.mode, MAC: a.conf.mac, MTU: a.conf.mtu, QueueLen: a.conf.queueLen,
	})
	if err != nil {
		return explainRefusal(err, a.master, a.conf.mode)
	}
	if err := a.pod.SetAlias(a.eth, attach.LinkAlias(a.r.Attachment())); err != nil {
		return err
	}
	if a.conf.mac == "" || a.eth.MAC == a.conf.mac {
		return nil
	}
	// In mode passthru the kernel ignores the configured address and uses the master's.
	// If it is set afterwards, the master has it too, until the link is deleted.
	a.eth.MAC = a.conf.mac
	return a.pod.SetMAC(a.eth, a.conf.mac)
}

// layer3 sets the link up, waits for the lease, and configures the link. It sets the link up
// before it waits, for an IPAM plugin that works over the link (dhcp).
func (a *attachment) layer3(result *types.Result) error {
	err := attach.Prepare(a.pod, a.eth, attach.PodSysctls(a.eth.Name, a.conf.dad)...)
	if err != nil {
		return a.explainUp(err)
	}
	lease, err := a.lease.Wait()
	if err != nil {
		return err
	}
	result.Routes = lease.Routes
	for _, ip := range lease.IPs {
		if ip.Gateway == ip.Address.Addr() {
			return types.Errorf(types.CodeConfig, "address %s is its own gateway: the gateway is another host on the segment, set its address as \"gateway\" in \"ipam\"", ip.Address)
		}
		ip.Interface = 0
		result.IPs = append(result.IPs, ip)
	}
	if result.DNS.IsZero() {
		result.DNS = lease.DNS
	}
	spec := attach.PodSpec(a.eth.Name, a.conf.dad, result.IPs, result.Routes)
	if err := attach.Apply(a.pod, a.eth, spec); err != nil {
		return err
	}
	if err := a.awaitUsable(result.IPs); err != nil {
		return err
	}
	return attach.Announce(a.pod, a.eth)
}

// explainUp adds to the kernel's error why the link cannot be set up: only then it looks
// for another link with the same MAC on the master (macvlan_open).
func (a *attachment) explainUp(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return types.Errorf(types.CodeConfig, "the MAC address %s is that of master %s, or of another macvlan on it: %w", a.eth.MAC, a.master.Name, err)
	}
	return err
}

// awaitUsable waits for duplicate address detection. It does not wait if the master has
// no carrier: the kernel starts the detection when it has one.
func (a *attachment) awaitUsable(ips []types.IP) error {
	if !a.master.Carrier {
		a.r.Warn("master %s is down or has no carrier: until it has one, the container reaches no other host, and IPv6 addresses are not checked for duplicates", a.master.Name)
		return nil
	}
	has6 := slices.ContainsFunc(ips, func(ip types.IP) bool { return ip.Address.Addr().Is6() })
	if !has6 || a.conf.dad != attach.DADOn {
		return nil
	}
	err := a.pod.AwaitUsable(a.eth, dadDeadline)
	switch {
	case errors.Is(err, nl.ErrDuplicate):
		return types.Errorf(codeDuplicate, "%w; give the other host or this container another address", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return types.Errorf(types.CodeTryAgain, "%w", err)
	}
	return err
}
