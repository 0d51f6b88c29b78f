package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A conflict is the use of an endpoint by another container or by a process of the host.
type conflict struct {
	endpoint
	use      string // says who uses the endpoint, for example "net1/one/eth0 holds it"
	deleting bool   // a DEL of the attachment that holds the endpoint has begun
}

func (c conflict) String() string { return c.endpoint.String() + ": " + c.use }

// overlaps reports whether the same packet can match both endpoints.
func (e endpoint) overlaps(o endpoint) bool {
	return e.family == o.family && e.proto == o.proto && e.port == o.port &&
		(e.hostIP == o.hostIP || e.hostIP.IsUnspecified() || o.hostIP.IsUnspecified())
}

// checkConflicts returns an error for the conflicts of an ADD with onConflict "fail". With "replace", it prints a warning
// for each process that listens on a host port. Without the key, it does nothing. c is nil if the kernel lacks nftables.
func (p *portMap) checkConflicts(c *nft.Conn, usesIPTables bool) error {
	if p.conf.onConflict == "" || p.r.IsRepair() {
		return nil
	}
	listeners, err := p.findListeners(usesIPTables)
	if err != nil {
		return err
	}
	if p.conf.onConflict == replaceOnConflict {
		for _, l := range listeners {
			p.r.Warn("%s, and receives no packets to the host port while the container exists", l)
		}
		return nil
	}
	holders, err := p.findHolders(c)
	if err != nil {
		return err
	}
	rules, err := p.findRuleHolders(c)
	if err != nil {
		return err
	}
	return conflictError(slices.Concat(holders, rules, listeners))
}

// conflictError returns the error of an ADD with these conflicts, or nil if there are none. Its code is
// types.CodeTryAgain if a DEL of every holder has begun.
func conflictError(conflicts []conflict) error {
	var errs []error
	waitingHelps := true
	for _, c := range conflicts {
		errs = append(errs, errors.New(c.String()))
		waitingHelps = waitingHelps && c.deleting
	}
	switch err := errors.Join(errs...); {
	case err == nil:
		return nil
	case waitingHelps:
		return types.Errorf(types.CodeTryAgain, "%w; try again when the DEL has ended", err)
	default:
		return types.Errorf(types.CodeConfig, "%w; choose another host port, or delete the container or stop the process that uses it", err)
	}
}

// allowedClaims returns the claims that overlap with no other container's claim. If there are others, ADD gets an error,
// and REPAIR keeps the error in p.withheld.
func (p *portMap) allowedClaims(c *nft.Conn) ([]claims.Claim, error) {
	holders, err := p.findHolders(c)
	if p.withheld = nil; len(holders) > 0 {
		p.withheld = types.Errorf(types.CodeChanged, "not restored: %w", conflictError(holders))
	}
	if err == nil && !p.r.IsRepair() {
		err = conflictError(holders)
	}
	if err != nil {
		return nil, err
	}
	var allowed []claims.Claim
	all := p.claims()
	for i, t := range p.translations() { // in the order of the claims
		if !slices.ContainsFunc(holders, func(h conflict) bool { return h.endpoint == t.endpoint }) {
			allowed = append(allowed, all[i])
		}
	}
	return allowed, nil
}

// findHolders returns the endpoints that overlap with endpoints of other containers in table inet plumb.
func (p *portMap) findHolders(c *nft.Conn) (found []conflict, err error) {
	elements, err := p.nearbyElements(c)
	for _, e := range elements {
		for _, f := range nft.Families() {
			if e.Key == "" || e.Comment == nft.Owner(p.owner()) || e.Set != tables.HostPort(f) && e.Set != tables.HostPortIP(f) {
				continue
			}
			held := endpointAt(f, e.Set, e.Key)
			for _, t := range p.translations() {
				if !t.overlaps(held) {
					continue
				}
				if h := p.conflictWith(t.endpoint, e.Comment); h.use != "" && !slices.Contains(found, h) {
					found = append(found, h)
				}
			}
		}
	}
	return found, types.IgnoreNotExist(err)
}

