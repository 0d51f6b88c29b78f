package attach

import (
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
)

// DeleteAddressFlows deletes the connection tracking entries of addresses that are about to be
// released. Otherwise the host could translate packets of the next container with the address by an
// entry of the previous container.
func DeleteAddressFlows(host *ns.Handle, addrs []netip.Prefix) error {
	var flows []nl.Flow
	for _, a := range addrs {
		flows = append(flows, nl.Flow{OrigSrc: a.Addr()}, nl.Flow{ReplySrc: a.Addr()})
	}
	return DeleteFlows(host, flows...)
}

// DeleteFlows deletes connection tracking entries. It does nothing if the host has none.
func DeleteFlows(host *ns.Handle, flows ...nl.Flow) error {
	if len(flows) == 0 {
		return nil
	}
	count, err := sysctl.Get(host, "net/netfilter/nf_conntrack_count")
	if err != nil || count == "0" {
		return nil
	}
	return nl.DeleteFlows(host, flows...)
}
