package dhcp4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Infinite is the Duration, RenewAfter and RebindAfter of a lease that does not end.
const Infinite = math.MaxUint32 * time.Second

// defaultDuration is the duration of a lease if the server does not send it.
const defaultDuration = time.Hour

// scopeLink is the scope of a route to a destination on the link (RT_SCOPE_LINK of rtnetlink).
const scopeLink = 253

// minMTU is the smallest value of option 26 (RFC 2132, section 5.1).
const minMTU = 68

// A Lease contains what a server has acknowledged. It can be encoded as JSON, without Ignored.
type Lease struct {
	Address   netip.Prefix  `json:"address"`         // the address with the mask of option 1
	Server    netip.Addr    `json:"server"`          // option 54
	ServerMAC types.MAC     `json:"serverMAC"`       // sender of the frame, which is the server or a router
	Router    netip.Addr    `json:"router,omitzero"` // the first address of option 3, or zero if the server sent none
	Routes    []types.Route `json:"routes,omitempty"`
	DNS       types.DNS     `json:"dns,omitzero"`
	MTU       int           `json:"mtu,omitempty"` // option 26, in bytes, or zero if the server did not send it

	// The times count from the moment when the request was sent. RenewAfter is at most RebindAfter, and RebindAfter at most
	// Duration.
	Duration    time.Duration `json:"duration"`    // option 51; one hour if the server does not send it
	RenewAfter  time.Duration `json:"renewAfter"`  // T1, which is option 58 or half of Duration
	RebindAfter time.Duration `json:"rebindAfter"` // T2, which is option 59 or 85 % of Duration

	// Ignored lists the invalid parts of the answer.
	Ignored []error `json:"-"`
}

// newLease returns the lease in an OFFER or ACK. It returns an error if the client cannot use the message, and ignores invalid
// options that the client does not need.
func newLease(m *dhcpv4.DHCPv4) (Lease, error) {
	l := Lease{}
	addr, _ := netip.AddrFromSlice(m.YourIPAddr.To4())
	mask, maskErr := maskBits(m.Options.Get(dhcpv4.OptionSubnetMask))
	server := m.Options.Get(dhcpv4.OptionServerIdentifier)
	l.Server, _ = netip.AddrFromSlice(server)
	switch {
	case !isHost(addr):
		return l, fmt.Errorf("it offers the address %s", addr)
	case maskErr != nil:
		return l, maskErr
	case !isHost(l.Server):
		return l, fmt.Errorf("the server's identifier (option %d) is %v", dhcpv4.OptionServerIdentifier, server)
	}
	l.Address = netip.PrefixFrom(addr, mask)
	if err := l.setTimes(m.Options); err != nil {
		return l, err
	}
	l.setRoutes(m.Options)
	l.setDNS(m.Options)
	if v := m.Options.Get(dhcpv4.OptionInterfaceMTU); m.Options.Has(dhcpv4.OptionInterfaceMTU) {
		if len(v) == 2 && binary.BigEndian.Uint16(v) >= minMTU {
			l.MTU = int(binary.BigEndian.Uint16(v))
		} else {
			l.ignore(dhcpv4.OptionInterfaceMTU, v)
		}
	}
	return l, nil
}

// ignore records that an option, or a part of it, is invalid.
func (l *Lease) ignore(option dhcpv4.OptionCode, value any) {
	l.Ignored = append(l.Ignored, fmt.Errorf("option %d: invalid value %q", option, fmt.Sprint(value)))
}

// isHost reports whether addr can be the IPv4 address of a host.
func isHost(addr netip.Addr) bool {
	return addr.Is4() && addr.As4()[0] != 0 && !addr.IsLoopback() && !addr.IsMulticast() && addr != broadcastAddr
}

// maskBits returns the prefix length of a subnet mask.
func maskBits(mask []byte) (int, error) {
	if mask == nil {
		return 0, fmt.Errorf("it contains no subnet mask (option %d)", dhcpv4.OptionSubnetMask)
	}
	if ones, bits := net.IPMask(mask).Size(); ones > 0 && bits == 32 {
		return ones, nil
	}
	return 0, fmt.Errorf("its subnet mask (option %d) is %v", dhcpv4.OptionSubnetMask, mask)
}

// setTimes sets Duration, RenewAfter and RebindAfter. If the server's T1 and T2 are not in order, it uses the defaults.
func (l *Lease) setTimes(o dhcpv4.Options) error {
	seconds := func(option dhcpv4.OptionCode, otherwise time.Duration) time.Duration {
		v := o.Get(option)
		if len(v) == 4 {
			return time.Duration(binary.BigEndian.Uint32(v)) * time.Second
		}
		if o.Has(option) {
			l.ignore(option, v)
		}
		return otherwise
	}
	l.Duration = seconds(dhcpv4.OptionIPAddressLeaseTime, defaultDuration)
	switch l.Duration {
	case 0:
		return errors.New("its lease ends at once")
	case Infinite:
		l.RenewAfter, l.RebindAfter = Infinite, Infinite
		return nil
	}
	t1, t2 := l.Duration/2, l.Duration*85/100
	l.RenewAfter, l.RebindAfter = seconds(dhcpv4.OptionRenewTimeValue, t1), seconds(dhcpv4.OptionRebindingTimeValue, t2)
	if l.RenewAfter == 0 || l.RenewAfter >= l.RebindAfter || l.RebindAfter >= l.Duration {
		l.RenewAfter, l.RebindAfter = t1, t2
	}
	return nil
}

