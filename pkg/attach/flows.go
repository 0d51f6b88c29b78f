package attach

import (
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/sysctl"
)

// DeleteAddressFlows deletes the connection tracking entries of addresses that are about
// to be released. Otherwise the node could translate a packet of the next container that
// has the address by an entry of the former one.
func DeleteAddressFlows(node *ns.Handle, addrs []netip.Prefix) error {
	var flows []nl.Flow
	for _, a := range addrs {
		flows = append(flows, nl.Flow{OrigSrc: a.Addr()}, nl.Flow{ReplySrc: a.Addr()})
	}
	return DeleteFlows(node, flows...)
}

// DeleteFlows deletes connection tracking entries. It does nothing on a node that has no
// entries.
func DeleteFlows(node *ns.Handle, flows ...nl.Flow) error {
	if len(flows) == 0 {
		return nil
	}
	count, err := sysctl.Get(node, "net/netfilter/nf_conntrack_count")
	if err != nil || count == "0" {
		return nil
	}
	return nl.DeleteFlows(node, flows...)
}
