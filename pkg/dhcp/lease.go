package dhcp

import (
	"math"
	"net/netip"
	"time"

	"github.com/plumb-cni/plumb/pkg/types"
)

// Infinite is the Duration of a lease that does not end. Its RenewAfter and RebindAfter are
// Infinite, too, unless the server set them.
const Infinite = math.MaxUint32 * time.Second

// A Lease is what a server has acknowledged. It can be encoded as JSON.
type Lease struct {
	Address   netip.Prefix  `json:"address"`         // with the mask of option 1
	Server    netip.Addr    `json:"server"`          // option 54
	ServerMAC types.MAC     `json:"serverMAC"`       // sender of the frame: the server or a router; empty after Renew
	Router    netip.Addr    `json:"router,omitzero"` // the first of option 3
	Routes    []types.Route `json:"routes,omitempty"`
	DNS       types.DNS     `json:"dns,omitzero"`
	MTU       int           `json:"mtu,omitempty"` // option 26, in bytes; zero: not sent

	// The times count from the moment when the request was sent.
	Duration    time.Duration `json:"duration"`    // option 51; 60 minutes if the server does not say it
	RenewAfter  time.Duration `json:"renewAfter"`  // T1: option 58, or half of Duration
	RebindAfter time.Duration `json:"rebindAfter"` // T2: option 59, or 85 % of Duration
}
