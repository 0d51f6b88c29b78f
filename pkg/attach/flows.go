package attach

import (
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/sysctl"
)

// ForgetFlows makes the node forget the connections of addresses that are about to
// change hands, so that no packet of an old one is translated for the new holder.
// A node that tracks nothing is left alone.
func ForgetFlows(node *ns.Handle, addrs []netip.Prefix) error {
	tracked, err := sysctl.Get(node, "net/netfilter/nf_conntrack_count")
	if err != nil || tracked == "0" {
		return nil
	}
	var flows []nl.Flow
	for _, a := range addrs {
		flows = append(flows, nl.Flow{OrigSrc: a.Addr()}, nl.Flow{ReplySrc: a.Addr()})
	}
	return Forget(node, flows...)
}

// Forget makes the node forget connections. A node that tracks nothing is left alone.
func Forget(node *ns.Handle, flows ...nl.Flow) error {
	if len(flows) == 0 {
		return nil
	}
	tracked, err := sysctl.Get(node, "net/netfilter/nf_conntrack_count")
	if err != nil || tracked == "0" {
		return nil
	}
	return nl.FlushFlows(node, flows...)
}
