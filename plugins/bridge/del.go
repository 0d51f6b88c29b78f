package main

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// del removes what ADD made, by the identity of the attachment: with or without the
// container, with or without prevResult, whatever the configuration says by now.
// Every step is tried.
//
// The link goes before the rules: an ADD of the attachment that still runs, after its
// runtime was killed, fails when the link is gone, and undoes the rules that it has added
// meanwhile. DelVeth does not wait for the kernel's grace period, so that one serves the
// link and the rules, whose socket is closed last. The address is released when nothing
// answers for it any more, or before the link goes by a plugin that needs it.
func del(r *skel.Request) error {
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return err
	}
	var released error
	if ipam.OverLink(r) {
		released = ipam.Del(r)
	}
	prev, _ := r.Prev() // one that cannot be read is as good as none
	ips := attach.Prefixes(attach.IPsOf(prev, r.IfName))
	unplugged := unplug(node, prev, bridgeName(r))
	finish, err := attach.DelVeth(node, pod, r.Attachment(), prev)
	rules := errors.Join(
		masq.Del(masq.Masq{Node: r.Node, Owner: r.Attachment()}, ips),
		delMACSpoofCheck(r.Node, r.Attachment()),
	)
	if err := errors.Join(unplugged, err); err != nil {
		return errors.Join(released, rules, err, finish()) // something may still answer for the address
	}
	forgotten := attach.ForgetFlows(r.Node, ips)
	if !ipam.OverLink(r) {
		released = ipam.Del(r)
	}
	return errors.Join(rules, forgotten, released, finish())
}

// bridgeName reads no more of the configuration than DEL needs.
func bridgeName(r *skel.Request) string {
	raw := struct {
		Bridge string `json:"bridge"`
	}{defaultBridge}
	_ = types.Decode(r.Stdin, &raw)
	return raw.Bridge
}

func gc(r *skel.Request) error {
	node, err := nl.Open(r.Node)
	if err != nil {
		return err
	}
	keep := r.Valid()
	return errors.Join(
		attach.GCVeths(node, r.Conf.Name, keep),
		masq.GC(r.Node, r.Conf.Name, keep),
		gcMACSpoofChecks(r.Node, r.Conf.Name, keep),
		ipam.GC(r),
	)
}

// status says whether an ADD could succeed now.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return types.NotAvailable(err)
	}
	node, err := nl.Open(r.Node)
	if err != nil {
		return types.NotAvailable(err)
	}
	br, err := node.Link(conf.bridge)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return types.NotAvailable(err)
	case br.Kind != "bridge":
		return types.Errorf(types.CodeNotAvailable, "interface %q exists and is no bridge; give another name by the key \"bridge\"", conf.bridge)
	}
	if err == nil && conf.filtering && !br.Bridge.VLANFiltering {
		ports, err := node.Ports(br)
		if err := errors.Join(err, mayFilter(br, ports)); err != nil {
			return types.NotAvailable(err)
		}
	}
	if conf.masquerade {
		if err := masq.Status(r.Node, conf.masqBackend); err != nil {
			return types.NotAvailable(err)
		}
	}
	return ipam.Status(r)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
