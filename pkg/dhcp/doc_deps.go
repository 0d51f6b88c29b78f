package dhcp

import (
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
)

// The messages and the raw socket of the exchanges.
type (
	message   = dhcpv4.DHCPv4
	rawSocket = packet.Conn
)
