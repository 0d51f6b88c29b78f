package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Listener is a socket that accepts connections or packets of any peer.
type Listener struct {
	Local netip.AddrPort // the address is unspecified if the socket is bound to all addresses of its family
	// DualStack means that the socket is bound to all IPv6 addresses and also accepts IPv4, because IPV6_V6ONLY is not set.
	DualStack bool
	Inode     uint32 // the number of the socket, as in /proc/PID/fd
}

// Accepts reports whether the socket accepts packets to the address. If the address is unspecified, Accepts reports
// whether the socket accepts packets to any address of that family.
func (l Listener) Accepts(addr netip.Addr) bool {
	own := l.Local.Addr()
	if l.DualStack && addr.Is4() {
		return true
	}
	return own.Is4() == addr.Is4() && (own.IsUnspecified() || addr.IsUnspecified() || own == addr)
}

// Listeners returns the listening sockets of an IP protocol, or for UDP the bound sockets without a peer. The error
// matches errors.ErrUnsupported if the kernel cannot list the sockets of the protocol, because it lacks a module such as
// tcp_diag. The socket functions of package netlink list all TCP connections, and support neither
// SCTP nor the option IPV6_V6ONLY.
func Listeners(h *ns.Handle, proto uint8) (all []Listener, err error) {
	s, err := openSocket(h, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	c := &Conn{h: h, raw: map[int]*rawnl.SocketHandle{unix.NETLINK_SOCK_DIAG: {Socket: s}}}
	err = c.step(fmt.Sprintf("list listeners of proto %d", proto), func() error {
		for _, family := range families {
			answers, err := c.listenersRequest(family, proto).Execute(unix.NETLINK_SOCK_DIAG, rawnl.SOCK_DIAG_BY_FAMILY)
			if errors.Is(err, unix.ENOENT) {
				return unix.EPROTONOSUPPORT // the errno of a missing protocol, which matches errors.ErrUnsupported
			}
			if err != nil {
				return err
			}
			for _, answer := range answers {
				all = append(all, decodeListener(answer))
			}
		}
		return nil
	})
	return all, errors.Join(err, s.Close())
}

// sizeofDiagMessage is the size of struct inet_diag_msg in linux/inet_diag.h.
const sizeofDiagMessage = 72

// listenersRequest returns a request for the listening sockets of one family (struct inet_diag_req_v2).
func (c *Conn) listenersRequest(family int, proto uint8) *rawnl.NetlinkRequest {
	state := 10 // TCP_LISTEN, which is also the state of a listening SCTP socket
	if proto == unix.IPPROTO_UDP {
		state = 7 // TCP_CLOSE, the state of a UDP socket without a peer
	}
	data := make([]byte, 56)
	data[0], data[1] = uint8(family), proto
	binary.NativeEndian.PutUint32(data[4:], 1<<state)
	req := rawnl.NewNetlinkRequest(rawnl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	req.AddRawData(data)
	req.Sockets, req.RetryInterrupted = c.raw, true
	return req
}

func decodeListener(m []byte) (l Listener) {
	if len(m) < sizeofDiagMessage {
		return l
	}
	size := 4
	if m[0] == unix.AF_INET6 {
		size = 16
	}
	addr := ipAddr(m[8 : 8+size])
	l.Local = netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(m[4:6]))
	l.Inode = binary.NativeEndian.Uint32(m[68:72])
	_ = eachAttr(m[sizeofDiagMessage:], func(kind uint16, value []byte) error {
		if kind == netlink.INET_DIAG_SKV6ONLY && len(value) > 0 {
			l.DualStack = addr.Is6() && addr.IsUnspecified() && value[0] == 0
		}
		return nil
	})
	return l
}

// A Process is a process that holds a socket. The zero Process stands for a process that this process cannot see.
type Process struct {
	PID  int
	Name string
}

func (p Process) String() string {
	if p.PID == 0 {
		return "an unknown process"
	}
	name := p.Name // which the process chooses
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		name = quoted
	}
	return fmt.Sprintf("%s (PID %d)", name, p.PID)
}

// Process returns the process with the lowest PID that holds the socket. It looks at the descriptors of all processes in
// /proc.
func (l Listener) Process(h *ns.Handle) (found Process) {
	_ = h.Step("find the process of a listener", func() error {
		entries, err := os.ReadDir("/proc")
		for _, e := range entries {
			pid, _ := strconv.Atoi(e.Name())
			if pid == 0 || found.PID != 0 && found.PID < pid || !l.isHeldBy(pid) {
				continue
			}
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			found = Process{pid, strings.TrimSpace(string(name))}
		}
		return err
	})
	return found
}

// isHeldBy reports whether a descriptor of the process refers to the socket. It ignores processes that it cannot read.
func (l Listener) isHeldBy(pid int) bool {
	dir, socket := fmt.Sprintf("/proc/%d/fd/", pid), fmt.Sprintf("socket:[%d]", l.Inode)
	descriptors, _ := os.ReadDir(dir)
	for _, d := range descriptors {
		if target, err := os.Readlink(dir + d.Name()); err == nil && target == socket {
			return true
		}
	}
	return false
}
