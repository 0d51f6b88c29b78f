package main

import (
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A portMap is the call of a verb for the port mappings of one attachment.
type portMap struct {
	r    *skel.Request
	conf *config
	// ips contains the container's first address of each family, IPv4 first.
	ips []netip.Prefix
	// localnetDevice is the interface of the host through which packets from 127/8 reach the
	// container. It is empty if there is none. findLocalnetDevice sets it.
	localnetDevice string
	conn           *nl.Conn // opened by hostConn
	services       services
	withheld       error // names the host ports that REPAIR did not restore, and who holds them
}

// hostConn returns a connection to rtnetlink of the host. The first call opens it.
func (p *portMap) hostConn() (*nl.Conn, error) {
	var err error
	if p.conn == nil {
		p.conn, err = nl.Open(p.r.HostNS)
	}
	return p.conn, err
}

func (p *portMap) owner() types.Attachment { return p.r.Attachment() }

func (p *portMap) String() string { return "port map of " + p.owner().String() }

// add maps the ports, if there are any, and returns prevResult.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	p := &portMap{r: r, conf: conf, ips: addresses(prev, r.IfName)}
	if len(p.translations()) == 0 {
		p.warnNothingMapped()
		return prev, p.restoreGuard(prev)
	}
	p.warnOfDuplicates()
	reason, err := p.findLocalnetDevice(prev)
	if err != nil {
		return nil, err
	}
	unreachable, err := p.warnUnreachable(prev)
	if err != nil {
		return nil, err
	}
	if !unreachable && reason != "" {
		p.r.Warn("host ports do not answer at 127.0.0.1: %s", reason)
	}
	if err := p.useBackend(p.addNFT, p.addIPTables); err != nil {
		return nil, err
	}
	if err := p.ensureLocalnet(); err != nil {
		return nil, err
	}
	return prev, p.deleteStaleFlows()
}

// addresses returns the interface's first address of each family in prev.
func addresses(prev *types.Result, ifName string) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range nft.Families() {
		for _, ip := range attach.IPsOf(prev, ifName) {
			if nft.FamilyOf(ip.Address.Addr()) == f {
				out = append(out, ip.Address)
				break
			}
		}
	}
	return out
}

// useBackend calls the function for the backend.
func (p *portMap) useBackend(runNFT func(*nft.Conn) error, runIPTables func() error) error {
	backend, err := p.backend()
	if err == nil {
		err = iptables.ByBackend(p.r.HostNS, backend, runNFT, runIPTables)
	}
	if err != nil {
		return fmt.Errorf("port map: %w", err)
	}
	return nil
}

// warnNothingMapped prints a warning if there are mappings, but no address of their family.
func (p *portMap) warnNothingMapped() {
	if len(p.conf.mappings) == 0 {
		return
	}
	missing := "address"
	if len(p.ips) > 0 {
		missing = "address of the family of hostIP"
	}
	p.r.Warn("nothing is mapped: prevResult contains no %s for %s", missing, p.r.IfName)
}

// warnOfDuplicates prints a warning for each mapping that has no effect in a family, because an earlier
// mapping matches the same packets.
func (p *portMap) warnOfDuplicates() {
	containerPorts := make(map[endpoint]uint16, len(p.conf.mappings))
	for _, m := range p.conf.mappings {
		for _, ip := range p.ips {
			f := nft.FamilyOf(ip.Addr())
			if !m.hasFamily(f) {
				continue
			}
			e := m.endpoint(f)
			first, mapped := containerPorts[e]
			if !mapped {
				containerPorts[e] = m.containerPort
			} else if first != m.containerPort {
				p.r.Warn("%s is mapped twice; using container port %d, ignoring container port %d", e, first, m.containerPort)
			}
		}
	}
}
