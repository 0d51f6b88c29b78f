package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A selector determines which device of the host ADD moves into the container.
type selector struct {
	by    string // byName, byMAC and so on
	value string
}

const (
	byName      = "device"
	byMAC       = "hwaddr"
	byPath      = "kernelpath"
	byPCI       = "PCI device"
	byAuxiliary = "auxiliary device"
)

func (s selector) String() string { return s.by + " " + s.value }

// pciID returns the selector's PCI ID, or "" if it does not contain one.
func (s selector) pciID() string {
	if s.by == byPCI {
		return s.value
	}
	return ""
}

// A sysfs is the path at which sysfs is mounted, which is /sys except in tests.
type sysfs string

// directory returns the directory of the device that sel selects by PCI ID, auxiliary device or path.
func (s sysfs) directory(sel selector) string {
	switch sel.by {
	case byPCI:
		return filepath.Join(string(s), "bus/pci/devices", strings.ToLower(sel.value))
	case byAuxiliary:
		return filepath.Join(string(s), "bus/auxiliary/devices", sel.value)
	}
	return filepath.Join(string(s), strings.TrimPrefix(sel.value, "/sys"))
}

// userspaceDrivers lists the drivers that give a PCI device to a program, for example a program that
// uses DPDK. The kernel creates no network interface for such a device.
var userspaceDrivers = []string{"vfio-pci", "uio_pci_generic", "igb_uio"}

// usesDPDK reports whether the container uses the device without its network interface. With
// useInterfaceNetwork, such a device is an error.
func (s sysfs) usesDPDK(t *trace.Tracer, conf *config) (dpdk bool, err error) {
	dpdk, err = s.hasUserspaceDriver(t, conf)
	if dpdk && conf.useNetwork {
		return true, types.Errorf(types.CodeConfig, "useInterfaceNetwork: %s has no addresses, because the container uses it without the kernel (DPDK); remove useInterfaceNetwork, or use the kernel's driver without DPDKMode", conf.selector)
	}
	return dpdk, err
}

// hasUserspaceDriver reports whether a program uses the device without the kernel's network stack. For a PCI
// device, the driver decides that, and for any other device the key DPDKMode. If a PCI device has no
// driver, the error matches fs.ErrNotExist.
func (s sysfs) hasUserspaceDriver(t *trace.Tracer, conf *config) (dpdk bool, err error) {
	if conf.selector.by != byPCI {
		return conf.dpdk, nil
	}
	err = t.Do("find the driver of "+conf.selector.String(), func() error {
		driver, err := os.Readlink(filepath.Join(s.directory(conf.selector), "driver"))
		dpdk = slices.Contains(userspaceDrivers, path.Base(driver))
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%s does not exist on the host, or has no driver: %w", conf.selector, err)
	}
	return dpdk, err
}

// interfaces returns the names of the device's network interfaces, except interfaces that are not in
// the namespace in which sysfs was mounted. The interfaces of a virtio PCI device are below its
// virtio device.
func (s sysfs) interfaces(sel selector) (names []string, err error) {
	directories := []string{filepath.Join(s.directory(sel), "net")}
	if sel.by == byPCI { // a PCI ID contains no special characters of Glob
		virtio, err := filepath.Glob(filepath.Join(s.directory(sel), "virtio*/net"))
		if err != nil {
			return nil, err
		}
		directories = append(directories, virtio...)
	}
	for _, directory := range directories {
		entries, err := os.ReadDir(directory)
		if types.IgnoreNotExist(err) != nil {
			return nil, err
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// find returns the interface of the host that the selector selects. If there is none, the error
// matches fs.ErrNotExist.
func (h machine) find(host *nl.Conn, sel selector) (l nl.Link, err error) {
	var names []string
	switch sel.by {
	case byName:
		return host.LinkByAnyName(sel.value)
	case byMAC:
		names, err = interfacesWithMAC(host, sel.value)
	default:
		err = host.NS().Step("find the interfaces of "+sel.String(), func() error {
			names, err = h.sys.interfaces(sel)
			return err
		})
	}
	switch {
	case err != nil:
		return nl.Link{}, err
	case len(names) == 0:
		return nl.Link{}, types.NotExist("the host has no network interface with " + sel.String())
	case len(names) > 1:
		return nl.Link{}, types.Errorf(types.CodeConfig, "the host has several network interfaces with %s: %s; name one with the key \"device\"", sel, strings.Join(names, ", "))
	}
	return host.Link(names[0])
}

// interfacesWithMAC returns the names of the interfaces with the MAC. If hardware has the MAC,
// interfacesWithMAC returns no virtual interfaces, because a virtual interface, such as a VLAN, often
// has the MAC of the interface below it.
func interfacesWithMAC(host *nl.Conn, mac string) ([]string, error) {
	links, err := host.Links()
	var virtual, hardware []string
	for _, l := range links {
		switch {
		case l.MAC.String() != mac:
		case l.IsHardware():
			hardware = append(hardware, l.Name)
		default:
			virtual = append(virtual, l.Name)
		}
	}
	if len(hardware) > 0 {
		return hardware, err
	}
	return virtual, err
}

// checkDispensable returns an error if the kernel cannot move the interface, or if the host needs it. With
// useInterfaceNetwork, the container may get the default route of the host, and ADD warns of what the host loses.
func checkDispensable(r *skel.Request, host *nl.Conn, l nl.Link, conf *config) error {
	if l.Name == "lo" {
		return types.Errorf(types.CodeConfig, "%s is the loopback interface, which cannot be moved", conf.selector)
	}
	if slices.Contains([]string{"bridge", "bond", "team", "vrf"}, l.Kind) { // netns_immutable in the kernel
		return explainMove(l, syscall.EINVAL)
	}
	if conf.force {
		return nil
	}
	master, err := masterOf(host, l)
	if err != nil {
		return err
	}
	uplinks, err := host.Uplinks()
	if err != nil {
		return err
	}
	port := ""
	if master != "" {
		port = ", a port of " + master
	}
	switch isUplink := slices.ContainsFunc(uplinks, func(up nl.Link) bool { return up.Index == l.Index }); {
	case isUplink && master == "" && conf.useNetwork:
		return warnOfLoss(r, host, l)
	case isUplink:
		return types.Errorf(types.CodeConfig, "the default route of the host goes through interface %s%s: without %[1]s, the host loses its connection; to move the interface anyway, set force", l.Name, port)
	case master != "":
		return types.Errorf(types.CodeConfig, "interface %s is a port of %s; remove it from there, or set force", l.Name, master)
	}
	return nil
}

// warnOfLoss warns in ADD that the host loses its connection, and what it loses with the interface.
func warnOfLoss(r *skel.Request, host *nl.Conn, l nl.Link) error {
	if r.Command != "ADD" { // runtimes call STATUS often
		return nil
	}
	lost, err := host.LinkConfig(l)
	if err == nil {
		r.Warn("the default route of the host goes through interface %s: until DEL, the host loses its connection and the configuration of the interface (%s)", l.Name, lost)
	}
	return err
}

// masterOf returns the name of the bridge, bond or other link whose port l is, or "".
func masterOf(host *nl.Conn, l nl.Link) (string, error) {
	if l.Master == 0 {
		return "", nil
	}
	master, err := host.LinkByIndex(l.Master)
	return master.Name, err
}
