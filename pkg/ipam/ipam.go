// Package ipam asks the IPAM plugin of a network for addresses and gives them back
// (SPEC 1.1.0, section 4).
//
// The IPAM plugin is a process of its own, so an interface plugin starts it (Start),
// looks around, has it act (Ask), makes its links, and takes the answer when it needs it
// (Wait). Where OverLink holds, it makes its links before Ask. Two laws keep that safe. The caller has found the interface name free in the
// container before it asks: a repeated ADD of a live attachment must fail before. And an address is given back only if this very ADD got it, or was killed
// and cannot tell: an IPAM ADD that failed cleans up after itself, and a DEL after it
// would free the address of the attachment that made it fail.
//
// A network without an ipam.type has no addresses: there is nothing to do then, and
// nothing to wait for.
package ipam

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/invoke"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A Lease is what the IPAM plugin gave: at least one IP. The IPs belong to no
// interface yet (types.NoInterface).
type Lease struct {
	IPs    []types.IP
	Routes []types.Route
	DNS    types.DNS
}

// Gateways lists the gateways of the IPs, each once, in order, with the prefix
// length of its IP: what a bridge is given that is the gateway.
func (l *Lease) Gateways() []netip.Prefix {
	var gateways []netip.Prefix
	for _, ip := range l.IPs {
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if gw.IsValid() && !slices.Contains(gateways, gw) {
			gateways = append(gateways, gw)
		}
	}
	return gateways
}

// A Pending is an IPAM ADD at work. A nil *Pending is that of a network without
// addresses.
type Pending struct {
	r     *skel.Request
	call  *invoke.Call // nil: it has ended
	asked bool
	out   []byte
	err   error
}

// Start starts the IPAM plugin, which does nothing before Ask: to start takes it longer
// than to answer.
func Start(r *skel.Request) (*Pending, error) {
	if r.Conf.IPAM.Type == "" {
		return nil, nil
	}
	call, err := invoke.Launch(r, "ADD", r.Conf.IPAM.Type)
	if err != nil {
		return nil, blame(r, err)
	}
	p := &Pending{r: r, call: call}
	r.Undo.Push("end IPAM plugin", p.abandon)
	return p, nil
}

func (p *Pending) abandon() error {
	if !p.asked {
		p.call.Abandon()
	}
	return nil
}

// Ask has the IPAM plugin act. Should the caller fail, with or without having called
// Wait, the undo awaits the ADD and gives the address back if it was got. It is
// pushed here, not in Wait: so the address is free only after the links that were
// made in between are gone.
func (p *Pending) Ask() {
	if p == nil {
		return
	}
	p.asked = true
	p.call.Tell()
	p.r.Undo.Push("IPAM DEL", p.undo)
}

// Wait gives the answer. The plugin may still be on its way out then, which takes a
// while; no result is printed before it has ended well.
func (p *Pending) Wait() (*Lease, error) {
	out, err := p.call.Answer()
	if err == nil {
		lease, err := p.parse(out)
		if err == nil {
			p.r.Await(func() error { return p.confirm(out) })
			return lease, nil
		}
	}
	// What is no lease may be an error.
	if err := p.await(); err != nil {
		return nil, blame(p.r, err)
	}
	return p.parse(p.out)
}

// confirm makes sure of an answer that was taken before its plugin had ended.
func (p *Pending) confirm(taken []byte) error {
	if err := p.await(); err != nil {
		return blame(p.r, err)
	}
	if !bytes.Equal(bytes.TrimSpace(p.out), bytes.TrimSpace(taken)) {
		return blame(p.r, types.Errorf(types.CodeDecode, "it printed more than its answer"))
	}
	return nil
}

