package nl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// Know tells the kernel the hardware address of a neighbour, as if the neighbour had
// told it some time ago: it is used at once and asked for again soon (NUD_STALE), so
// that a neighbour that changes it is found. The link has to be running: the kernel
// forgets neighbours of one that is not.
func (l Link) Know(neighbour netip.Addr, mac types.MAC) Change {
	header := make([]byte, unix.SizeofNdMsg)
	header[0] = family(neighbour)
	binary.NativeEndian.PutUint32(header[4:], uint32(l.Index))
	binary.NativeEndian.PutUint16(header[8:], unix.NUD_STALE)
	body, err := linkBody(header, func(ae *netlink.Encoder) {
		ae.Bytes(unix.NDA_DST, neighbour.AsSlice())
		ae.Bytes(unix.NDA_LLADDR, mac.Bytes())
	})
	return change(fmt.Sprintf("add neighbour %s to %s", neighbour, l.Name), unix.RTM_NEWNEIGH, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_REPLACE)
}
