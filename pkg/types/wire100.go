package types

import "net/netip"

// result100 is the form of 1.0.0 and 1.1.0.
type result100 struct {
	CNIVersion string         `json:"cniVersion"`
	Interfaces []interface100 `json:"interfaces,omitempty"`
	IPs        []ip100        `json:"ips,omitempty"`
	Routes     []Route        `json:"routes,omitempty"`
	DNS        DNS            `json:"dns,omitzero"`
}

// interface100 is an interface. MTU, SocketPath and PciID came with 1.1.0.
type interface100 struct {
	Name       string `json:"name"`
	MAC        MAC    `json:"mac,omitempty"`
	MTU        int    `json:"mtu,omitempty"`
	Sandbox    string `json:"sandbox,omitempty"`
	SocketPath string `json:"socketPath,omitempty"`
	PciID      string `json:"pciID,omitempty"`
}

type ip100 struct {
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway,omitzero"`
}

func to100(r *Result, v Version) *result100 {
	w := &result100{CNIVersion: v.String(), Routes: r.Routes, DNS: r.DNS.omitEmpty()}
	for _, in := range r.Interfaces {
		if v < V110 {
			in.MTU, in.SocketPath, in.PciID = 0, "", ""
		}
		w.Interfaces = append(w.Interfaces, interface100(in))
	}
	for _, ip := range r.IPs {
		w.IPs = append(w.IPs, ip100{Interface: pointer(ip.Interface), Address: ip.Address, Gateway: ip.Gateway})
	}
	return w
}

func from100(w *result100) *Result {
	r := &Result{Routes: w.Routes, DNS: w.DNS}
	for _, in := range w.Interfaces {
		r.Interfaces = append(r.Interfaces, Interface(in))
	}
	for _, ip := range w.IPs {
		r.IPs = append(r.IPs, IP{Interface: index(ip.Interface), Address: ip.Address, Gateway: ip.Gateway})
	}
	return r
}

// pointer returns nil for NoInterface, or a pointer to the index i.
func pointer(i int) *int {
	if i == NoInterface {
		return nil
	}
	return &i
}

// index is the inverse of pointer.
func index(p *int) int {
	if p == nil {
		return NoInterface
	}
	return *p
}
