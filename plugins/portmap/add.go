package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A portMap is the port map of one attachment.
type portMap struct {
	r    *skel.Request
	conf *config
	ips  []netip.Prefix // of the container: the first of each family, IPv4 first
	// device is the interface that packets of the node's 127/8 take to the container;
	// empty: none, or not looked for.
	device  string
	counted bool                        // see localnet.go
	links   *nl.Conn                    // see node
	own     map[nft.Family][]netip.Addr // of the node, see local
}

// node connects to rtnetlink of the node, once.
func (p *portMap) node() (*nl.Conn, error) {
	var err error
	if p.links == nil {
		p.links, err = nl.Open(p.r.Node)
	}
	return p.links, err
}

func (p *portMap) owner() types.Attachment { return p.r.Attachment() }

func (p *portMap) String() string { return "port map of " + p.owner().String() }

// add maps the ports, if there are any, and hands the result of the chain on.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	prev, err := r.MustPrev()
	if err != nil {
		return nil, err
	}
	p := &portMap{r: r, conf: conf, ips: addresses(prev, r.IfName)}
	if len(p.slots()) == 0 {
		p.warnOfNothing()
		return prev, p.guardLocalnet(prev)
	}
	p.warnOfDuplicates()
	if err := p.findLocalnet(); err != nil {
		return nil, err
	}
	p.warnOfLocalnet()
	if err := p.addRules(); err != nil {
		return nil, err
	}
	return prev, p.forgetStale()
}

// addresses are the container's: the first of each family.
func addresses(prev *types.Result, ifName string) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range families() {
		for _, ip := range attach.IPsOf(prev, ifName) {
			if familyOf(ip.Address.Addr()) == f {
				out = append(out, ip.Address)
				break
			}
		}
	}
	return out
}

// addRules puts the mappings into the backend. Without a backend in the
// configuration it is nftables, unless the kernel lacks it or a part of it that is
// needed (NAT in the inet family: kernel 5.2).
func (p *portMap) addRules() error {
	if p.conf.backend == iptables {
		return p.addIPTables()
	}
	c, err := nft.Open(p.r.Node)
	if err == nil {
		err = p.addNFT(c)
	}
	switch {
	case !errors.Is(err, nft.ErrUnavailable):
		return err
	case p.conf.backend == nftables:
		return types.Errorf(types.CodeConfig, "port map: load the module nf_tables, or use the iptables backend: %w", err)
	}
	return p.addIPTables()
}

// warnOfNothing says why no mapping has an effect, if there are any.
func (p *portMap) warnOfNothing() {
	if len(p.conf.mappings) == 0 {
		return
	}
	lack := "address"
	if len(p.ips) > 0 {
		lack = "address of the family of hostIP"
	}
	p.r.Warn("nothing is mapped: prevResult has no %s for %s", lack, p.r.IfName)
}

// warnOfDuplicates names the mappings that have no effect, because another one of the
// same call is for the same packets. One that is for both families may have an effect
// in the other.
func (p *portMap) warnOfDuplicates() {
	leads := make(map[slot]uint16, len(p.conf.mappings))
	for _, m := range p.conf.mappings {
		for _, ip := range p.ips {
			f := familyOf(ip.Addr())
			if !m.in(f) {
				continue
			}
			s := m.slot(f)
			first, taken := leads[s]
			if !taken {
				leads[s] = m.containerPort
			} else if first != m.containerPort {
				p.r.Warn("%s is mapped twice; it leads to container port %d, not %d", s, first, m.containerPort)
			}
		}
	}
}

// text is the mapping for people.
func (m mapping) text() string {
	if m.hostIP.IsValid() {
		return fmt.Sprintf("host port %s/%s", netip.AddrPortFrom(m.hostIP, m.hostPort), m.proto)
	}
	return fmt.Sprintf("host port %d/%s", m.hostPort, m.proto)
}
