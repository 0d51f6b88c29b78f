package attach

import (
	"fmt"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The limits of an MTU, in bytes.
const (
	MinMTU     = 68    // of a configuration (RFC 791)
	MinMTUv6   = 1280  // at which the kernel keeps IPv6 on an interface (RFC 8200, section 5)
	MaxVethMTU = 65535 // of a veth (ETH_MAX_MTU)
)

// CheckVethMTU returns an error if a veth pair cannot have the configured MTU. Zero
// stands for the kernel's default.
func CheckVethMTU(mtu int) error {
	if mtu != 0 && (mtu < MinMTU || mtu > MaxVethMTU) {
		return fmt.Errorf("mtu %d is not between %d and %d", mtu, MinMTU, MaxVethMTU)
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
