package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// In its mode ipvs, kube-proxy assigns the addresses of all Services to an interface of the host (tables.ServiceLinks).
// Host ports must not apply to these addresses, because otherwise a container with the host port 443 gets the packets to
// the API server.
//
// In table nat of iptables, kube-proxy's rules accept packets to Services before they reach CNI-HOSTPORT-DNAT. A verdict
// "accept" does not end the evaluation of the base chains of other tables, and a rule of nftables cannot match the
// interface of a local address, because the route of such an address uses lo. Therefore the backend nftables keeps the
// addresses in a set. The set does not follow new Services until the next ADD or REPAIR, which is why portmap prefers
// iptables on such a host.

// services contains the addresses of Services on the host.
type services struct {
	links []nl.Link // the existing interfaces of tables.ServiceLinks
	found bool      // whether links is set
	addrs []netip.Addr
}

// serviceLinks returns the existing interfaces with addresses of Services. The first call looks for them.
func (p *portMap) serviceLinks() ([]nl.Link, error) {
	if p.services.found {
		return p.services.links, nil
	}
	conn, err := p.hostConn()
	if err != nil {
		return nil, err
	}
	for _, name := range tables.ServiceLinks() {
		l, err := conn.Link(name)
		switch {
		case err == nil:
			p.services.links = append(p.services.links, l)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	p.services.found = true
	return p.services.links, nil
}

// backend returns the backend of the configuration. If the configuration selects none, backend returns iptables on a host
// with kube-proxy in its mode ipvs, provided that iptables is installed, and otherwise "", the default of
// iptables.ByBackend. CHECK and REPAIR keep to nftables if the attachment has elements there.
func (p *portMap) backend() (string, error) {
	if p.conf.backend != "" {
		return p.conf.backend, nil
	}
	links, err := p.serviceLinks()
	if err != nil || !slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == tables.KubeProxyLink }) {
		return "", err
	}
	for _, f := range nft.Families() {
		if p.tool(f).Find() != nil {
			return "", nil
		}
	}
	if p.r.Command != "ADD" {
		if own, err := p.hasElements(); own || err != nil {
			return "", err
		}
	}
	return backendIPTables, nil
}

// hasElements reports whether the attachment has elements in nftables.
func (p *portMap) hasElements() (bool, error) {
	c, err := nft.OpenIfSupported(p.r.HostNS)
	if c == nil || err != nil {
		return false, err
	}
	var refs []nft.ElementRef
	for _, claim := range p.claims() {
		refs = append(refs, claim.Elements[0].Ref())
	}
	elements, err := c.Lookup(tables.Inet().Table, refs)
	return slices.ContainsFunc(elements, func(e nft.Element) bool { return e.Comment == nft.Owner(p.owner()) }), err
}

// updateServiceAddrs adds the missing addresses of Services to the sets, and deletes other addresses. On a host without
// such addresses, only REPAIR looks into the sets.
func (p *portMap) updateServiceAddrs(c *nft.Conn) error {
	links, err := p.serviceLinks()
	if err != nil || len(links) == 0 && !p.r.IsRepair() {
		return err
	}
	table := tables.Inet().Table
	err = c.Atomically("nft update addresses of Services", func(tx *nft.Tx) error {
		missing, extra, err := p.compareServiceAddrs(c)
		for _, a := range missing {
			tx.AddElement(table, tables.ServiceAddrs(nft.FamilyOf(a)), nft.Element{Key: nft.AddrKey(a)})
		}
		for _, a := range extra {
			tx.DelElement(table, tables.ServiceAddrs(nft.FamilyOf(a)), nft.AddrKey(a))
		}
		return err
	})
	return types.IgnoreNotExist(err) // if another process deleted the table, the elements of the attachment cannot be added either
}

// compareServiceAddrs sets services.addrs, and compares it with the sets. An address that another interface has as well
// belongs to the host, and not to a Service.
func (p *portMap) compareServiceAddrs(c *nft.Conn) (missing, extra []netip.Addr, err error) {
	var sets []netip.Addr
	for _, f := range nft.Families() {
		elements, err := c.Elements(tables.Inet().Table, tables.ServiceAddrs(f))
		if types.IgnoreNotExist(err) != nil {
			return nil, nil, err
		}
		for _, e := range elements {
			sets = append(sets, e.Key.Addr())
		}
	}
	if p.services.addrs, err = p.readServiceAddrs(); err != nil {
		return nil, nil, err
	}
	return without(p.services.addrs, sets), without(sets, p.services.addrs), nil
}

// readServiceAddrs returns the addresses that only the serviceLinks have.
func (p *portMap) readServiceAddrs() ([]netip.Addr, error) {
	links, err := p.serviceLinks()
	if err != nil || len(links) == 0 {
		return nil, err
	}
	byLink, err := p.conn.AddrsByLink()
	var addrs []netip.Addr
	for _, l := range links {
		addrs = append(addrs, byLink[l.Index]...)
		delete(byLink, l.Index)
	}
	for _, own := range byLink {
		addrs = without(addrs, own)
	}
	return addrs, err
}

// without returns the addresses that are not in the list.
func without(addrs, list []netip.Addr) []netip.Addr {
	contained := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		contained[a] = true
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return contained[a] })
}

// checkServiceAddrs returns an error if an address of a Service is not in the sets, or if an address in the sets belongs to
// another interface of the host. It accepts addresses of deleted Services, which have no effect.
func (p *portMap) checkServiceAddrs(c *nft.Conn) error {
	missing, extra, err := p.compareServiceAddrs(c)
	if err != nil {
		return err
	}
	var errs []error
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("host ports take the packets to %s, which are addresses of Services", listed(missing)))
	}
	if len(extra) > 0 {
		local, err := p.conn.LocalAddrs(netip.Addr{})
		if own := without(extra, without(extra, local)); len(own) > 0 {
			errs = append(errs, fmt.Errorf("host ports do not apply to %s, which are no longer addresses of Services", listed(own)))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// listed returns the first addresses as text.
func listed(addrs []netip.Addr) string {
	const most = 5
	texts := make([]string, 0, most+1)
	for _, a := range addrs[:min(most, len(addrs))] {
		texts = append(texts, a.String())
	}
	if len(addrs) > most {
		texts = append(texts, fmt.Sprintf("%d others", len(addrs)-most))
	}
	return strings.Join(texts, ", ")
}

// warnOfServiceAddrs prints a warning for each mapping whose hostIP is the address of a Service.
func (p *portMap) warnOfServiceAddrs() {
	for _, m := range p.conf.mappings {
		if slices.Contains(p.services.addrs, m.hostIP) {
			p.r.Warn("%s has no effect: the address belongs to a Service of Kubernetes", m)
		}
	}
}
