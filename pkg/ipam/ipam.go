// Package ipam calls the IPAM plugin of a network, which allocates and releases addresses
// (SPEC 1.1.0, section 4).
//
// The IPAM plugin is a process of its own, which runs at the same time as its caller. The
// caller's ADD calls ADD of the IPAM plugin (the IPAM ADD) in three steps:
//
//  1. Start starts the process. Meanwhile the caller checks the container.
//  2. AllowAllocation lets the IPAM plugin allocate addresses. Meanwhile the caller makes its
//     links.
//  3. Wait returns the lease. An IPAM plugin that works over the link (NeedsLink) allocates
//     addresses only now, when the links are up.
//
// The caller's DEL calls DelWithLink, or Del if it deletes no link. Its GC calls GCWithLinks, or GC.
// Its CHECK calls StartCheck.
//
// What runs in the background is awaited in one way, here and in pkg/nl: by a method Wait, or
// by a function wait that the caller must call once. skel awaits what must have ended before
// the result is printed (skel.Request.BeforeResult), and the undo awaits what it undoes.
//
// Two rules keep the address of another attachment safe:
//
//   - Before AllowAllocation, the caller has checked that the container has no interface with
//     the name CNI_IFNAME. A second ADD of a live attachment must fail before it allocates.
//   - An ADD that fails calls DEL of the IPAM plugin if the IPAM ADD succeeded, or if it was
//     killed, because then it may have allocated an address. If the IPAM ADD failed, the caller
//     does not call DEL, although the specification recommends it (SPEC 1.1.0, section 4): the
//     IPAM plugin has cleaned up itself, and if the attachment already had an address, DEL would
//     release it.
//
// A network has no addresses if its configuration has no "ipam", or one whose "type" is missing
// or empty. Start then returns nil, and the other functions do nothing. The reference plugins
// that create a link without addresses (bridge, macvlan) read the configuration in the same way.
package ipam

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"

	"github.com/plumb-cni/plumb/pkg/invoke"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A Lease is the result of an IPAM ADD. It has at least one IP. The IPs belong to no interface
// yet (types.NoInterface).
type Lease struct {
	IPs    []types.IP
	Routes []types.Route
	DNS    types.DNS
}

// AddTo adds the lease to the result of the caller's ADD. Its IPs belong to the interface with
// that index in the result. Its DNS is used if the result has none.
func (l *Lease) AddTo(result *types.Result, index int) {
	for _, ip := range l.IPs {
		ip.Interface = index
		result.IPs = append(result.IPs, ip)
	}
	result.Routes = append(result.Routes, l.Routes...)
	if result.DNS.IsZero() {
		result.DNS = l.DNS
	}
}

// A Pending is an IPAM ADD that has been started. A network without addresses has a nil
// *Pending. The state of the IPAM ADD is its call's (invoke.State): in state Launched it
// has allocated nothing, and only in state Ended it is known whether it succeeded.
type Pending struct {
	r     *skel.Request
	call  *invoke.Call
	lease *Lease // what Wait has returned, or what NewPending got; nil: nothing yet
}

// NewPending returns a Pending for a lease that no IPAM plugin has to return. Only Wait may be
// called.
func NewPending(l *Lease) *Pending { return &Pending{lease: l} }

// CheckLayer2 returns types.ErrNoAddress if the network has no IPAM plugin, but a result of its version
// must have an IP address, which it must before 0.3.0.
func CheckLayer2(r *skel.Request) error {
	if r.Conf.IPAM.Type == "" && r.Version < types.V030 {
		return types.ErrNoAddress
	}
	return nil
}

// Start starts the process of the IPAM plugin, which does nothing before AllowAllocation or
// Wait. The caller calls Start first of all, because starting a process takes longer than
// allocating addresses. Start returns nil if the network has no addresses.
func Start(r *skel.Request) (*Pending, error) {
	if r.Conf.IPAM.Type == "" {
		return nil, nil
	}
	call, err := invoke.Launch(r, "ADD", r.Conf.IPAM.Type)
	if err != nil {
		return nil, withPluginName(r, err)
	}
	r.Undo.Push("kill IPAM plugin", func() error {
		call.Kill() // does nothing if the process has its configuration: undoAllocation has awaited its end
		return nil
	})
	return &Pending{r: r, call: call}, nil
}

