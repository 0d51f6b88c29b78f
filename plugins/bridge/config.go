package main

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	Bridge                    string     `json:"bridge"`
	IsGateway                 bool       `json:"isGateway"`
	IsDefaultGateway          bool       `json:"isDefaultGateway"`
	ForceAddress              bool       `json:"forceAddress"`
	MTU                       int        `json:"mtu"`
	HairpinMode               bool       `json:"hairpinMode"`
	PromiscMode               bool       `json:"promiscMode"`
	VLAN                      int        `json:"vlan"`
	VLANTrunk                 []rawTrunk `json:"vlanTrunk"`
	PreserveDefaultVLAN       bool       `json:"preserveDefaultVlan"`
	MACSpoofCheck             bool       `json:"macspoofchk"`
	EnableDAD                 bool       `json:"enabledad"`
	DisableContainerInterface bool       `json:"disableContainerInterface"`
	PortIsolation             bool       `json:"portIsolation"`
	GroupFwdMask              *int       `json:"groupFwdMask"`
	McastSnooping             *bool      `json:"mcastSnooping"`
	ProxyARP                  bool       `json:"proxyArp"`
	UplinkInterface           string     `json:"uplinkInterface"`
	attach.MACKeys
	masq.Keys
}

// A rawTrunk is an item of vlanTrunk. It contains one VLAN (ID), a range of VLANs (MinID to
// MaxID), or both. A missing key is nil.
type rawTrunk struct {
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
	ID    *int `json:"id"`
}

// config is the validated configuration with all defaults set.
type config struct {
	bridge           string
	isGateway        bool
	isDefaultGateway bool
	forceAddress     bool
	masquerade       masq.Settings
	mtu              int // in bytes; if it is 0, the kernel uses its default
	port             nl.Port
	promisc          bool
	forwarding       nl.BridgeForwarding
	proxyARP         bool
	uplink           string // name of the host's interface that becomes a port, or ""
	vlan             int    // VLAN ID; it is 0 if the port has none
	trunk            []int  // VLAN IDs, sorted, without duplicates
	filtering        bool   // whether the bridge must filter VLANs
	keepDefaultVLAN  bool
	macSpoofCheck    bool
	awaitDAD         bool
	containerDown    bool // whether the container end stays down
	mac              types.MAC
}

const (
	defaultBridge = "cni0"
	// unforwardable contains the bits of groupFwdMask that the kernel rejects for a bridge: STP, MAC control and LACP
	// (BR_GROUPFWD_RESTRICTED in net/bridge/br_private.h).
	unforwardable = 7
)

// parse reads and validates the configuration. Errors for invalid values carry types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	raw := rawConfig{Bridge: defaultBridge}
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	mac, macErr := raw.MACKeys.Parse(args)
	trunk, trunkErr := trunkIDs(raw.VLANTrunk)
	masquerade, masqErr := raw.Keys.Parse()
	conf := &config{
		bridge:           raw.Bridge,
		isGateway:        raw.IsGateway || raw.IsDefaultGateway,
		isDefaultGateway: raw.IsDefaultGateway,
		forceAddress:     raw.ForceAddress,
		masquerade:       masquerade,
		mtu:              raw.MTU,
		port:             nl.Port{Hairpin: raw.HairpinMode, Isolated: raw.PortIsolation},
		promisc:          raw.PromiscMode,
		forwarding:       nl.BridgeForwarding{MulticastSnooping: raw.McastSnooping},
		proxyARP:         raw.ProxyARP,
		uplink:           raw.UplinkInterface,
		vlan:             raw.VLAN,
		trunk:            trunk,
		filtering:        raw.VLAN != 0 || raw.VLANTrunk != nil,
		keepDefaultVLAN:  raw.PreserveDefaultVLAN,
		macSpoofCheck:    raw.MACSpoofCheck,
		awaitDAD:         raw.EnableDAD,
		containerDown:    raw.DisableContainerInterface,
		mac:              mac,
	}
	maskErr := conf.parseMask(raw.GroupFwdMask)
	err = errors.Join(macErr, trunkErr, masqErr, maskErr, conf.validate(r.Conf.IPAM.Type != "", r.Version))
	return conf, types.Coded(types.CodeConfig, err)
}

// parseMask sets the mask of group addresses, unless mask is nil.
func (c *config) parseMask(mask *int) error {
	if mask == nil {
		return nil
	}
	if *mask < 0 || *mask > math.MaxUint16 || *mask&unforwardable != 0 {
		return fmt.Errorf("groupFwdMask %d must be between 0 and %d without the bits 1, 2 and 4, because the kernel forwards no STP, pause and LACP frames", *mask, math.MaxUint16)
	}
	bits := uint16(*mask)
	c.forwarding.GroupFwdMask = &bits
	return nil
}

