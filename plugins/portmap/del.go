package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// del deletes the elements and rules of the attachment (network, container ID and interface name) at
// the host ports of the configuration, in both backends. Without mappings, del reads all host ports of
// the host.
func del(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		conf = &config{}
	}
	p := &portMap{r: r, conf: conf}
	if prev, _ := r.Prev(); prev != nil {
		p.ips = addresses(prev, r.IfName)
	}
	var deleted []translation
	cleanups := []iptables.Cleanup{p.ownReference(), ownCleanup(p.owner(), p.ips)}
	err = iptables.Delete(r.HostNS, "delete "+p.String(), cleanups, func(c *nft.Conn, tx *nft.Tx) error {
		s := p.store(c, p.formerClaims())
		elements, err := s.Delete(tx)
		deleted = translationsOf(elements)
		if err == nil && len(elements) == 0 && len(s.Claims) > 0 {
			err = s.DeleteUnusedChains(tx)
		}
		return err
	})
	return errors.Join(err, p.deleteFlows(deleted))
}

// gc deletes the elements and rules of the network's attachments that are not in
// cni.dev/valid-attachments.
func gc(r *skel.Request) error {
	p, keep, network := &portMap{r: r, conf: &config{}}, r.ValidAttachments(), r.Conf.Name
	cleanups := []iptables.Cleanup{iptables.StaleChains(keep, dnatChain, chainPrefix, fmt.Sprintf("dnat name: %q id: ", network))}
	return iptables.Delete(r.HostNS, "delete stale port maps of network "+network, cleanups, func(c *nft.Conn, tx *nft.Tx) error {
		_, err := p.store(c, nil).GC(tx, network, keep)
		return err
	})
}

// status returns an error if an ADD with mappings would fail now. If other hosts can reach 127.0.0.1 of
// the host, it only warns, because a runtime that considers the network not ready after an error of
// STATUS would never call the ADD that restores the guard.
func status(r *skel.Request) error {
	conf, err := parse(r)
	p := &portMap{r: r, conf: conf}
	if err == nil {
		err = p.checkSupport()
	}
	if err != nil {
		return types.NotAvailable(err)
	}
	c, err := nft.OpenIfSupported(p.r.HostNS)
	if c == nil || err != nil {
		return err
	}
	warning, err := p.findUnguarded(c)
	if warning != nil {
		r.WarnOf(*warning)
	}
	return err
}

// checkSupport returns an error if the kernel or the programs lack what the backend needs. It
// changes nothing.
func (p *portMap) checkSupport() error {
	return p.useBackend(func(c *nft.Conn) error {
		err := c.CheckSupport(p.layout())
		if err == nil && len(p.conf.conditions) > 0 {
			_, err = findNFT()
		}
		return err
	}, iptables.Tool{HostNS: p.r.HostNS, Family: nft.IPv4}.Find)
}