// AllowAllocation lets the IPAM plugin allocate addresses: at once or, if it works over the
// link, as soon as the caller calls Wait.
func (p *Pending) AllowAllocation() {
	if p != nil && !NeedsLink(p.r) {
		p.sendConfig()
	}
}

// sendConfig sends the configuration to the IPAM plugin, which then allocates addresses.
//
// If the caller's ADD fails later, even without a call of Wait, the undo waits for the IPAM
// plugin and releases what it has allocated. sendConfig pushes this undo, and Wait does not:
// links that the caller makes in between must be deleted before the address is released.
func (p *Pending) sendConfig() {
	p.call.SendConfig()
	p.r.Undo.Push("IPAM DEL", p.undoAllocation)
}

// Wait returns the lease as soon as the IPAM plugin has printed it. The process may not have
// ended then: skel prints the result of the caller's ADD only after the process has ended
// without an error. After Wait has returned a lease, it returns the same one again; after an error
// it must not be called again. It must not be called for a nil *Pending.
func (p *Pending) Wait() (lease *Lease, err error) {
	if p.lease == nil {
		p.lease, err = p.wait()
	}
	return p.lease, err
}

// wait waits for the lease.
func (p *Pending) wait() (*Lease, error) {
	if p.call.State() == invoke.Launched { // the IPAM plugin works over the link
		p.sendConfig()
	}
	out, err := p.call.ReadAnswer()
	if err == nil {
		lease, err := p.parse(out)
		if err == nil {
			p.r.BeforeResult(func() error { return p.confirm(out) })
			return lease, nil
		}
	}
	// The output is no lease, or not yet a whole one, or an error result. Only the whole output and
	// the exit status tell which.
	out, err = p.call.Wait()
	if err != nil {
		return nil, withPluginName(p.r, err)
	}
	return p.parse(out)
}

// confirm waits until the process has ended. It returns an error if the IPAM plugin failed after
// it had printed the lease, or if it printed something after the lease. lease is the output that
// Wait has parsed.
func (p *Pending) confirm(lease []byte) error {
	out, err := p.call.Wait()
	if err != nil {
		return withPluginName(p.r, err)
	}
	if !bytes.Equal(bytes.TrimSpace(out), bytes.TrimSpace(lease)) {
		return withPluginName(p.r, types.Errorf(types.CodeDecode, "it printed more than one result"))
	}
	return nil
}

