package types

import (
	"net/netip"
	"slices"
)

// result030 is the JSON form of a Result in version 0.3.0 and later versions.
type result030 struct {
	CNIVersion string      `json:"cniVersion"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	IPs        []ip030     `json:"ips,omitempty"`
	Routes     []Route     `json:"routes,omitempty"`
	DNS        *DNS        `json:"dns,omitempty"`
}

type ip030 struct {
	Version   any          `json:"version,omitempty"` // "4" or "6" before 1.0.0; redundant, because Address contains the family
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway,omitzero"`
}

// to030 converts a result. Versions before 1.0.0 contain the family of each IP, and contain dns even if it
// is empty. Versions before 1.1.0 lack the MTU, SocketPath and PciID of an interface.
func to030(r *Result, v Version) *result030 {
	w := &result030{CNIVersion: v.String(), Interfaces: slices.Clone(r.Interfaces), Routes: r.Routes}
	for i := range w.Interfaces {
		if in := &w.Interfaces[i]; v < V110 {
			in.MTU, in.SocketPath, in.PciID = 0, "", ""
		}
	}
	for _, ip := range r.IPs {
		out := ip030{Address: ip.Address, Gateway: ip.Gateway}
		if ip.Interface != NoInterface {
			out.Interface = &ip.Interface
		}
		switch {
		case v < V100 && ip.Address.Addr().Is4():
			out.Version = "4"
		case v < V100:
			out.Version = "6"
		}
		w.IPs = append(w.IPs, out)
	}
	if d := r.DNS; v < V100 || d.Domain != "" || len(d.Nameservers)+len(d.Search)+len(d.Options) > 0 {
		w.DNS = &d
	}
	return w
}

func from030(w *result030) *Result {
	r := &Result{Interfaces: w.Interfaces, Routes: w.Routes}
	for _, in := range w.IPs {
		ip := IP{Interface: NoInterface, Address: in.Address, Gateway: in.Gateway}
		if in.Interface != nil {
			ip.Interface = *in.Interface
		}
		r.IPs = append(r.IPs, ip)
	}
	if w.DNS != nil {
		r.DNS = *w.DNS
	}
	return r
}
