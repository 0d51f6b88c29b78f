// loopback sets the interface lo of a container up. See README.md.
package main

import (
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "loopback", Add: add, Del: del, Check: check}
}

// lo is the name of the interface, whatever CNI_IFNAME is.
const lo = "lo"

// codeDown is the code of a CHECK that found lo down.
const codeDown = 100

func add(r *skel.Request) (*types.Result, error) {
	prev, err := r.Prev()
	if err != nil {
		return nil, err
	}
	pod, link, err := open(r)
	if err != nil {
		return nil, err
	}
	// The undo is pushed before the change, whose answer may be lost. If nothing was
	// changed, it changes nothing.
	r.Undo.Push("put lo back", func() error {
		if err := pod.SetAlias(link, link.Alias); err != nil || link.Up {
			return err
		}
		return pod.SetDown(link)
	})
	if err := pod.SetAlias(link, attach.LinkAlias(r.Attachment())); err != nil {
		return nil, err
	}
	if err := pod.SetUp(link); err != nil {
		return nil, err
	}
	addrs, err := pod.Addrs(link)
	if err != nil {
		return nil, err
	}
	result, err := describe(r, link, addrs)
	if prev != nil {
		result = prev
	}
	return result, err
}

// parse checks the configuration, which has only the keys that all plugins have.
func parse(r *skel.Request) error { return r.Decode(&types.Conf{}) }

func open(r *skel.Request) (*nl.Conn, nl.Link, error) {
	if err := parse(r); err != nil {
		return nil, nl.Link{}, err
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return nil, nl.Link{}, err
	}
	link, err := pod.Link(lo)
	return pod, link, err
}

// describe returns the result: lo with its first address of each family. It returns an
// error if lo has an address that is no loopback address, because the container would
// answer for the host that has it.
func describe(r *skel.Request, link nl.Link, addrs []nl.Addr) (*types.Result, error) {
	result := &types.Result{Interfaces: []types.Interface{{Name: lo, MAC: link.MAC, MTU: link.MTU, Sandbox: r.NetNS}}}
	for _, v4 := range []bool{true, false} {
		first := netip.Prefix{}
		for _, a := range addrs {
			switch {
			case !a.Prefix.Addr().IsLoopback():
				return nil, types.Errorf(types.CodeConfig, "interface lo has %s, which is not a loopback address; remove it", a.Prefix)
			case a.Prefix.Addr().Is4() == v4 && !first.IsValid():
				first = a.Prefix
			}
		}
		if first.IsValid() {
			result.IPs = append(result.IPs, types.IP{Address: first})
		}
	}
	return result, nil
}

// del sets lo down, as the reference plugin does, if the alias names this attachment:
// another container's namespace may be at the path by now. It leaves lo up in a container
// that the reference plugin served, whose lo has no alias.
func del(r *skel.Request) error {
	if r.Pod == nil {
		return nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	link, err := pod.Link(lo)
	if err != nil || link.Alias != attach.LinkAlias(r.Attachment()) {
		return err
	}
	if err := pod.SetDown(link); err != nil {
		return err
	}
	return pod.SetAlias(link, "")
}

func check(r *skel.Request) error {
	_, link, err := open(r)
	if err == nil && !link.Up {
		return types.Errorf(codeDown, "interface lo is down")
	}
	return err
}
