package main

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// warnUnreachable prints a warning if the container's interface is connected to the network, but not to the host, as behind
// macvlan. The host then cannot forward packets to the container, or the answers do not return through the host. It reads the
// interface only if prev lists no interface of the host.
func (p *portMap) warnUnreachable(prev *types.Result) (warned bool, err error) {
	isOnHost := func(i types.Interface) bool { return i.Sandbox == "" }
	if p.r.ContainerNS == nil || slices.ContainsFunc(prev.Interfaces, isOnHost) {
		return false, nil
	}
	conn, err := nl.Open(p.r.ContainerNS)
	if err != nil {
		return false, err
	}
	l, err := conn.Link(p.r.IfName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !slices.Contains([]string{"macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "dummy", ""}, l.Kind): // a device has no kind
		return false, nil
	}
	p.r.Warn("other hosts cannot connect to the host ports: %s (%s) is not connected to the host, through which packets and answers must pass",
		p.r.IfName, cmp.Or(l.Kind, "a device"))
	return true, nil
}
