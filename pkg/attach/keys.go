package attach

import (
	"fmt"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// MACKeys are the keys of a configuration that can set the MAC of the container's interface. A
// plugin embeds them in the struct of its configuration.
type MACKeys struct {
	MAC           string `json:"mac"`
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
}

// Parse returns the MAC of the first key that is set: runtimeConfig.mac, args.cni.mac, MAC in
// CNI_ARGS (args), mac. If none is set, it returns the zero MAC.
func (k MACKeys) Parse(args types.Args) (types.MAC, error) {
	return types.FirstMAC(k.RuntimeConfig.MAC, k.Args.CNI.MAC, args[types.ArgMAC], k.MAC)
}

// The limits of an MTU, in bytes.
const (
	MinMTU   = 68    // of a configuration (RFC 791)
	MinMTUv6 = 1280  // at which the kernel keeps IPv6 on an interface (RFC 8200, section 5)
	MaxMTU   = 65535 // of an interface that plumb makes (ETH_MAX_MTU)
)

// CheckMTU returns an error if the key mtu has a value that no interface can have. Zero stands
// for the kernel's default.
func CheckMTU(mtu int) error {
	if mtu != 0 && (mtu < MinMTU || mtu > MaxMTU) {
		return fmt.Errorf("mtu %d is not between %d and %d", mtu, MinMTU, MaxMTU)
	}
	return nil
}

// checkMTUForIPv6 returns an error if an address is IPv6 and the MTU of its interface is
// too small for that.
func checkMTUForIPv6(l nl.Link, addrs []nl.Addr) error {
	if l.MTU == 0 || l.MTU >= MinMTUv6 {
		return nil
	}
	for _, a := range addrs {
		if a.Prefix.Addr().Is6() {
			return types.Errorf(types.CodeConfig, "mtu %d of %s is too small for address %s: IPv6 needs %d (RFC 8200)", l.MTU, l.Name, a.Prefix, MinMTUv6)
		}
	}
	return nil
}
