package main

import (
	"errors"
	"path"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	Device           string `json:"device"`
	HWAddr           string `json:"hwaddr"`
	KernelPath       string `json:"kernelpath"`
	PCIBusID         string `json:"pciBusID"`
	DPDKMode         bool   `json:"DPDKMode"`
	Force            bool   `json:"force"`
	RestoreAddresses bool   `json:"restoreAddresses"`
	UseNetwork       bool   `json:"useInterfaceNetwork"`
	RuntimeConfig    struct {
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`
	attach.DADKeys
}

// config is the validated configuration.
type config struct {
	selector         selector // zero if none is configured, which ADD rejects
	dpdk             bool     // whether the container uses the device without its network interface
	force            bool     // whether to take even a device that the host needs
	restoreAddresses bool
	useNetwork       bool // whether the container adopts the device's addresses, routes and rules
	dad              attach.DADMode
}

// parse reads and validates the configuration. The error joins all problems. parse requires a selector
// only in ADD, because runtimes set runtimeConfig.deviceID only in calls for a container.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	sel, err := raw.selector()
	errs := []error{err}
	if !raw.UseNetwork { // the device may have addresses
		errs = append(errs, ipam.CheckLayer2(r))
	}
	reportIf := types.ProblemsInto(&errs)
	reportIf(err == nil && r.Command == "ADD" && sel == selector{}, `device: specify either "device", "hwaddr", "kernelpath" or "pciBusID", or let the runtime set runtimeConfig.deviceID (capability deviceID)`)
	conf := &config{selector: sel, dpdk: raw.DPDKMode, force: raw.Force, restoreAddresses: raw.RestoreAddresses, useNetwork: raw.UseNetwork, dad: raw.DADKeys.Mode()}
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}

// maxAltName is the largest length of an interface's alternative name, in bytes.
const maxAltName = 127

// selector checks all keys that select a device, and returns the selector of the first one.
func (raw *rawConfig) selector() (selector, error) {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	if name := raw.Device; name != "" {
		reportIf(name == "lo", "device lo is the loopback interface, which cannot be moved")
		err := types.CheckIfName(name)
		isAltName := len(name) > types.MaxIfName && len(name) <= maxAltName
		reportIf(err != nil && !isAltName, "device %q is not an interface name: %w", name, err)
	}
	mac, err := types.ParseMAC(raw.HWAddr)
	reportIf(raw.HWAddr != "" && err != nil, "hwaddr: %w", err)
	kernelPath := raw.KernelPath
	if kernelPath != "" {
		kernelPath = path.Clean(kernelPath)
		reportIf(!strings.HasPrefix(kernelPath, "/sys/devices/"), "kernelpath %q is not below /sys/devices/", raw.KernelPath)
	}
	reportIf(raw.PCIBusID != "" && !isPCIBusID(raw.PCIBusID), "pciBusID %q is not of the form 0000:00:1f.6", raw.PCIBusID)
	pci, auxiliary := raw.PCIBusID, ""
	if id := raw.RuntimeConfig.DeviceID; isPCIBusID(id) {
		pci = id
	} else if id != "" {
		pci, auxiliary = "", id
		reportIf(!isFileName(id), "runtimeConfig.deviceID: runtime config DeviceID %s not found or unsupported: it is neither a PCI ID nor the name of an auxiliary device", id)
	}
	for _, s := range []selector{{byName, raw.Device}, {byMAC, mac.String()}, {byPath, kernelPath}, {byPCI, pci}, {byAuxiliary, auxiliary}} {
		if s.value != "" {
			return s, errors.Join(errs...)
		}
	}
	return selector{}, errors.Join(errs...)
}

// isPCIBusID reports whether s has the form of a PCI ID: domain, bus, device and function.
func isPCIBusID(s string) bool {
	domain, rest, _ := strings.Cut(s, ":")
	bus, rest, _ := strings.Cut(rest, ":")
	device, function, _ := strings.Cut(rest, ".")
	return len(domain) >= 4 && len(domain) <= 8 && isHex(domain) && len(bus) == 2 && isHex(bus) &&
		len(device) == 2 && isHex(device) && len(function) == 1 && isHex(function)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// isFileName reports whether s can be a file name without a path.
func isFileName(s string) bool { return s != "." && s != ".." && !strings.ContainsAny(s, "/\x00") }