// validate checks everything that does not depend on the host's state. The error joins all
// problems.
func (c *config) validate(hasIPAM bool, v types.Version) error {
	errs := []error{attach.CheckMTU(c.mtu)}
	reportIf := types.ProblemsInto(&errs)
	nameErr := types.CheckIfName(c.bridge)
	reportIf(nameErr != nil, "bridge %q is not an interface name: %w", c.bridge, nameErr)
	reportIf(c.vlan < 0 || c.vlan > nl.MaxVLAN, "vlan: invalid VLAN ID %d (must be between 0 and %d)", c.vlan, nl.MaxVLAN)
	reportIf(c.port.Hairpin && c.promisc, "hairpinMode: cannot set hairpin mode and promiscuous mode at the same time; remove hairpinMode or promiscMode")
	uplinkErr := types.CheckIfName(c.uplink)
	reportIf(c.uplink != "" && uplinkErr != nil, "uplinkInterface %q is not an interface name: %w", c.uplink, uplinkErr)
	reportIf(c.uplink == c.bridge, "uplinkInterface and bridge are both %q", c.bridge)
	reportIf(c.proxyARP && !c.isGateway, "proxyArp needs \"isGateway\", because only a gateway of the containers answers ARP requests for other hosts")
	reportIf(c.containerDown && hasIPAM, "disableContainerInterface: cannot use IPAM when disableContainerInterface is set to true; remove one of the two")
	reportIf(c.vlan != 0 && c.isGateway && len(c.gatewayName()) > types.MaxIfName,
		"bridge: the gateway's interface name %q is longer than %d bytes; use a shorter bridge name", c.gatewayName(), types.MaxIfName)
	// Before version 0.3.0, a result must contain an IP address.
	reportIf(!hasIPAM && v < types.V030, "ipam: %w", types.ErrNoAddress)
	return errors.Join(errs...)
}

// gatewayName returns the name of the interface with the gateway addresses. It is the bridge or,
// with a VLAN, a separate interface.
func (c *config) gatewayName() string {
	if c.vlan == 0 {
		return c.bridge
	}
	return fmt.Sprintf("%s.%d", c.bridge, c.vlan)
}

// trunkIDs returns the VLAN IDs of all items, sorted and without duplicates.
func trunkIDs(items []rawTrunk) ([]int, error) {
	var ids []int
	var errs []error
	for i, item := range items {
		more, err := item.ids(fmt.Sprintf("vlanTrunk[%d]", i))
		errs = append(errs, err)
		ids = append(ids, more...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), errors.Join(errs...)
}

// ids returns the VLAN IDs of the item at this path.
func (t rawTrunk) ids(at string) ([]int, error) {
	valid := func(id *int) bool { return *id >= 1 && *id <= nl.MaxVLAN }
	switch {
	case t.MinID == nil && t.MaxID != nil:
		return nil, fmt.Errorf("%s: minID and maxID should be configured simultaneously, minID is missing", at)
	case t.MinID != nil && t.MaxID == nil:
		return nil, fmt.Errorf("%s: minID and maxID should be configured simultaneously, maxID is missing", at)
	case t.MinID != nil && !valid(t.MinID):
		return nil, fmt.Errorf("%s.minID: incorrect trunk minID parameter: %d must be between 1 and %d", at, *t.MinID, nl.MaxVLAN)
	case t.MaxID != nil && !valid(t.MaxID):
		return nil, fmt.Errorf("%s.maxID: incorrect trunk maxID parameter: %d must be between 1 and %d", at, *t.MaxID, nl.MaxVLAN)
	case t.MinID != nil && *t.MinID > *t.MaxID:
		return nil, fmt.Errorf("%s.minID: minID is greater than maxID in trunk parameter: %d and %d", at, *t.MinID, *t.MaxID)
	case t.ID != nil && !valid(t.ID):
		return nil, fmt.Errorf("%s.id: incorrect trunk id parameter: %d must be between 1 and %d", at, *t.ID, nl.MaxVLAN)
	}
	var ids []int
	if t.MinID != nil {
		for id := *t.MinID; id <= *t.MaxID; id++ {
			ids = append(ids, id)
		}
	}
	if t.ID != nil {
		ids = append(ids, *t.ID)
	}
	return ids, nil
}

// dadMode returns the mode of duplicate address detection that the key enabledad selects.
func (c *config) dadMode() attach.DADMode {
	if c.awaitDAD {
		return attach.DADOn
	}
	return attach.DADOff
}

func (c *config) masq(r *skel.Request) masq.Masq {
	return masq.Masq{HostNS: r.HostNS, Owner: r.Attachment(), Backend: c.masquerade.Backend, Except: c.masquerade.Except, OnlyFree: r.IsRepair(), Warn: r.Warn}
}
