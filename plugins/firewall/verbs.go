package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A firewall is the state of one call.
type firewall struct {
	r      *skel.Request
	conf   *config
	addrs  []netip.Addr // the addresses of all interfaces in prevResult
	bridge nl.Link      // the interface that findBridge found; it is the zero Link if there is none
	device string       // the interface to which the policy applies; it is empty if there is none (see findDevice)
	ports  []string     // the host ends of the attachment that are ports of the bridge
	links  *nl.Conn
	c      *nft.Conn         // nil if the kernel lacks nftables
	chains []nft.ListedChain // the host's chains at the start of the call
}

const withoutPolicy = "%w; load the modules of nf_tables, or omit ingressPolicy"

// add lets the host forward the container's packets, sets the policy of the bridge, and returns
// prevResult.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	f, prev, err := prepare(r, conf)
	if err != nil {
		return nil, err
	}
	if err := f.allow(); err != nil {
		return nil, fmt.Errorf("forward packets of %s: %w", r.Attachment(), err)
	}
	err = f.isolate()
	if errors.Is(err, nft.ErrUnavailable) { // the kernel lacks a part of nftables
		err = types.Errorf(types.CodeConfig, withoutPolicy, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ingress policy %s: %w", f.conf.policy, err)
	}
	return prev, nil
}

// repair adds what check reports as missing. It changes neither the policy that another ADD has set for the bridge
// since, nor sources of other attachments.
func repair(r *skel.Request, conf *config) error {
	f, _, err := prepare(r, conf)
	if err != nil {
		return err
	}
	isolationErr := f.checkIsolation()
	if f.checkAllowed() != nil {
		err = f.allow()
	}
	if isolationErr != nil {
		err = errors.Join(err, f.isolate())
	}
	if err != nil {
		return fmt.Errorf("repair firewall of %s: %w", r.Attachment(), err)
	}
	return nil
}

// isolate sets the policy of the bridge. Except in REPAIR, it deletes the reference plugin's policy.
func (f *firewall) isolate() error {
	if f.conf.policy == isolated && f.bridge.Kind == "bridge" && len(f.ports) == 0 {
		f.r.Warn("containers of %s may reach each other, because isolation needs a port of the bridge in prevResult", f.bridge.Name)
	}
	rules, err := f.policyRules()
	if err != nil {
		return err
	}
	if f.conf.policy == isolated {
		if err := f.addIsolatedPorts(); err != nil {
			return err
		}
	}
	if err := f.setPolicy(rules); err != nil {
		return err
	}
	if f.r.IsRepair() || !slices.ContainsFunc(rules, f.isAboutDevice) {
		return nil
	}
	return f.deletePolicyRules()
}

// del deletes the rules, nftables elements and firewalld sources that ADD added for the attachment. It
// searches all backends for the attachment's name, and does not need prevResult.
func del(r *skel.Request) error {
	conf, _ := parse(r)
	f := &firewall{r: r, conf: conf}
	if prev, _ := r.Prev(); prev != nil {
		f.addrs = addresses(prev)
	}
	if err := f.connect(); err != nil {
		return r.IgnoreForbidden(err)
	}
	return errors.Join(f.deleteRules(f.addrs), f.delElements())
}

// check returns an error that lists the differences from the state after ADD. It accepts the rules of the
// reference plugin.
func check(r *skel.Request, conf *config) error {
	f, _, err := prepare(r, conf)
	if err != nil {
		return err
	}
	if err := errors.Join(f.checkAllowed(), f.checkIsolation()); err != nil {
		return types.Coded(types.CodeChanged, fmt.Errorf("check firewall of %s: %w", r.Attachment(), err))
	}
	return nil
}

// status returns an error if an ADD would fail now, or if other programs might drop a container's packets.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return types.NotAvailable(err)
	}
	f := &firewall{r: r, conf: conf}
	if err := f.readHost(); err != nil {
		return types.NotAvailable(err)
	}
	return f.checkAdd()
}

// gc deletes the rules, nftables elements and firewalld sources of the network's attachments that are not
// in cni.dev/valid-attachments.
func gc(r *skel.Request) error {
	f := &firewall{r: r, conf: &config{}}
	if err := f.connect(); err != nil {
		return r.IgnoreForbidden(err)
	}
	keep := r.ValidAttachments()
	return errors.Join(f.gcRules(keep), f.gcElements(keep))
}

