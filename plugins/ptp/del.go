package main

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

// del deletes what ADD created. It finds the link and the rules by the attachment alone, because the container and
// prevResult may be missing, and the configuration may have changed. It runs every step even if one fails.
//
// del deletes the link before the rules. An ADD of the attachment may still be running after its runtime was killed.
// Without the link it fails, and undoes the rules that it has added in the meantime. DelVeth does not wait for the
// kernel's grace period (RCU). Therefore deleting the link and the rules costs one grace period instead of two.
func del(r *skel.Request) error {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	prev, _ := r.Prev() // nil if it cannot be read, because DEL does not need it
	ips := attach.Prefixes(attach.IPsOf(prev, r.IfName))
	var masqErr, flowsErr error
	err = ipam.DelWithLink(r, func() (func() error, error) {
		wait, linkErr := attach.DelVeth(r, host, container)
		masqErr = r.IgnoreForbidden(masq.Del(masq.Masq{HostNS: r.HostNS, Owner: r.Attachment()}, ips))
		if linkErr == nil {
			flowsErr = attach.DeleteAddressFlows(r.HostNS, ips)
		}
		return wait, linkErr
	})
	return errors.Join(masqErr, flowsErr, err)
}

func gc(r *skel.Request) error {
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	keep := r.ValidAttachments()
	return errors.Join(
		attach.VethGC(host, r.Conf.Name).Run(keep),
		r.IgnoreForbidden(masq.GC(r.HostNS, r.Conf.Name, keep)),
		ipam.GC(r),
	)
}

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil && conf.masquerade.Enabled {
		err = masq.Status(r.HostNS, conf.masquerade.Backend)
	}
	return ipam.Status(r, err)
}
