// Package masq gives the containers of a network the node's address for what they
// send to the outside (ipMasq).
//
// The nftables backend keeps one map element an address, under the table that all
// plugins of the bundle share (Layout); its comment names the owner:
//
//	map masq4 { 10.88.0.2 comment "net1/cid1/eth0" : jump masq/net1/10.88.0.0/16 }
//
// and one that leads from the owner to the address, for a DEL that does not know it.
//
// The iptables backend, for who asks for it and for kernels without nf_tables, keeps
// the chain names and comments of the reference plugins. Either takes over from the
// other and from the reference: Del and GC remove, and Check accepts, what any of
// them left for an attachment. No program is run to find that there is nothing.
package masq

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// A Backend is what keeps the rules.
type Backend string

// The backends that a configuration can ask for. Default is NFTables where the kernel
// has nf_tables, else IPTables.
const (
	Default  Backend = ""
	NFTables Backend = "nftables"
	IPTables Backend = "iptables"
)

// ParseBackend reads the value of the key ipMasqBackend. Errors have types.CodeConfig.
func ParseBackend(s string) (Backend, error) {
	b := Backend(s)
	switch b {
	case Default, NFTables, IPTables:
		return b, nil
	}
	return "", types.Errorf(types.CodeConfig, "unknown ipMasqBackend %q: must be %q or %q, or left out", s, NFTables, IPTables)
}

// Masq is whose packets are masqueraded, where and how.
type Masq struct {
	Node    *ns.Handle
	Owner   types.Attachment
	Backend Backend
	// Warn tells a person whose address Add takes over; nil: nobody.
	Warn func(format string, args ...any)
}

func (m Masq) String() string { return "masquerade of " + m.Owner.String() }

// Add masquerades what the addresses send to outside their prefixes, multicast
// excepted, and pushes the inverse. An address that another attachment still has an
// entry for, as one that was never deleted does, is taken over with a warning; Del gives
// it back.
func Add(u *undo.Stack, m Masq, ips []netip.Prefix) error {
	c, err := m.open()
	if err != nil {
		return err
	}
	if c != nil {
		return addNFT(u, c, m, ips)
	}
	return addIPTables(u, m, ips)
}

// open connects to nf_tables if that is the backend; nil without an error is
// iptables.
func (m Masq) open() (*nft.Conn, error) {
	if m.Backend == IPTables {
		return nil, nil
	}
	c, err := nft.Open(m.Node)
	if !errors.Is(err, nft.ErrUnavailable) {
		return c, err
	}
	if m.Backend == NFTables {
		return nil, types.Errorf(types.CodeConfig, "masquerade: load the module nf_tables, or use the iptables backend: %w", err)
	}
	return nil, nil
}

// any connects to nf_tables whatever the backend, to find what others left there; nil
// without an error where the kernel has none.
func (m Masq) any() (*nft.Conn, error) {
	c, err := nft.Open(m.Node)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil, nil
	}
	return c, err
}

// Del removes what the owner has, in whatever backend, with the addresses as a hint
// where to look first. Nothing there is success. What an address's new owner has
// stays.
func Del(m Masq, ips []netip.Prefix) error {
	c, err := m.any()
	if c != nil {
		err = delNFT(c, m, ips)
	}
	return errors.Join(err, ownCleanup(m.Owner, ips).Legacy(m.Node, "delete "+m.String()))
}

// Check says what is missing.
func Check(m Masq, ips []netip.Prefix) error {
	c, err := m.any()
	if err != nil {
		return err
	}
	missing := checkNFT(c, m, ips)
	if missing == nil {
		return nil
	}
	bare, err := uncovered(c, m, ips)
	if err == nil && len(bare) == 0 {
		return nil
	}
	if m.Backend == IPTables {
		missing = nil
		for _, ip := range bare {
			missing = errors.Join(missing, missingRules(m, ip))
		}
	}
	return errors.Join(missing, err)
}

// GC removes what attachments of the network have that are not to be kept, and the
// network's chains when nothing jumps to them any more.
func GC(node *ns.Handle, network string, keep types.Set) error {
	m := Masq{Node: node, Owner: types.Attachment{Network: network}}
	c, err := m.any()
	if c != nil {
		err = errors.Join(gcNFT(c, network, keep), c.DelUnused(table(), subnetChainPrefix(network)))
	}
	return errors.Join(err, staleCleanup(network, keep).Legacy(node, "delete stale masquerade of network "+network))
}

// Status says whether the backend can do its work, with types.CodeNotAvailable. It
// changes nothing and runs no program.
func Status(node *ns.Handle, backend Backend) error {
	m := Masq{Node: node, Backend: backend}
	c, err := m.open()
	switch {
	case err != nil:
	case c != nil:
		err = c.CheckSupport(Layout().With(subnetChain("status", netip.MustParsePrefix("192.0.2.0/24"))))
	default:
		err = statusIPTables(node)
	}
	if err != nil {
		return types.Errorf(types.CodeNotAvailable, "masquerade: %w", err)
	}
	return nil
}

// family is the family of an address.
func family(a netip.Addr) nft.Family {
	if a.Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// list is the addresses as a text.
func list(ips []netip.Prefix) string {
	texts := make([]string, len(ips))
	for i, ip := range ips {
		texts[i] = ip.Addr().String()
	}
	return strings.Join(texts, ", ")
}