func (p *Pending) parse(answer []byte) (*Lease, error) {
	if len(bytes.TrimSpace(answer)) == 0 {
		return nil, blame(p.r, types.Errorf(types.CodeDecode, "it printed no result"))
	}
	result, err := types.ParseResult(p.r.Version, answer)
	// One that exits with 0 may have printed an error all the same.
	if told := invoke.ErrorIn(answer); told != nil && (err != nil || len(result.IPs) == 0) {
		return nil, blame(p.r, told)
	}
	if err != nil {
		return nil, blame(p.r, types.Coded(types.CodeDecode, err))
	}
	if len(result.IPs) == 0 {
		return nil, &types.Error{
			Code:    types.CodeConfig,
			Msg:     "IPAM plugin returned missing IP config",
			Details: "the answer of " + p.r.Conf.IPAM.Type + " has no ips",
		}
	}
	for i := range result.IPs {
		result.IPs[i].Interface = types.NoInterface
	}
	return &Lease{IPs: result.IPs, Routes: result.Routes, DNS: result.DNS}, nil
}

func (p *Pending) await() error {
	if p.call != nil {
		p.out, p.err = p.call.Wait()
		p.call = nil
	}
	return p.err
}

// undo gives back what the ADD got. The failure of the ADD is told by Wait; here it
// only means that there is nothing to give back, unless it was killed.
func (p *Pending) undo() error {
	if err := p.await(); err != nil && !errors.Is(err, invoke.ErrKilled) {
		return nil
	}
	return Del(p.r)
}

// OverLink reports whether the IPAM plugin works over the container's interface, as a
// DHCP client does. Such a plugin is asked for addresses after the link exists, and
// releases them before the link goes: its DHCPRELEASE is sent over the link. A DHCP
// server probes an address before it leases it again (RFC 2131, section 2.2). All other
// IPAM plugins release after the link is gone: until then the address still answers, and
// nobody else may get it.
func OverLink(r *skel.Request) bool { return r.Conf.IPAM.Type == "dhcp" }

// Del gives the address back. An IPAM plugin that is missing from CNI_PATH is an
// error: the address would never be free again.
func Del(r *skel.Request) error { return run(r, "DEL") }

// CheckAside begins to ask whether the address is still reserved, beside what the
// caller looks at itself. finish, never nil, gives the answer, and has to be called.
func CheckAside(r *skel.Request) (finish func() error) {
	if r.Conf.IPAM.Type == "" {
		return func() error { return nil }
	}
	call, err := invoke.Start(r, "CHECK", r.Conf.IPAM.Type)
	if err != nil {
		return func() error { return blame(r, err) }
	}
	return func() error {
		_, err := call.Wait()
		return blame(r, err)
	}
}

// GC passes the call on. A plugin of before 1.1.0, which knows no GC, has nothing to
// collect as far as anybody can tell.
func GC(r *skel.Request) error { return ifKnown(run(r, "GC")) }

// Status passes the call on. A plugin that is missing makes ADD impossible
// (CodeNotAvailable); one that knows no STATUS has nothing to say.
func Status(r *skel.Request) error {
	err := ifKnown(run(r, "STATUS"))
	if errors.Is(err, fs.ErrNotExist) {
		missing := *types.AsError(err)
		missing.Code = types.CodeNotAvailable
		return &missing
	}
	return err
}

func run(r *skel.Request, verb string) error {
	if r.Conf.IPAM.Type == "" {
		return nil
	}
	_, err := invoke.Run(r, verb, r.Conf.IPAM.Type)
	return blame(r, err)
}

// ifKnown drops the answer of a plugin that does not know the verb.
func ifKnown(err error) error {
	var answer *types.Error
	if errors.As(err, &answer) && strings.Contains(answer.Msg, "unknown CNI_COMMAND") {
		return nil
	}
	return err
}

// blame names the plugin in the error, whose code and details stay as they are.
func blame(r *skel.Request, err error) error {
	if err == nil {
		return nil
	}
	named := *types.AsError(err)
	named.Msg = `IPAM plugin "` + r.Conf.IPAM.Type + `": ` + named.Msg
	return &named
}