// parse returns the lease that the IPAM plugin printed.
func (p *Pending) parse(output []byte) (*Lease, error) {
	if len(bytes.TrimSpace(output)) == 0 {
		return nil, withPluginName(p.r, types.Errorf(types.CodeDecode, "it printed no result"))
	}
	result, err := types.ParseResult(p.r.Version, output)
	// Some plugins print an error result and exit with 0.
	if failure := invoke.ParseError(output); failure != nil && (err != nil || len(result.IPs) == 0) {
		return nil, withPluginName(p.r, failure)
	}
	if err != nil {
		return nil, withPluginName(p.r, types.Coded(types.CodeDecode, err))
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

// undoAllocation waits until the process has ended, and releases what the IPAM ADD allocated. If
// the IPAM ADD failed, there is nothing to release, unless the IPAM plugin was killed: it may
// have allocated an address before.
func (p *Pending) undoAllocation() error {
	if _, err := p.call.Wait(); err != nil && !errors.Is(err, invoke.ErrKilled) {
		return nil
	}
	return Del(p.r)
}

// NeedsLink reports whether the IPAM plugin works over the container's interface, as a DHCP
// client does. Such a plugin allocates addresses after the link has been set up (Wait), and
// releases them before the link is deleted (DelWithLink).
func NeedsLink(r *skel.Request) bool { return r.Conf.IPAM.Type == "dhcp" }

// DelWithLink releases the addresses of the attachment and deletes its link.
//
// If the IPAM plugin works over the link, DelWithLink releases the addresses first, because the
// plugin sends DHCPRELEASE over the link. A DHCP server probes an address before it leases the
// address again (RFC 2131, section 2.2). With any other IPAM plugin, DelWithLink first deletes
// the link, and releases the addresses only if deleteLink returned no error: while the link
// exists, the container answers for its addresses, and no other attachment may get them.
//
// deleteLink returns an error if the link may still exist. wait, which is never nil, returns
// when the kernel has cleaned up. DelWithLink calls it last, because the kernel can clean up
// while the IPAM plugin runs.
func DelWithLink(r *skel.Request, deleteLink func() (wait func() error, err error)) error {
	if NeedsLink(r) {
		releaseErr := Del(r)
		wait, err := deleteLink()
		return errors.Join(releaseErr, err, wait())
	}
	wait, err := deleteLink()
	if err == nil {
		err = Del(r)
	}
	return errors.Join(err, wait())
}

// Del calls DEL of the IPAM plugin, which releases the addresses of the attachment. If CNI_PATH
// has no such IPAM plugin, Del returns an error, because nothing would ever release them.
func Del(r *skel.Request) error { return run(r, "DEL") }

// StartCheck starts CHECK of the IPAM plugin, which runs while the caller makes its own
// checks. The function wait is never nil. It waits until CHECK has ended and returns its error.
// The caller must call wait once.
func StartCheck(r *skel.Request) (wait func() error) {
	if r.Conf.IPAM.Type == "" {
		return func() error { return nil }
	}
	call, err := invoke.Start(r, "CHECK", r.Conf.IPAM.Type)
	if err != nil {
		return func() error { return withPluginName(r, err) }
	}
	return func() error {
		_, err := call.Wait()
		return withPluginName(r, err)
	}
}

// GC calls GC of the IPAM plugin. It returns nil if the IPAM plugin does not know the verb GC,
// which is new in CNI 1.1.0.
func GC(r *skel.Request) error { return ignoreUnknownVerb(run(r, "GC")) }

// GCWithLinks calls GC of the IPAM plugin, and deleteLinks, which deletes the links of the attachments
// that are not valid, in the order of DelWithLink. It calls both, also if the first one fails.
func GCWithLinks(r *skel.Request, deleteLinks func() error) error {
	if NeedsLink(r) {
		releaseErr := GC(r)
		return errors.Join(releaseErr, deleteLinks())
	}
	err := deleteLinks()
	return errors.Join(err, GC(r))
}

// Status calls STATUS of the IPAM plugin. If CNI_PATH has no such IPAM plugin, the error has
// types.CodeNotAvailable, because ADD cannot succeed. Status returns nil if the IPAM plugin does
// not know the verb STATUS, which is new in CNI 1.1.0.
func Status(r *skel.Request) error {
	err := ignoreUnknownVerb(run(r, "STATUS"))
	if errors.Is(err, fs.ErrNotExist) {
		missing := *types.AsError(err)
		missing.Code = types.CodeNotAvailable
		return &missing
	}
	return err
}

// run calls the IPAM plugin with the verb and waits for it. It does nothing for a network
// without addresses.
func run(r *skel.Request, verb string) error {
	if r.Conf.IPAM.Type == "" {
		return nil
	}
	_, err := invoke.Run(r, verb, r.Conf.IPAM.Type)
	return withPluginName(r, err)
}

// ignoreUnknownVerb returns nil if err says that the IPAM plugin does not know the verb, and
// otherwise err.
func ignoreUnknownVerb(err error) error {
	var coded *types.Error
	if errors.As(err, &coded) && strings.Contains(coded.Msg, "unknown CNI_COMMAND") {
		return nil
	}
	return err
}

// withPluginName returns err with the name of the IPAM plugin in its message, and with the same
// code and details.
func withPluginName(r *skel.Request, err error) error {
	if err == nil {
		return nil
	}
	named := *types.AsError(err)
	named.Msg = `IPAM plugin "` + r.Conf.IPAM.Type + `": ` + named.Msg
	return &named
}
