package nft

import (
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

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
