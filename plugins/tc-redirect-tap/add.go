package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// add creates the tap, and redirects the packets of the container's interface to the tap, and those of the tap to the
// interface. The last change redirects the interface, because the container cannot use the interface afterwards.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	container, eth, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, types.Errorf(types.CodeConfig, "no interface %q in container: %w; list tc-redirect-tap after the plugin that creates the interface", r.IfName, err)
	}
	if err == nil {
		err = attach.RequireOwnLink(r, container, eth)
	}
	if err == nil {
		err = checkInterface(eth)
	}
	if err == nil {
		err = checkNoHostAccess(container, eth)
	}
	if err != nil {
		return nil, err
	}
	tap, err := conf.addTap(r, container, eth.MTU)
	if err != nil {
		return nil, err
	}
	// The kernel would send router solicitations to the virtual machine.
	if err := sysctl.Set(container.NS(), sysctl.Setting{Key: sysctl.IPv6(tap.Name, "disable_ipv6"), Value: "1", Optional: true}); err != nil {
		return nil, err
	}
	if err := attach.AddRedirect(container, &r.Undo, tap, eth); err != nil {
		return nil, err
	}
	if err := container.SetUp(tap); err != nil {
		return nil, err
	}
	if err := attach.AddRedirect(container, &r.Undo, eth, tap); err != nil {
		return nil, err
	}
	return withVM(r, prev, eth, tap), nil
}

// checkNoHostAccess returns an error if a veth pair of host-access is beside the interface. Packets of the host through the
// pair would reach the namespace, and not the virtual machine, which has the same address.
func checkNoHostAccess(container *nl.Conn, eth nl.Link) error {
	pair, err := container.Link(attach.AccessName(eth.Name))
	if err == nil && pair.Kind == "veth" {
		return types.Errorf(types.CodeConfig, "interface %s has a veth pair of host-access, whose packets would not reach the virtual machine; remove host-access from the list", eth.Name)
	}
	return types.IgnoreNotExist(err)
}

// checkInterface returns an error if a virtual machine cannot use the MAC or the MTU of the interface.
func checkInterface(eth nl.Link) error {
	if mac, err := types.UnicastMAC(eth.MAC.String()); err != nil || mac == "" {
		return types.Errorf(types.CodeConfig, "interface %s is not an Ethernet interface, because its MAC is %q; a tap carries Ethernet frames only", eth.Name, eth.MAC)
	}
	if eth.MTU > nl.MaxTapMTU {
		return types.Errorf(types.CodeConfig, "interface %s has MTU %d, and a tap supports at most %d; set a lower mtu in the plugin that creates the interface", eth.Name, eth.MTU, nl.MaxTapMTU)
	}
	return nil
}

// maxTaps is the number of names that ADD tries, which is far above the number of virtual machines in a container.
const maxTaps = 1024

// addTap creates the tap with the configured name, or with the first free name of tap0, tap1, …
func (conf *config) addTap(r *skel.Request, container *nl.Conn, mtu int) (tap nl.Link, err error) {
	for i := range maxTaps {
		tap, err = container.AddTap(&r.Undo, nl.Tap{
			Name: cmp.Or(conf.name, fmt.Sprintf("tap%d", i)), Alias: attach.LinkAlias(r.Attachment()), Owner: &conf.owner, Group: &conf.group,
		})
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		if conf.name != "" {
			return nl.Link{}, types.Errorf(types.CodeConfig, "interface %q already exists in container %s: %w; choose another %s, or call DEL if this attachment was already added", conf.name, r.NetNS, err, types.ArgTapName)
		}
	}
	if err == nil && tap.MTU != mtu {
		tap.MTU = mtu
		err = container.SetMTU(tap, mtu)
	}
	return tap, err
}

// withVM returns prev with the tap, and with the virtual machine's interface. The latter has the name of the tap, the
// addresses and the MAC of eth, and the container's ID as its sandbox, as in firecracker-go-sdk. The addresses remain at
// eth as well, because other plugins and runtimes look for them there.
func withVM(r *skel.Request, prev *types.Result, eth, tap nl.Link) *types.Result {
	result := *prev
	vm := attach.Interface(tap, r.ContainerID)
	vm.MAC = eth.MAC.String()
	result.Interfaces = append(slices.Clone(prev.Interfaces), attach.Interface(tap, r.NetNS), vm)
	result.IPs = slices.Clone(prev.IPs)
	for _, ip := range attach.IPsOf(prev, r.IfName) {
		ip.Interface = len(result.Interfaces) - 1
		result.IPs = append(result.IPs, ip)
	}
	return &result
}
