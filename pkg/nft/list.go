package nft

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/plumb-cni/plumb/pkg/types"
)

// OwnTables are the tables that plumb makes.
func OwnTables() []Table { return []Table{{Inet, "plumb"}, {Bridge, "plumb"}} }

// Sets returns the sets and maps of a table. If the table does not exist, there are none. The types of a
// set that another program made can be others than those in this package.
func (c *Conn) Sets(t Table) (sets []Set, err error) {
	err = c.step("nft list sets of "+t.String(), func() error {
		return c.listConsistently(func() error {
			listed, err := c.nft.GetSets(t.library())
			sets = nil
			for _, s := range listed {
				sets = append(sets, newSet(s))
			}
			return err
		})
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list sets of table %s: %w", t, err)
	}
	return sets, nil
}

// newSet converts a set of the library.
func newSet(l *nftables.Set) Set {
	s := Set{Name: l.Name, Key: typesOf(l.KeyType)}
	if l.IsMap {
		s.Data = typesOf(l.DataType)
	}
	return s
}

// typesOf returns the types of a concatenation, or the type itself. nft has the numbers of the types in 6
// bits each (TYPE_BITS, datatype.h).
func typesOf(d nftables.SetDatatype) []Type {
	const bits = 6
	var all []Type
	for n := d.GetNFTMagic(); n > 0; n >>= bits {
		all = append([]Type{Type(n & (1<<bits - 1))}, all...)
	}
	return all
}

// Text returns the key as nft prints it. Bytes of a type that this package does not use, and names with
// characters that cannot be printed, are hexadecimal.
func (k Key) Text(of []Type) string {
	var parts []string
	rest := string(k)
	for i, t := range of {
		size := int(t.size())
		if size == 0 || size > len(rest) {
			return "0x" + hex.EncodeToString([]byte(k))
		}
		parts = append(parts, t.text(rest[:size]))
		if i < len(of)-1 {
			size = (size + 3) &^ 3
		}
		rest = rest[min(size, len(rest)):]
	}
	return strings.Join(parts, " . ")
}

// text returns one value of the type.
func (t Type) text(b string) string {
	switch t {
	case IPv4Addr, IPv6Addr:
		ip, _ := netip.AddrFromSlice([]byte(b))
		return ip.String()
	case EtherAddr:
		return types.MAC(b).String()
	case InetProto:
		return protoText(b[0])
	case InetService:
		return strconv.Itoa(int(b[0])<<8 | int(b[1]))
	case IfName:
		if name := strings.TrimRight(b, "\x00"); name == strings.Map(replaceForbidden, name) {
			return strconv.Quote(name)
		}
	}
	return "0x" + hex.EncodeToString([]byte(b))
}

// protoText returns the name of an IP protocol that host ports can have, or the number of another one.
func protoText(n byte) string {
	switch n {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(n))
}
