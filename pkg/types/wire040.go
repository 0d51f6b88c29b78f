package types

import "net/netip"

// result040 is the form of 0.3.0, 0.3.1 and 0.4.0. Each IP has its family, and dns is always
// printed.
type result040 struct {
	CNIVersion string         `json:"cniVersion"`
	Interfaces []interface040 `json:"interfaces,omitempty"`
	IPs        []ip040        `json:"ips,omitempty"`
	Routes     []Route        `json:"routes,omitempty"`
	DNS        DNS            `json:"dns"`
}

type interface040 struct {
	Name    string `json:"name"`
	MAC     MAC    `json:"mac,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

type ip040 struct {
	Version   string       `json:"version"`
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway,omitzero"`
}

func to040(r *Result, v Version) *result040 {
	w := &result040{CNIVersion: v.String(), Routes: r.Routes, DNS: r.DNS}
	for _, in := range r.Interfaces {
		w.Interfaces = append(w.Interfaces, interface040{Name: in.Name, MAC: in.MAC, Sandbox: in.Sandbox})
	}
	for _, ip := range r.IPs {
		family := "6"
		if ip.Address.Addr().Is4() {
			family = "4"
		}
		w.IPs = append(w.IPs, ip040{Version: family, Interface: pointer(ip.Interface), Address: ip.Address, Gateway: ip.Gateway})
	}
	return w
}

func from040(w *result040) *Result {
	r := &Result{Routes: w.Routes, DNS: w.DNS}
	for _, in := range w.Interfaces {
		r.Interfaces = append(r.Interfaces, Interface{Name: in.Name, MAC: in.MAC, Sandbox: in.Sandbox})
	}
	for _, ip := range w.IPs {
		r.IPs = append(r.IPs, IP{Interface: index(ip.Interface), Address: ip.Address, Gateway: ip.Gateway})
	}
	return r
}
