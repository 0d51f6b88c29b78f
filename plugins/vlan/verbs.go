package main

import (
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// check compares the interface with what ADD created, and returns an error that names every difference. It
// ignores the MAC, the MTU and the sysctls, which a later plugin of the chain may change. The kernel also
// lowers the MTU when the master's MTU is lowered.
func check(r *skel.Request, conf *config) error {
	if conf.inChain {
		return checkInChain(r, conf)
	}
	return conf.master.Check(r, kind, func(_ *nl.Conn, eth nl.Link) error { return conf.diff(eth) })
}

// diff returns an error if the interface belongs to another VLAN than the configured one.
func (conf *config) diff(eth nl.Link) error {
	if eth.VLANID != conf.id || eth.VLANProtocol != conf.protocol {
		return fmt.Errorf("interface %s has VLAN %d (%s), want %d (%s)", eth.Name, eth.VLANID, eth.VLANProtocol, conf.id, conf.protocol)
	}
	return nil
}

// repair does not set up a VLAN interface in a chain, which has no addresses and another name than CNI_IFNAME.
func repair(r *skel.Request, conf *config) error {
	return attach.RepairContainerLink(r, kind, conf.dad)
}

// del reads only the keys that name an interface in a chain, and ignores errors in them, because the
// configuration may have changed since ADD.
func del(r *skel.Request) error {
	var raw rawConfig
	if _ = types.Decode(r.Stdin, &raw); raw.isInChain() {
		return delInChain(r, raw.linkName(r))
	}
	return attach.DelContainerLink(r, kind)
}

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = conf.master.Status(r, conf.mtu)
	}
	return ipam.Status(r, err)
}
