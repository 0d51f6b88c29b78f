package main

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

// repair restores the host end, forwarding, the masquerade, the reservations and, with --container-side, the container
// end. If the host end was deleted, the kernel has deleted the container end as well, and repair restores only the
// reservations.
func repair(r *skel.Request, conf *config) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	ipamErr := ipam.Repair(r)
	hostEnd, err := attach.HostEnd(host, r.Attachment(), prev)
	if err != nil {
		return ipamErr // CHECK reports err
	}
	ips := attach.IPsOf(prev, r.IfName)
	errs := []error{ipamErr, attach.Restore(host, hostEnd, checkedSpec(hostEnd, ips)), attach.RestoreForwarding(host, hostEnd, ips)}
	if conf.masquerade.Enabled {
		errs = append(errs, masq.Restore(&r.Undo, conf.masq(r), attach.Prefixes(ips)))
	}
	return errors.Join(append(errs, attach.RestoreContainer(r, containerSpec(r.IfName, ips, prev.Routes)))...)
}