// prepare reads prevResult, and finds the host's chains, the bridge and its ports
// for ADD and CHECK.
func prepare(r *skel.Request, conf *config) (*firewall, *types.Result, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, nil, err
	}
	f := &firewall{r: r, conf: conf, addrs: addresses(prev)}
	if err := f.readHost(); err != nil {
		return nil, nil, err
	}
	return f, prev, f.findBridge(prev)
}

// connect opens the connections to the kernel.
func (f *firewall) connect() (err error) {
	if f.links, err = nl.Open(f.r.HostNS); err == nil {
		f.c, err = nft.OpenIfSupported(f.r.HostNS)
	}
	return err
}

// readHost connects, and lists the chains of the host. If the kernel lacks nftables, it falls back to iptables, unless the
// configuration needs nftables.
func (f *firewall) readHost() error {
	err := f.connect()
	if err == nil && f.c != nil {
		f.chains, err = f.c.AllChains()
	}
	switch {
	case err != nil || f.c != nil:
		return err
	case f.conf.backend == nftables:
		return types.Errorf(types.CodeConfig, "%w; load the module nf_tables, or use the iptables backend", nft.ErrUnavailable)
	case f.conf.policy != open:
		return types.Errorf(types.CodeConfig, withoutPolicy, nft.ErrUnavailable)
	case f.conf.backend == "":
		f.conf.backend = iptables
	}
	return nil
}

// addresses returns the addresses in prevResult without duplicates. It omits loopback addresses, because
// the kernel never forwards their packets.
func addresses(prev *types.Result) (addrs []netip.Addr) {
	for _, ip := range prev.IPs {
		if a := ip.Address.Addr(); !a.IsLoopback() && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// findBridge sets f.bridge to the first bridge among the host's interfaces in prevResult. Without a
// bridge, it chooses the first of these interfaces, for example the host end of ptp.
func (f *firewall) findBridge(prev *types.Result) error {
	var hostLinks []nl.Link
	for _, in := range prev.Interfaces {
		if in.Sandbox != "" {
			continue
		}
		l, err := f.links.Link(in.Name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		hostLinks = append(hostLinks, l)
		if l.Kind == "bridge" && f.bridge.Kind != "bridge" || f.bridge.Name == "" {
			f.bridge = l
		}
	}
	if f.bridge.Name == "" && f.conf.policy != open {
		return types.Errorf(types.CodeConfig,
			"interface needs to be set for ingress policy %q, make sure to chain \"firewall\" plugin with \"bridge\", or use the policy open", f.conf.policy)
	}
	if err := f.findDevice(hostLinks); err != nil || f.conf.policy != isolated {
		return err
	}
	hostEnd, err := attach.HostEnd(f.links, f.r.Attachment(), prev)
	if err == nil {
		hostLinks = append(hostLinks, hostEnd)
	}
	for _, l := range hostLinks {
		if l.Master != 0 && l.Master == f.bridge.Index && !slices.Contains(f.ports, l.Name) {
			f.ports = append(f.ports, l.Name)
		}
	}
	return types.IgnoreNotExist(err)
}

// findDevice sets f.device to the interface with the gateway address. It is the bridge or, for a VLAN of
// the bridge, the end of a veth pair whose peer is a port of the bridge.
func (f *firewall) findDevice(hostLinks []nl.Link) error {
	f.device = f.bridge.Name
	for _, l := range hostLinks {
		if f.bridge.Kind != "bridge" || l.Master != 0 {
			continue
		}
		peer, err := f.links.VethPeer(l, f.links)
		if err = types.IgnoreNotExist(err); err != nil {
			return err
		}
		if peer.Master == f.bridge.Index {
			f.device = l.Name
		}
	}
	return nil
}

// checkIsolation returns an error that lists the differences from the policy. It accepts the policy of an attachment that
// the reference plugin added, which is in iptables.
func (f *firewall) checkIsolation() error {
	rules, err := f.policyRules()
	if err != nil {
		return err
	}
	err = f.checkPolicy(rules)
	switch {
	case f.conf.policy == open && slices.ContainsFunc(rules, f.isAboutDevice):
		return errors.Join(err, fmt.Errorf("chains %s and %s of iptables contain %s, but ingressPolicy is %q", stage1, stage2, f.device, open))
	case f.conf.policy != open && err != nil && f.isOfReference():
		return nil
	}
	return err
}
