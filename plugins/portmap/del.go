package main

import (
	"errors"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// del removes what ADD made, by the identity of the attachment: with or without
// mappings in the call, with or without prevResult, whatever the backend was. What it
// is told are hints.
func del(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		conf = &config{}
	}
	p := &portMap{r: r, conf: conf}
	if prev, _ := r.Prev(); prev != nil {
		p.ips = addresses(prev, r.IfName)
	}
	gone, err := p.delRules()
	return errors.Join(err, p.forgetTranslated(gone))
}

// anyNFT connects to nf_tables, to find what is there; nil without an error where the
// kernel has none.
func (p *portMap) anyNFT() (*nft.Conn, error) {
	c, err := nft.Open(p.r.Node)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil, nil
	}
	return c, err
}

// delRules removes all rules of the attachment, in one transaction where they are in
// nf_tables. It gives the mappings that there were in elements.
func (p *portMap) delRules() (gone []flowEnd, err error) {
	c, err := p.anyNFT()
	if c != nil {
		gone, err = p.deleteNFT(c, func(tx *nft.Tx) error {
			return errors.Join(p.ownReference().NFT(c, tx), ownCleanup(p.owner(), p.ips).NFT(c, tx))
		})
	}
	err = errors.Join(err, ownCleanup(p.owner(), p.ips).Legacy(p.r.Node, "delete "+p.String()))
	if c != nil && p.conf.backend == iptables { // may have been what needed route_localnet
		err = errors.Join(err, p.collectLocalnet(c))
	}
	return gone, err
}

// gc removes the rules of the network's attachments that are not to be kept.
func gc(r *skel.Request) error {
	p, keep, network := &portMap{r: r, conf: &config{}}, r.Valid(), r.Conf.Name
	c, err := p.anyNFT()
	if c != nil {
		err = p.gcNFT(c, keep)
	}
	return errors.Join(err, staleCleanup(network, keep).Legacy(r.Node, "delete stale port maps of network "+network))
}

// status says whether an ADD with mappings could succeed now.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = (&portMap{r: r, conf: conf}).canAdd()
	}
	if err != nil {
		return types.NotAvailable(err)
	}
	return nil
}

// canAdd changes nothing and runs no program.
func (p *portMap) canAdd() error {
	if p.conf.backend != iptables {
		c, err := nft.Open(p.r.Node)
		if err == nil {
			err = c.CheckSupport(p.layout())
		}
		if err == nil && len(p.conf.tokens) > 0 {
			_, err = findNFT()
		}
		if p.conf.backend == nftables || !errors.Is(err, nft.ErrUnavailable) {
			return err
		}
	}
	return xt.Tool{Node: p.r.Node, Family: xt.V4}.Find()
}
