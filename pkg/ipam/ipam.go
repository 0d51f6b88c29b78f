// Package ipam calls the IPAM plugin of a network, which allocates and releases addresses (SPEC 1.1.0, section 4).
//
// The IPAM plugin is a separate process, which runs at the same time as its caller. The caller's ADD calls ADD of the
// IPAM plugin (the IPAM ADD) in three steps:
//
//  1. Start starts the process. Meanwhile the caller checks the container.
//  2. AllowAllocation lets the IPAM plugin allocate addresses. Meanwhile the caller creates its links.
//  3. Wait returns the lease. An IPAM plugin that works over the link (NeedsLink) allocates addresses only in this step, when
//     the links are up.
//
// The caller's DEL calls DelWithLink, or Del if it deletes no link. Its GC calls GCWithLinks or GC, and its CHECK calls
// StartCheck.
//
// Here and in pkg/nl, the caller waits for work in the background by a method Wait, or by a function wait that it must
// call once. skel waits for the work that must end before the result is printed (skel.Request.BeforeResult). The undo
// of a change waits until the change has ended.
//
// Two rules protect the addresses of other attachments:
//
//   - Before AllowAllocation, the caller checks that the container has no interface with the name CNI_IFNAME. A second ADD of a
//     live attachment must fail before it allocates an address.
//   - An ADD that fails calls DEL of the IPAM plugin if the IPAM ADD succeeded, or if it was killed and may therefore have
//     allocated an address. If the IPAM ADD failed, the caller does not call DEL, although SPEC 1.1.0 (section 4) recommends it.
//     The IPAM plugin has already cleaned up, and DEL would release an address that the attachment had before.
//
// A network has no addresses if its configuration lacks "ipam", or if "type" in it is missing or empty. In that case
// Start returns nil, and the other functions do nothing. The reference plugins that can create a link without addresses
// (bridge, macvlan) read the configuration in the same way.
package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/invoke"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Lease is the result of an IPAM ADD. It contains at least one IP. The IPs do not belong to an interface yet
// (types.NoInterface).
type Lease struct {
	IPs    []types.IP
	Routes []types.Route
	DNS    types.DNS
}

// AddTo adds the lease to the result of the caller's ADD. index is the index of the interface to which the IPs belong
// in the result. AddTo sets DNS only if result.DNS is zero.
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

// A Pending is an IPAM ADD that has been started. For a network without addresses, the *Pending is nil. The state of
// the IPAM ADD is the state of its call (invoke.State).
type Pending struct {
	r     *skel.Request
	call  *invoke.Call
	lease *Lease // the lease of Wait or NewPending, or nil before Wait has returned one
	empty bool   // whether the lease may have no addresses
}

// NewPending returns a Pending for a lease that does not come from an IPAM plugin. Only Wait may be called.
func NewPending(l *Lease) *Pending { return &Pending{lease: l} }

// CheckLayer2 returns types.ErrNoAddress if the network has no IPAM plugin, but its version is below 0.3.0. Results of
// these versions must contain an IP address.
func CheckLayer2(r *skel.Request) error {
	if r.Conf.IPAM.Type == "" && r.Version < types.V030 {
		return fmt.Errorf("ipam: %w", types.ErrNoAddress)
	}
	return nil
}

// CheckNotDHCP returns an error for the IPAM plugin dhcp, which the plugin cannot use for this reason.
func CheckNotDHCP(r *skel.Request, reason string) error {
	if NeedsLink(r) {
		return fmt.Errorf("ipam.type: %s; use another IPAM plugin than %s", reason, r.Conf.IPAM.Type)
	}
	return nil
}

// AllowNoAddress lets Wait accept a lease without addresses. p may be nil.
func (p *Pending) AllowNoAddress() {
	if p != nil {
		p.empty = true
	}
}