// nearbyElements returns the elements of the target maps at the attachment's endpoints and at overlapping endpoints. The
// zero Element stands for an element that does not exist.
func (p *portMap) nearbyElements(c *nft.Conn) (all []nft.SetElement, err error) {
	if c == nil {
		return nil, nil
	}
	var refs []nft.ElementRef
	var lists []string // the maps of which all elements can overlap
	for _, t := range p.translations() {
		if set := tables.HostPortIP(t.family); !t.hostIP.IsUnspecified() {
			refs = append(refs, t.claim().Elements[0].Ref())
			t.hostIP = unspecified(t.family)
		} else if !slices.Contains(lists, set) {
			lists = append(lists, set)
		}
		refs = append(refs, t.claim().Elements[0].Ref())
	}
	elements, err := c.Lookup(tableLayout().Table, refs)
	for i, e := range elements {
		all = append(all, nft.SetElement{Set: refs[i].Set, Element: e})
	}
	for _, set := range lists {
		if err != nil {
			break
		}
		elements, err = c.Elements(tableLayout().Table, set)
		for _, e := range elements {
			all = append(all, nft.SetElement{Set: set, Element: e})
		}
	}
	return all, err
}

// conflictWith returns the conflict of an endpoint with the owner of an element with this comment. It returns the zero
// conflict if the owner is the same container, which can have one host port in two networks.
func (p *portMap) conflictWith(e endpoint, comment string) conflict {
	owner, ok := types.ParseAttachment(comment)
	if ok && owner.ContainerID == p.owner().ContainerID {
		return conflict{}
	}
	if !ok {
		return conflict{endpoint: e, use: fmt.Sprintf("an element of another program in table %s holds it", tableLayout().Table)}
	}
	if deleting, err := p.r.IsDeleted(owner); deleting && err == nil {
		return conflict{e, comment + " still holds it, and its DEL has begun", true}
	}
	return conflict{endpoint: e, use: comment + " holds it"}
}

// findRuleHolders returns the endpoints that overlap with endpoints of other containers in rules of iptables-nft. It runs
// a program only if the chain of host ports exists.
func (p *portMap) findRuleHolders(c *nft.Conn) (found []conflict, err error) {
	if c == nil {
		return nil, nil
	}
	for _, ip := range p.ips {
		f := nft.FamilyOf(ip.Addr())
		err := c.CheckChain(nft.Table{Family: f, Name: iptables.NAT}, dnatChain)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var table iptables.Table
		if err == nil {
			table, err = p.tool(f).Read(p.holders(f))
		}
		if err != nil {
			return nil, err
		}
		found = append(found, p.ruleHolders(table.Rules, f)...)
	}
	return found, nil
}

// ruleHolders returns the endpoints that overlap with endpoints of other containers in the rules.
func (p *portMap) ruleHolders(rules []iptables.Rule, f nft.Family) (found []conflict) {
	for _, m := range p.conf.mappingsOf(f) {
		other := p.otherOwner(rules, m)
		if other == "" {
			continue
		}
		var network, id string
		if _, err := fmt.Sscanf(other, "name: %q id: %q", &network, &id); err == nil {
			other = network + "/" + id
		}
		found = append(found, conflict{endpoint: m.endpoint(f), use: other + " holds it in iptables rules"})
	}
	return found
}

// findListeners returns the endpoints at which processes of the host listen. With nftables, it ignores processes that listen
// on ::1, because portmap does not forward their packets.
func (p *portMap) findListeners(usesIPTables bool) (found []conflict, err error) {
	listeners := map[protocol][]nl.Listener{}
	seen := map[string]bool{} // a socket of both families counts once, as do sockets with SO_REUSEPORT
	for _, t := range p.translations() {
		list, known := listeners[t.proto]
		if !known {
			list, err = nl.Listeners(p.r.HostNS, uint8(t.proto))
			if errors.Is(err, errors.ErrUnsupported) {
				p.r.Warn("look for processes that listen on host ports: %v; onConflict ignores such processes", err)
			} else if err != nil {
				return nil, err
			}
			listeners[t.proto] = list
		}
		for _, l := range list {
			key := fmt.Sprint(t.proto, l.Local)
			keeps := !usesIPTables && l.Local.Addr() == netip.IPv6Loopback()
			if l.Local.Port() != t.port || !l.Accepts(t.hostIP) || keeps || seen[key] {
				continue
			}
			seen[key] = true
			found = append(found, conflict{endpoint: t.endpoint, use: fmt.Sprintf("%s listens on %s", l.Process(p.r.HostNS), l.Local)})
		}
	}
	return found, nil
}
