// loopback sets up the interface lo of a container. See README.md.
package main

import (
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "loopback", Add: add, Del: del, Check: check, Repair: repair, Status: status}
}

// lo is the name of the interface. loopback ignores CNI_IFNAME.
const lo = "lo"

// add sets up lo. It returns prevResult if there is one, and otherwise the addresses of lo.
func add(r *skel.Request) (*types.Result, error) {
	prev, err := r.Prev()
	if err != nil {
		return nil, err
	}
	container, link, err := open(r)
	if err != nil {
		return nil, err
	}
	// Push the undo before the first change, because the kernel may apply a change whose answer is lost. If
	// nothing was changed, the undo changes nothing.
	r.Undo.Push("restore lo", func() error {
		if err := container.SetAlias(link, link.Alias); err != nil || link.Up {
			return err
		}
		return container.SetDown(link)
	})
	if err := container.SetAlias(link, attach.LinkAlias(r.Attachment())); err != nil {
		return nil, err
	}
	if err := container.SetUp(link); err != nil {
		return nil, err
	}
	addrs, err := container.Addrs(link)
	if err != nil {
		return nil, err
	}
	result, err := describe(r, link, addrs)
	if err != nil || prev == nil {
		return result, err
	}
	return prev, nil
}

// parse checks the configuration, which contains only the keys of all plugins.
func parse(r *skel.Request) error { return r.Decode(&types.Conf{}) }

func status(r *skel.Request) error { return types.NotAvailable(parse(r)) }

// open checks the configuration, and returns lo with a connection to the container's namespace.
func open(r *skel.Request) (*nl.Conn, nl.Link, error) {
	if err := parse(r); err != nil {
		return nil, nl.Link{}, err
	}
	return nl.OpenLink(r.ContainerNS, lo)
}

// describe returns the result, which contains lo and its first address of each family. It returns an error if lo has
// an address that is not a loopback address, because the container could not reach another host with that address.
func describe(r *skel.Request, link nl.Link, addrs []nl.Addr) (*types.Result, error) {
	result := &types.Result{Interfaces: []types.Interface{attach.Interface(link, r.NetNS)}}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLoopback() {
			return nil, types.Errorf(types.CodeConfig, "interface lo has %s, which is not a loopback address; remove it", a.Prefix)
		}
	}
	for _, is4 := range []bool{true, false} {
		first := slices.IndexFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr().Is4() == is4 })
		if first >= 0 {
			result.IPs = append(result.IPs, types.IP{Address: addrs[first].Prefix})
		}
	}
	return result, nil
}

// del sets lo down, as the reference plugin does, if the alias of lo names this attachment. Otherwise the
// namespace at the path may belong to another container, and del changes nothing. Therefore lo stays up after
// an ADD of the reference plugin, which sets no alias.
func del(r *skel.Request) error {
	if r.ContainerNS == nil {
		return nil
	}
	container, link, err := nl.OpenLink(r.ContainerNS, lo)
	if err != nil || link.Alias != attach.LinkAlias(r.Attachment()) {
		return err
	}
	if err := container.SetDown(link); err != nil {
		return err
	}
	return container.SetAlias(link, "")
}

// check returns an error if lo is down.
func check(r *skel.Request) error {
	container, link, err := open(r)
	if err != nil {
		return err
	}
	return types.Coded(types.CodeChanged, attach.Diff(container, link, attach.Spec{}))
}

// repair sets lo up if Request.RepairsContainer, unless its alias names another attachment, to which the namespace belongs
// then. The reference plugin sets no alias.
func repair(r *skel.Request) error {
	if !r.RepairsContainer() {
		return nil
	}
	container, link, err := open(r)
	if err != nil || link.Alias != "" && link.Alias != attach.LinkAlias(r.Attachment()) {
		return err // CHECK reports that lo is down
	}
	return container.SetUp(link)
}