// Start starts the process of the IPAM plugin, which does nothing before AllowAllocation or Wait. The
// caller calls Start before anything else, because starting a process takes longer than allocating
// addresses. Start returns nil if the network has no addresses.
func Start(r *skel.Request) (*Pending, error) {
	if r.Conf.IPAM.Type == "" {
		return nil, nil
	}
	call, err := invoke.Launch(r, "ADD", r.Conf.IPAM.Type)
	if err != nil {
		return nil, withPluginName(r, err)
	}
	r.Undo.Push("kill IPAM plugin", func() error {
		call.Kill() // does nothing if the process has its configuration, because undoAllocation has then waited for its end
		return nil
	})
	return &Pending{r: r, call: call}, nil
}

// AllowAllocation lets the IPAM plugin allocate addresses. An IPAM plugin that works over the link
// allocates them only when the caller calls Wait.
func (p *Pending) AllowAllocation() {
	if p != nil && !NeedsLink(p.r) {
		p.sendConfig()
	}
}

// sendConfig sends the configuration to the IPAM plugin, which then allocates addresses.
//
// If the caller's ADD fails later, even without a call of Wait, the undo waits for the IPAM plugin and
// releases the addresses. sendConfig, rather than Wait, pushes this undo, because links that the caller
// creates in between must be deleted before the addresses are released.
func (p *Pending) sendConfig() {
	p.call.SendConfig()
	p.r.Undo.Push("IPAM DEL", p.undoAllocation)
}

// Wait returns the lease as soon as the IPAM plugin has printed it, even if the process has not ended. skel prints the
// result of the caller's ADD only after the process has ended without an error. After Wait has returned a lease, it
// returns the same lease again. After an error, it must not be called again. It must not be called for a nil *Pending.
func (p *Pending) Wait() (lease *Lease, err error) {
	if p.lease == nil {
		p.lease, err = p.wait()
	}
	return p.lease, err
}

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
	// The output is an error result, an incomplete lease, or not a lease at all. Only the whole output and the exit
	// status tell which.
	out, err = p.call.Wait()
	if err != nil {
		return nil, withPluginName(p.r, err)
	}
	return p.parse(out)
}

// confirm waits until the process has ended. It returns an error if the IPAM plugin failed after it had printed the
// lease, or printed something else after the lease. lease is the output that Wait has parsed.
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
	if len(result.IPs) == 0 && !p.empty {
		return nil, &types.Error{
			Code: types.CodeConfig,
			Msg: "IPAM plugin returned missing IP config: the result of " + p.r.Conf.IPAM.Type + " contains no addresses in \"ips\"; " +
				"configure addresses in the key \"ipam\", for example with \"addresses\" for static",
		}
	}
	for i := range result.IPs {
		result.IPs[i].Interface = types.NoInterface
	}
	return &Lease{IPs: result.IPs, Routes: result.Routes, DNS: result.DNS}, nil
}

// undoAllocation waits until the process has ended, and releases the addresses that the IPAM ADD allocated. If the IPAM
// ADD failed, there is nothing to release, unless the IPAM plugin was killed after it had allocated an address.
func (p *Pending) undoAllocation() error {
	if _, err := p.call.Wait(); err != nil && !errors.Is(err, invoke.ErrKilled) {
		return nil
	}
	return Del(p.r)
}

// NeedsLink reports whether the IPAM plugin works over the container's interface, as a DHCP client does. Such a plugin
// allocates addresses after the link has been set up (see Wait), and releases them before the link is deleted (see
// DelWithLink).
func NeedsLink(r *skel.Request) bool { return r.Conf.IPAM.Type == "dhcp" }

// DelWithLink releases the addresses of the attachment and deletes its link.
//
// If the IPAM plugin works over the link, DelWithLink releases the addresses first, because the plugin sends
// DHCPRELEASE over the link. A DHCP server probes an address before it leases the address again (RFC 2131, section
// 2.2). With any other IPAM plugin, DelWithLink first deletes the link, and releases the addresses only if deleteLink
// returned no error. While the link exists, the container answers for its addresses, and no other attachment may get
// them.
//
// deleteLink returns an error if the link may still exist. Its function wait, which is never nil, returns when the
// kernel has cleaned up. DelWithLink calls wait last, so that the kernel cleans up while the IPAM plugin runs.
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

