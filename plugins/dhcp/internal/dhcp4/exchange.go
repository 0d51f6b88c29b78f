package dhcp4

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// An exchange is a running request. A packet socket receives all answers, at first because the client has no address, and
// later because servers broadcast a NAK (RFC 2131, section 4.1).
type exchange struct {
	client  *Client
	request *request
	raw     *packet.Conn
	udp     *net.UDPConn // sends the request; raw sends it if udp is nil or fails
	began   time.Time
	problem error // why the last transmission failed, or why the last answer was not usable
}

// ask sends a request until an answer comes, and returns the lease in it.
func (c *Client) ask(ctx context.Context, q *request) (Lease, error) {
	if q.err != nil {
		return Lease{}, fmt.Errorf("send %s: %w", q.name(), q.err)
	}
	raw, stop, err := c.listen(ctx, unix.ETH_P_IP, answerFilter)
	if err != nil {
		return Lease{}, err
	}
	defer stop()
	x := &exchange{client: c, request: q, raw: raw, began: time.Now()}
	if q.unicast() {
		if x.udp, x.problem = c.listenUDP(q.from); x.problem == nil {
			defer func() { _ = x.udp.Close() }()
		}
	}
	for n := 0; ctx.Err() == nil; n++ {
		sent := time.Now()
		if x.send(); errors.Is(x.problem, fs.ErrNotExist) {
			return Lease{}, x.problem
		}
		l, err := x.await(ctx, sent.Add(c.interval(ctx, q, n)))
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return Lease{}, err
		}
	}
	return Lease{}, x.noAnswer()
}

// send transmits the request. It only records a failure, because the next transmission may succeed.
func (x *exchange) send() {
	q := x.request
	if !q.msg.Options.Has(dhcpv4.OptionServerIdentifier) { // see Offer
		q.msg.NumSeconds = uint16(min(time.Since(x.began)/time.Second, math.MaxUint16))
	}
	if x.udp != nil {
		if x.problem = x.client.sendUDP(x.udp, q); x.problem == nil {
			return
		}
	}
	if err := x.client.sendPacket(x.raw, q); err != nil {
		x.problem = err
	}
}

// await returns the lease of the first usable answer. The error matches os.ErrDeadlineExceeded if no usable answer came
// before the given time, or if ctx ended.
func (x *exchange) await(ctx context.Context, until time.Time) (Lease, error) {
	buf := make([]byte, maxPacket)
	for {
		if err := x.raw.SetReadDeadline(until); err != nil {
			return Lease{}, err
		}
		if ctx.Err() != nil { // ctx may have ended before the deadline was set
			return Lease{}, os.ErrDeadlineExceeded
		}
		n, from, err := x.raw.ReadFrom(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return Lease{}, err
		case err != nil: // the interface was set down, or deleted
			x.problem = err
			x.client.pause(ctx, until)
			return Lease{}, os.ErrDeadlineExceeded
		}
		m, err := parse(payload(buf[:n]))
		if err != nil || !x.request.isAnsweredBy(m) {
			continue
		}
		if m.MessageType() == dhcpv4.MessageTypeNak {
			return Lease{}, x.refusal(m)
		}
		l, err := newLease(m)
		if err != nil {
			x.problem = fmt.Errorf("ignored DHCP%s from %s: %w", m.MessageType(), from, err)
			continue
		}
		l.ServerMAC = types.MAC(from.(*packet.Addr).HardwareAddr)
		return l, nil
	}
}

// pause waits as long as before a first retransmission, but at most until the given time.
func (c *Client) pause(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Until(until), c.first()))
	defer cancel()
	<-ctx.Done()
}

// refusal returns the error for a NAK.
func (x *exchange) refusal(nak *dhcpv4.DHCPv4) error {
	err := fmt.Errorf("%s: %w", x.request.name(), ErrNAK)
	if text := nak.Options.Get(dhcpv4.OptionMessage); len(text) > 0 {
		err = fmt.Errorf("%w: %q", err, text)
	}
	return err
}

func (x *exchange) noAnswer() error {
	err := fmt.Errorf("%w to %s within %s", errNoAnswer, x.request.name(), time.Since(x.began).Round(10*time.Millisecond))
	if x.problem != nil {
		err = fmt.Errorf("%w: %w", err, x.problem)
	}
	return err
}

// first returns the time before the first retransmission.
func (c *Client) first() time.Duration { return cmp.Or(c.Retry.First, 2*time.Second) }

// interval returns the time between transmission n and the next one.
func (c *Client) interval(ctx context.Context, q *request, n int) time.Duration {
	longest := cmp.Or(c.Retry.Max, 64*time.Second)
	if end, ok := ctx.Deadline(); ok && q.from.IsValid() {
		longest = max(longest, time.Until(end)/2)
	}
	const short = 4 // number of intervals before the first doubling
	wait := min(c.first(), longest)
	for ; n >= short && wait < longest; n-- {
		wait = min(2*wait, longest)
	}
	return wait - wait/8 + rand.N(wait/4+1)
}

// tell sends a message that the server does not answer.
func (c *Client) tell(ctx context.Context, q *request) error {
	if q.err != nil {
		return fmt.Errorf("send %s: %w", q.name(), q.err)
	}
	if q.unicast() && c.tellUDP(ctx, q) == nil {
		return nil
	}
	raw, stop, err := c.listen(ctx, unix.ETH_P_IP, answerFilter)
	if err != nil {
		return err
	}
	defer stop()
	return c.sendPacket(raw, q)
}

// arpLimit is how long Release waits until the kernel knows the hardware address of the server.
const arpLimit = time.Second

// tellUDP sends a message by UDP and waits until it has left the interface.
func (c *Client) tellUDP(ctx context.Context, q *request) error {
	s, err := c.listenUDP(q.from)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if err := c.sendUDP(s, q); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, arpLimit)
	defer cancel()
	return awaitSent(ctx, s)
}
