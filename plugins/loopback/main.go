// loopback sets a container's lo up. See README.md.
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

// CNI_IFNAME is not looked at: there is one loopback.
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
	// Pushed before the deed, whose answer may be lost: to put back what is so changes
	// nothing.
	r.Undo.Push("put lo back", func() error {
		changes := []nl.Change{link.SetAlias(link.Alias)}
		if !link.Up {
			changes = append(changes, link.SetDown())
		}
		return pod.Apply(changes...)
	})
	if err := pod.Apply(link.SetAlias(attach.Alias(r.Attachment())), link.SetUp()); err != nil {
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

// parse finds what is wrong with a configuration that has no keys but the common ones.
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

// describe lists lo with its first address of each family. An address on lo that is
// no loopback address would make the container answer for somebody else.
func describe(r *skel.Request, link nl.Link, addrs []nl.Addr) (*types.Result, error) {
	result := &types.Result{Interfaces: []types.Interface{{Name: lo, MAC: link.MAC, MTU: link.MTU, Sandbox: r.NetNS}}}
	for _, v4 := range []bool{true, false} {
		first := netip.Prefix{}
		for _, a := range addrs {
			switch {
			case !a.Prefix.Addr().IsLoopback():
				return nil, types.Errorf(types.CodeConfig, "lo has %s, which is no loopback address: remove it", a.Prefix)
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

// del sets lo down, as the reference plugin does, where the alias says that it was this
// attachment that set it up: the namespace at the path may be a newcomer's by now. A
// container that is gone has no lo, and one that the reference plugin served keeps its
// own for the moment that is left.
func del(r *skel.Request) error {
	if r.Pod == nil {
		return nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	link, err := pod.Link(lo)
	if err != nil || link.Alias != attach.Alias(r.Attachment()) {
		return err
	}
	return pod.Apply(link.SetDown(), link.SetAlias(""))
}

func check(r *skel.Request) error {
	_, link, err := open(r)
	if err == nil && !link.Up {
		return types.Errorf(codeDown, "interface lo is down")
	}
	return err
}