// Del calls DEL of the IPAM plugin, which releases the attachment's addresses. If CNI_PATH contains no such IPAM
// plugin, Del returns an error, because the addresses would never be released.
func Del(r *skel.Request) error { return run(r, "DEL") }

// StartCheck starts CHECK of the IPAM plugin, unless the caller is told not to (skel.Request.ChecksIPAM). It runs during the
// caller's own checks. The caller must call wait, which is never nil, once. wait waits until CHECK has ended and returns its
// error.
func StartCheck(r *skel.Request) (wait func() error) {
	if !r.ChecksIPAM() {
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

// Repair calls REPAIR of host-local or cluster-local, which restores lost reservations. It calls no other IPAM plugin,
// because REPAIR is not part of the CNI specification and such a plugin may handle it as ADD. Repair returns nil for what
// CHECK, which the caller's REPAIR runs afterwards, reports as well, and if the IPAM plugin does not know the verb.
func Repair(r *skel.Request) error {
	if !slices.Contains([]string{"host-local", "cluster-local"}, r.Conf.IPAM.Type) {
		return nil
	}
	err := ignoreUnknownVerb(run(r, skel.CommandRepair))
	if err != nil && types.AsError(err).Code == types.CodeChanged {
		return nil
	}
	return err
}

// GC calls GC of the IPAM plugin. It returns nil if the IPAM plugin does not know the verb GC,
// which is new in CNI 1.1.0.
func GC(r *skel.Request) error { return ignoreUnknownVerb(run(r, "GC")) }

// GCWithLinks calls GC of the IPAM plugin, and deleteLinks, which deletes the links of the attachments that are not
// valid. It calls them in the order of DelWithLink, and calls the second one even if the first one fails.
func GCWithLinks(r *skel.Request, deleteLinks func() error) error {
	if NeedsLink(r) {
		releaseErr := GC(r)
		return errors.Join(releaseErr, deleteLinks())
	}
	err := deleteLinks()
	return errors.Join(err, GC(r))
}

// Status is STATUS of an interface plugin. err is the reason why its ADD cannot succeed, and Status returns it with
// types.CodeNotAvailable. If err is nil, Status calls STATUS of the IPAM plugin. If CNI_PATH contains no such IPAM plugin,
// the error has types.CodeNotAvailable as well. Status returns nil if the IPAM plugin does not know the verb STATUS, which
// is new in CNI 1.1.0.
func Status(r *skel.Request, err error) error {
	if err != nil {
		return types.NotAvailable(err)
	}
	err = ignoreUnknownVerb(run(r, "STATUS"))
	if errors.Is(err, fs.ErrNotExist) {
		missing := *types.AsError(err)
		missing.Code = types.CodeNotAvailable
		return &missing
	}
	return err
}

// run calls the IPAM plugin with the verb and waits for it. For a network without addresses, it does
// nothing.
func run(r *skel.Request, verb string) error {
	if r.Conf.IPAM.Type == "" {
		return nil
	}
	_, err := invoke.Run(r, verb, r.Conf.IPAM.Type)
	return withPluginName(r, err)
}

// ignoreUnknownVerb returns nil if err means that the IPAM plugin does not know the verb, and otherwise
// err.
func ignoreUnknownVerb(err error) error {
	var coded *types.Error
	if errors.As(err, &coded) && strings.Contains(coded.Msg, "unknown CNI_COMMAND") {
		return nil
	}
	return err
}

// withPluginName returns err with the IPAM plugin's name in its message, and with the same code and
// details.
func withPluginName(r *skel.Request, err error) error {
	if err == nil {
		return nil
	}
	named := *types.AsError(err)
	named.Msg = `IPAM plugin "` + r.Conf.IPAM.Type + `": ` + named.Msg
	return &named
}
