package main

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// del deletes what ADD created. It needs only the attachment, because the container and
// prevResult may be missing, and the configuration may have changed. It runs every step even if
// one fails, but releases the addresses only if the link is deleted.
//
// del deletes the link before the rules. An ADD of the attachment may still be running after its
// runtime was killed. It fails without the link, and undoes the rules that it has added in the
// meantime. DelVeth does not wait for the kernel's grace period (RCU). Therefore deleting the
// link and the rules costs one grace period instead of two.
func del(r *skel.Request) error {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	prev, _ := r.Prev() // nil if prevResult cannot be read, because DEL does not need it
	ips := attach.Prefixes(attach.IPsOf(prev, r.IfName))
	var rulesErr, flowsErr error
	err = ipam.DelWithLink(r, func() (func() error, error) {
		portErr := removeExistingPorts(host, prev, bridgeName(r))
		wait, vethErr := attach.DelVeth(r, host, container)
		rulesErr = r.IgnoreForbidden(masq.Del(masq.Masq{HostNS: r.HostNS, Owner: r.Attachment()}, ips, formerSpoofCheck(r, prev).delete))
		linkErr := errors.Join(portErr, vethErr)
		if linkErr == nil {
			flowsErr = attach.DeleteAddressFlows(r.HostNS, ips)
		}
		return wait, linkErr
	})
	return errors.Join(rulesErr, flowsErr, err)
}

// bridgeName returns the bridge's name. It reads no other key, because DEL must succeed with a
// configuration that ADD would reject.
func bridgeName(r *skel.Request) string {
	raw := struct {
		Bridge string `json:"bridge"`
	}{defaultBridge}
	_ = types.Decode(r.Stdin, &raw)
	return raw.Bridge
}

func gc(r *skel.Request) error {
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	keep := r.ValidAttachments()
	return ipam.GCWithLinks(r, func() error {
		return errors.Join(
			attach.VethGC(host, r.Conf.Name).Run(keep),
			r.IgnoreForbidden(masq.GC(r.HostNS, r.Conf.Name, keep, gcMACSpoofChecks(host, r.Conf.Name, keep))),
		)
	})
}

func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = bridgeStatus(r, conf)
	}
	if err == nil && conf.masquerade.Enabled {
		err = masq.Status(r.HostNS, conf.masquerade.Backend)
	}
	return ipam.Status(r, err)
}

// bridgeStatus returns an error if the bridge exists but ADD could not use it.
func bridgeStatus(r *skel.Request, conf *config) error {
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	if _, err := findUplink(host, conf); err != nil {
		return err
	}
	br, err := host.LinkByAnyName(conf.bridge)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	if err := checkIsBridge(br, conf.bridge); err != nil || !conf.filtering || br.VLANFiltering {
		return err
	}
	ports, err := host.Ports(br)
	if err != nil {
		return err
	}
	return checkNoPorts(br, ports)
}
