package attach

import (
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// MACKeys contains the keys that can set the MAC of the container's interface. A plugin embeds it
// in its configuration struct.
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

// Parse returns the MAC of the first key that is set, in the order runtimeConfig.mac, args.cni.mac,
// MAC in CNI_ARGS (args), mac. If none is set, it returns the zero MAC.
func (k MACKeys) Parse(args types.Args) (types.MAC, error) {
	return types.FirstMAC(k.RuntimeConfig.MAC, k.Args.CNI.MAC, args, k.MAC)
}

// Limits of an MTU, in bytes.
const (
	MinMTU   = 68    // smallest MTU of a configuration (RFC 791)
	minMTUv6 = 1280  // smallest MTU with which the kernel keeps IPv6 on an interface (RFC 8200, section 5)
	MaxMTU   = 65535 // largest MTU of an interface that plumb creates (ETH_MAX_MTU)
)

// CheckMTU returns an error if the key mtu has a value that no interface can have. Zero means the
// kernel's default.
func CheckMTU(mtu int) error {
	if mtu != 0 && (mtu < MinMTU || mtu > MaxMTU) {
		return fmt.Errorf("mtu %d must be between %d and %d", mtu, MinMTU, MaxMTU)
	}
	return nil
}

// checkMTUForIPv6 returns an error if an address is IPv6 and the interface's MTU is below minMTUv6.
func checkMTUForIPv6(l nl.Link, addrs []nl.Addr) error {
	first6 := slices.IndexFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr().Is6() })
	if l.MTU == 0 || l.MTU >= minMTUv6 || first6 < 0 {
		return nil
	}
	return types.Errorf(types.CodeConfig, "mtu %d of %s is too small for address %s: IPv6 needs %d (RFC 8200)", l.MTU, l.Name, addrs[first6].Prefix, minMTUv6)
}