// setRoutes sets the routes and the router. Classless routes replace all others (RFC 3442).
func (l *Lease) setRoutes(o dhcpv4.Options) {
	for _, r := range addresses(o.Get(dhcpv4.OptionRouter)) {
		if isHost(r) {
			l.Router = r
			break
		}
	}
	var classless dhcpv4.Routes
	if v := o.Get(dhcpv4.OptionClasslessStaticRoute); len(v) > 0 {
		if err := classless.FromBytes(v); err != nil {
			l.ignore(dhcpv4.OptionClasslessStaticRoute, v)
			classless = nil
		}
	}
	for _, r := range classless {
		dst, _ := netip.AddrFromSlice(r.Dest.IP.To4())
		gw, _ := netip.AddrFromSlice(r.Router.To4())
		length, _ := r.Dest.Mask.Size()
		l.addRoute(dhcpv4.OptionClasslessStaticRoute, netip.PrefixFrom(dst, length), gw)
	}
	if len(classless) > 0 {
		return
	}
	static := addresses(o.Get(dhcpv4.OptionStaticRoutingTable))
	for pair := range slices.Chunk(static, 2) {
		if len(pair) < 2 || !isHost(pair[0]) || pair[1].IsUnspecified() {
			l.ignore(dhcpv4.OptionStaticRoutingTable, pair)
			continue
		}
		classMask, _ := net.IP(pair[0].AsSlice()).DefaultMask().Size() // option 33 has no masks
		l.addRoute(dhcpv4.OptionStaticRoutingTable, netip.PrefixFrom(pair[0], classMask), pair[1])
	}
	if l.Router.IsValid() {
		l.addRoute(dhcpv4.OptionRouter, netip.PrefixFrom(netip.IPv4Unspecified(), 0), l.Router)
	}
}

// addRoute adds a route, unless l already contains a route to that destination. If the gateway is 0.0.0.0, the
// destination is on the link, and the route keeps this gateway, as with the reference plugin. Otherwise an interface
// plugin could use the router instead.
func (l *Lease) addRoute(option dhcpv4.OptionCode, dst netip.Prefix, gw netip.Addr) {
	r := types.Route{Dst: dst.Masked(), GW: gw}
	switch {
	case gw.IsUnspecified():
		r.Scope = scopeLink
	case !isHost(gw):
		l.ignore(option, fmt.Sprintf("%s via %s", dst, gw))
		return
	}
	if !slices.ContainsFunc(l.Routes, func(o types.Route) bool { return o.Dst == r.Dst }) {
		l.Routes = append(l.Routes, r)
	}
}

func (l *Lease) setDNS(o dhcpv4.Options) {
	for _, a := range addresses(o.Get(dhcpv4.OptionDomainNameServer)) {
		if a.IsUnspecified() || a.IsMulticast() || a == broadcastAddr {
			l.ignore(dhcpv4.OptionDomainNameServer, a)
			continue
		}
		l.DNS.Nameservers = append(l.DNS.Nameservers, a.String())
	}
	if v := o.Get(dhcpv4.OptionDomainName); o.Has(dhcpv4.OptionDomainName) {
		// Some servers send a zero byte at the end (RFC 2132, section 2).
		name, err := domainName(strings.TrimRight(string(v), "\x00"))
		if err != nil {
			l.ignore(dhcpv4.OptionDomainName, string(v))
		}
		l.DNS.Domain = name
	}
	if v := o.Get(dhcpv4.OptionDNSDomainSearchList); o.Has(dhcpv4.OptionDNSDomainSearchList) {
		labels, err := rfc1035label.FromBytes(v)
		if err != nil {
			l.ignore(dhcpv4.OptionDNSDomainSearchList, v)
			return
		}
		for _, text := range labels.Labels {
			name, err := domainName(text)
			if err != nil {
				l.ignore(dhcpv4.OptionDNSDomainSearchList, text)
			} else if !slices.Contains(l.DNS.Search, name) {
				l.DNS.Search = append(l.DNS.Search, name)
			}
		}
	}
}

// domainName returns the name without the dot at its end. It returns an error for a text that is not a host name, for example
// because it contains a line break, which would change the container's resolv.conf.
func domainName(text string) (string, error) {
	text = strings.TrimSuffix(text, ".")
	valid := len(text) <= 253
	for label := range strings.SplitSeq(text, ".") {
		valid = valid && len(label) > 0 && len(label) <= 63 && label[0] != '-' && strings.Trim(label, nameChars) == ""
	}
	if !valid {
		return "", errors.New("invalid domain name")
	}
	return text, nil
}

// nameChars contains the characters of domain names. Active Directory uses the underscore.
const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// addresses returns the addresses of an option. It ignores bytes after the last whole address.
func addresses(value []byte) []netip.Addr {
	var all []netip.Addr
	for part := range slices.Chunk(value, 4) {
		if a, ok := netip.AddrFromSlice(part); ok {
			all = append(all, a)
		}
	}
	return all
}
