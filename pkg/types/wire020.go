package types

import (
	"errors"
	"net/netip"
)

// result020 is the form of 0.1.0 and 0.2.0, with one address per family and without interfaces.
type result020 struct {
	CNIVersion string `json:"cniVersion"`
	IP4        *ip020 `json:"ip4,omitempty"`
	IP6        *ip020 `json:"ip6,omitempty"`
	DNS        DNS    `json:"dns"`
}

type ip020 struct {
	IP      netip.Prefix `json:"ip"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Routes  []Route      `json:"routes,omitempty"`
}

// ErrNoAddress is returned for a result without addresses, which versions before 0.3.0 cannot
// express.
var ErrNoAddress = errors.New("cannot convert: no valid IP addresses; a network without addresses needs cniVersion 0.3.0 or later")

// to020 converts a result. It keeps the first address of each family, and the routes of the
// families that have an address.
func to020(r *Result, v Version) (*result020, error) {
	w := &result020{CNIVersion: v.String(), DNS: r.DNS}
	for _, ip := range r.IPs {
		family := &w.IP6
		if ip.Address.Addr().Is4() {
			family = &w.IP4
		}
		if *family == nil {
			*family = &ip020{IP: ip.Address, Gateway: ip.Gateway}
		}
	}
	if w.IP4 == nil && w.IP6 == nil {
		return nil, ErrNoAddress
	}
	for _, route := range withoutAttributes(r.Routes) {
		family := w.IP6
		if route.Dst.Addr().Is4() {
			family = w.IP4
		}
		if family != nil {
			family.Routes = append(family.Routes, route)
		}
	}
	return w, nil
}

func from020(w *result020) *Result {
	r := &Result{DNS: w.DNS}
	for _, family := range []*ip020{w.IP4, w.IP6} {
		if family == nil {
			continue
		}
		r.IPs = append(r.IPs, IP{Interface: NoInterface, Address: family.IP, Gateway: family.Gateway})
		r.Routes = append(r.Routes, family.Routes...)
	}
	return r
}
