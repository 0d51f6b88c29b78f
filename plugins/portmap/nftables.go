package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// store is what nf_tables has of the attachment.
func (p *portMap) store(c *nft.Conn, claims []nft.Claim) *nft.Store {
	return &nft.Store{
		Conn:        c,
		Layout:      nft.PortMaps(),
		Kinds:       kinds(),
		Owner:       p.owner(),
		Claims:      claims,
		Description: p.String(),
		Ensure:      func() error { return p.ensureChains(c) },
		AddToTx:     p.makeLocalnet,
		Warn:        p.r.Warn,
	}
}

// addNFT ensures what is shared and adds the elements in one transaction. Whoever sets or
// resets route_localnet does so alone: what else is behind the interface must not change
// meanwhile.
func (p *portMap) addNFT(c *nft.Conn) error {
	if p.device == "" {
		return p.addElements(c)
	}
	return xt.Exclusive(p.r.Node, lockWait, func() error {
		if err := p.countLocalnet(c); err != nil {
			return err
		}
		if err := p.addElements(c); err != nil {
			return err
		}
		return p.ensureLocalnet()
	})
}

func (p *portMap) addElements(c *nft.Conn) error {
	err := p.store(c, p.claims()).Add(&p.r.Undo, func() error {
		_, err := p.deleteNFT(c, func(*nft.Tx) error { return nil })
		return err
	})
	if err != nil {
		return fmt.Errorf("port map: %w", err)
	}
	return nil
}

func (p *portMap) ensureChains(c *nft.Conn) error {
	if err := c.Ensure(p.layout()); err != nil {
		return err
	}
	for _, ip := range p.ips {
		if cond, ok := p.conditions(ip); ok {
			if err := c.EnsureConditions(p.layout(), cond); err != nil {
				return fmt.Errorf("%s: %w", conditionsKey(familyOf(ip.Addr())), err)
			}
		}
	}
	return nil
}

// slots are those of all mappings.
func (p *portMap) slots() []slot {
	var all []slot
	for _, ip := range p.ips {
		f := familyOf(ip.Addr())
		for _, m := range p.conf.forFamily(f) {
			all = append(all, m.slot(f))
		}
	}
	return all
}

func (s slot) String() string {
	if s.hostIP.IsUnspecified() {
		return fmt.Sprintf("host port %d/%s of IP version %s", s.port, s.proto, version(s.family))
	}
	return fmt.Sprintf("host port %s/%s", netip.AddrPortFrom(s.hostIP, s.port), s.proto)
}

func version(f nft.Family) string {
	if f == nft.IPv6 {
		return "6"
	}
	return "4"
}

// A flowEnd is what the connections through a mapping have in common.
type flowEnd struct {
	slot
	to   netip.Addr
	port uint16
}

// deleteNFT deletes the elements of the attachment, and what also adds to the transaction.
// It returns the mappings that there were.
func (p *portMap) deleteNFT(c *nft.Conn, also func(*nft.Tx) error) (gone []flowEnd, err error) {
	del := func(leave func(*nft.Conn, *nft.Tx) error) error {
		return c.Atomically("nft delete "+p.String(), func(tx *nft.Tx) error {
			entries, err := p.store(c, p.hints()).Delete(tx)
			if err != nil {
				return err
			}
			gone = flowEnds(entries)
			return errors.Join(leave(c, tx), also(tx))
		})
	}
	counted, err := p.countedChain(c)
	switch {
	case err != nil:
	case counted == "":
		err = del(func(*nft.Conn, *nft.Tx) error { return nil })
	default:
		err = xt.Exclusive(p.r.Node, lockWait, func() error { return del(p.leaveLocalnet) })
	}
	return gone, err
}

// flowEnds picks the targets out of deleted elements.
func flowEnds(entries []nft.SetElement) []flowEnd {
	var ends []flowEnd
	for _, e := range entries {
		for _, f := range families() {
			if e.Set == nft.HostportSet(f) || e.Set == nft.HostportSetIP(f) {
				to := targetOf(f, e.Data)
				ends = append(ends, flowEnd{slotOf(f, e.Set, e.Key), to.Addr(), to.Port()})
			}
		}
	}
	return ends
}

// targetOf reads the data of a target element.
func targetOf(f nft.Family, k nft.Key) netip.AddrPort {
	size := 4
	if f == nft.IPv6 {
		size = 16
	}
	if len(k) < size+2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(k[:size].Addr(), uint16(k[size])<<8|uint16(k[size+1]))
}

// mayHave is false where the call gives addresses of the container, none of them of the
// family.
func (p *portMap) mayHave(f nft.Family) bool {
	return len(p.ips) == 0 || slices.ContainsFunc(p.ips, func(ip netip.Prefix) bool { return familyOf(ip.Addr()) == f })
}

// checkNFT names what is missing, damaged or of another attachment.
func (p *portMap) checkNFT(c *nft.Conn) error {
	return errors.Join(p.store(c, p.claims()).Check(), p.checkChains(c))
}

func (p *portMap) checkChains(c *nft.Conn) error {
	damaged, err := c.DamagedChains(p.layout())
	if err != nil {
		return err
	}
	var errs []error
	for _, ch := range damaged {
		errs = append(errs, fmt.Errorf("chain %s of table %s is gone or lacks rules", ch.Name, table()))
	}
	for _, ip := range p.ips {
		cond, ok := p.conditions(ip)
		if !ok {
			continue
		}
		if whole, err := c.HasConditions(p.layout(), cond); err != nil || !whole {
			errs = append(errs, err, fmt.Errorf("chain %s of table %s is gone or lacks rules", cond.Chain(), table()))
		}
	}
	return errors.Join(errs...)
}

// gcNFT deletes all of the network that is not to be kept.
func (p *portMap) gcNFT(c *nft.Conn, keep types.Set) error {
	network := p.owner().Network
	err := c.Atomically("nft delete stale port maps of network "+network, func(tx *nft.Tx) error {
		if err := p.store(c, nil).GC(tx, network, keep); err != nil {
			return err
		}
		return gcXTables(c, tx, network, keep)
	})
	return errors.Join(err, p.collectLocalnet(c), gcChains(c, network))
}

// gcChains removes the network's chains that nothing jumps to any more.
func gcChains(c *nft.Conn, network string) error {
	return errors.Join(
		c.DelUnusedChains(table(), nft.ConditionsChainPrefix(network)), // they jump to the others
		c.DelUnusedChains(table(), nft.SNATChainPrefix(network)),
	)
}
