package daemon

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// A state is the state of a lease. The names are from RFC 2131, figure 5, except releasing.
type state string

const (
	selecting  state = "selecting"  // the lease has no address, and the daemon sends DISCOVER
	requesting state = "requesting" // an address was offered, and the daemon sends REQUEST
	bound      state = "bound"      // the interface uses the lease, and T1 has not passed
	renewing   state = "renewing"   // T1 has passed, and the daemon sends REQUEST to the server
	rebinding  state = "rebinding"  // T2 has passed, and the daemon sends REQUEST to all servers
	rebooting  state = "rebooting"  // an earlier daemon obtained the lease, and the daemon sends REQUEST for the same address
	releasing  state = "releasing"  // the daemon sends RELEASE
)

var states = map[state]bool{
	selecting: true, requesting: true, bound: true, renewing: true, rebinding: true, rebooting: true, releasing: true,
}

// hasAddress reports whether the interface may use the address of the lease.
func (s state) hasAddress() bool {
	return s == bound || s == renewing || s == rebinding || s == rebooting
}

const (
	never = time.Duration(math.MaxInt64)
	// releaseTimeout limits a RELEASE, which is one message after an ARP exchange.
	releaseTimeout = 2 * time.Second
	// probeTime is more than the probe of an address takes (RFC 5227, section 2.1.1).
	probeTime = 10 * time.Second
	// minWait is the shortest time between two attempts to renew a lease (RFC 2131, section 4.4.5).
	minWait = time.Minute
	// minRenewAfter limits how often the daemon renews a very short lease.
	minRenewAfter = time.Second
	// maxPause is the longest time between two attempts to get an address.
	maxPause = 5 * time.Minute
	// maxDeclines is the number of offered addresses in use after which an ADD fails.
	maxDeclines = 3
	// maxReboots is how many leases are confirmed at the same time after a restart.
	maxReboots = 32
)

// errGone is the error for a namespace or interface that no longer exists.
var errGone = errors.New("the interface is gone")

// A clock measures the time since boot, including the time during which the machine is suspended.
type clock interface {
	now() time.Duration
	set(at time.Duration) // sets the alarm, or turns it off if at is never
	alarm() <-chan struct{}
}

// A lease is the lease of one attachment. Only the loop of the machine uses it.
type lease struct {
	record
	due      time.Duration      // time since boot at which the machine ends the running exchange or, without one, begins the next one
	cancel   context.CancelFunc // ends the running exchange, or nil if no exchange runs
	exchange int                // the number of the running exchange; outcomes of other exchanges are ignored
	begun    time.Duration      // the time since boot at which the exchange began
	offer    dhcp4.Offer        // the requested offer, until the server answers
	failures int                // failed attempts since the interface last had a lease
	declined int
	lastErr  error   // the error of the last failed exchange
	adds     []*call // calls that wait for the lease
	dels     []*call // calls that wait until the lease is forgotten
}

// A call is a request that waits for its answer.
type call struct {
	answer chan Answer // buffered for one answer
	left   int         // the number of leases that the machine must still forget (MethodDel, MethodGC)
}

// A machine contains all leases. Only its loop calls its methods, except init, run, submit and do.
type machine struct {
	store   Store
	clock   clock
	open    func(record) (iface, error) // opens the interface of a container
	boot    string                      // ID of the running boot
	timeout time.Duration               // limit of an exchange for which no ADD waits
	log     func(format string, args ...any)

	leases   map[types.Attachment]*lease
	work     chan func() // functions to be called in the loop
	ended    chan struct{}
	ctx      context.Context // the context of all exchanges
	exchange int             // number of the last exchange
	running  int             // number of running exchanges
}

// init creates the fields that a machine needs before run.
func (m *machine) init() {
	m.leases = map[types.Attachment]*lease{}
	m.work, m.ended = make(chan func()), make(chan struct{})
}

// run is the loop. When ctx ends, it waits for all exchanges and returns. The lease files stay.
func (m *machine) run(ctx context.Context) error {
	defer close(m.ended)
	m.ctx = ctx
	if err := m.load(); err != nil {
		return err
	}
	for {
		next := never
		for _, l := range m.leases {
			next = min(next, l.due)
		}
		m.clock.set(next)
		select {
		case <-ctx.Done():
			for m.running > 0 {
				(<-m.work)()
			}
			return nil
		case f := <-m.work:
			f()
		case <-m.clock.alarm():
		}
		m.wakeDue()
	}
}

// submit calls f in the loop and waits for the answer to its call. If ctx ends first, submit abandons the call.
func (m *machine) submit(ctx context.Context, f func(*call)) Answer {
	c := &call{answer: make(chan Answer, 1)}
	m.do(func() { f(c) })
	select {
	case a := <-c.answer:
		return a
	case <-ctx.Done():
		m.do(func() { m.abandon(c, context.Cause(ctx)) })
	case <-m.ended:
	}
	select {
	case a := <-c.answer:
		return a
	case <-m.ended:
		return failure(types.Errorf(types.CodeTryAgain, "the DHCP daemon is stopping; try again when it runs"))
	}
}

// do calls f in the loop, unless the loop has ended.
func (m *machine) do(f func()) {
	select {
	case m.work <- f:
	case <-m.ended:
	}
}

// load loads the leases of an earlier daemon.
func (m *machine) load() error {
	records, err := m.store.load(func(path string, err error) { m.log("%s: removed the lease file: %v", path, err) })
	if len(records) > 0 {
		m.log("leases taken over from the former daemon: %d", len(records))
	}
	for _, r := range records {
		l := &lease{record: r, due: never}
		m.leases[r.Attachment] = l
		switch {
		case r.Boot != m.boot:
			m.forget(l, "the machine has rebooted")
		case r.State == releasing, m.store.isMarked(r.Attachment), !r.Added:
			m.release(l)
		case r.State.hasAddress():
			l.State = rebooting
		case r.State == requesting: // the server may have acknowledged it
			l.offer.Lease = *r.Lease
			m.begin(l, requesting)
		default:
			m.begin(l, selecting)
		}
	}
	m.reboot()
	return err
}

// reboot begins exchanges of leases in state rebooting, up to maxReboots at the same time.
func (m *machine) reboot() {
	n := 0
	for _, l := range m.leases {
		if l.State == rebooting && l.cancel != nil {
			n++
		}
	}
	for _, l := range m.leases {
		if l.State != rebooting || l.cancel != nil {
			continue
		}
		if _, _, end := l.times(); m.clock.now() >= end {
			m.resume(l)
		} else if n < maxReboots {
			m.begin(l, rebooting)
			n++
		}
	}
}

// wakeDue ends or begins the exchanges that are due.
func (m *machine) wakeDue() {
	now := m.clock.now()
	for _, l := range m.leases {
		switch {
		case l.due > now:
		case l.cancel != nil: // the time for the exchange is over, and its outcome follows
			l.due = never
			l.cancel()
		case l.State == bound && m.store.isMarked(l.Attachment):
			m.release(l)
		case l.State == selecting:
			m.begin(l, selecting)
		default:
			m.resume(l)
		}
	}
}

// resume puts a lease with an address into the state for the present time. It begins an exchange unless that state is
// bound.
func (m *machine) resume(l *lease) {
	t1, t2, end := l.times()
	switch now := m.clock.now(); {
	case now >= end:
		m.log("%s: the lease of %s has run out", l.Attachment, l.Lease.Address)
		m.begin(l, selecting)
	case now >= t2:
		m.begin(l, rebinding)
	case now >= t1:
		m.begin(l, renewing)
	default:
		l.State, l.due = bound, t1
	}
}

// times returns when T1 and T2 of the lease pass, and when the lease ends.
func (l *lease) times() (t1, t2, end time.Duration) {
	t1 = max(l.Lease.RenewAfter, minRenewAfter)
	t2 = max(l.Lease.RebindAfter, t1)
	return l.Start + t1, l.Start + t2, l.Start + max(l.Lease.Duration, t2)
}

// begin puts a lease into a state and begins its exchange.
func (m *machine) begin(l *lease, s state) {
	if l.cancel != nil {
		l.cancel() // its outcome will be ignored
	}
	l.State, l.begun, l.due = s, m.clock.now(), m.limit(l, s)
	m.exchange++
	number := m.exchange
	ctx, cancel := context.WithCancel(m.ctx)
	l.cancel, l.exchange = cancel, number
	m.running++
	x := exchange{record: l.record, offer: l.offer}
	go func() {
		done := x.run(ctx, m.open)
		cancel()
		m.work <- func() { // the loop receives it even while it ends
			m.running--
			if l.exchange == number && m.ctx.Err() == nil {
				l.cancel = nil
				m.finish(l, done)
			}
		}
	}()
}

// limit returns when the machine ends the exchange of a state.
func (m *machine) limit(l *lease, s state) time.Duration {
	now := m.clock.now()
	switch s {
	case selecting:
		if len(l.adds) > 0 {
			return never // each ADD has its own limit
		}
	case renewing:
		_, t2, _ := l.times()
		return min(now+m.timeout, t2)
	case rebinding, rebooting:
		_, _, end := l.times()
		return min(now+m.timeout, end)
	case releasing:
		return now + releaseTimeout
	case requesting:
		if l.Probe {
			now += probeTime
		}
	}
	return now + m.timeout
}

// finish processes the outcome of an exchange.
func (m *machine) finish(l *lease, done outcome) {
	s := l.State
	if done.restored {
		m.log("%s: the interface had lost the address %s, which the daemon has added again", l.Attachment, l.Lease.Address)
	}
	if done.warning != nil {
		m.log("%s: %v", l.Attachment, done.warning)
	}
	switch {
	case errors.Is(done.err, errGone):
		m.forget(l, l.whyGone())
	case s == releasing && done.err != nil:
		m.forget(l, fmt.Sprintf("the release of %s was not sent: %v", l.Lease.Address, done.err))
	case s == releasing:
		m.forget(l, fmt.Sprintf("%s is released", l.Lease.Address))
	case done.err == nil && s == selecting:
		m.request(l, done.offer)
	case done.err == nil:
		m.bind(l, done)
	case errors.Is(done.err, dhcp4.ErrNAK) && s != requesting:
		m.log("%s: the server refuses the address %s (DHCPNAK)", l.Attachment, l.Lease.Address)
		m.begin(l, selecting)
	case s.hasAddress():
		m.retry(l, done.err)
	default:
		m.pause(l, done.err)
	}
	if s == rebooting {
		m.reboot()
	}
}

// isLeased reports whether a server keeps an address for the lease, or may keep one because it has not answered a
// REQUEST.
func (l *lease) isLeased() bool {
	return l.mustBeReleased() || l.Lease != nil && l.offer.Address.IsValid()
}

// whyGone returns the reason for forgetting a lease whose interface is gone.
func (l *lease) whyGone() string {
	if !l.isLeased() {
		return "its interface is gone"
	}
	return fmt.Sprintf("its interface is gone; the server keeps %s until the lease runs out", l.Lease.Address)
}

// request saves the offered address before it requests it, so that a later daemon finds the address if this one is
// killed.
func (m *machine) request(l *lease, o dhcp4.Offer) {
	l.State, l.offer, l.Lease, l.Start = requesting, o, &o.Lease, l.begun
	if err := m.store.save(l.record); err != nil {
		l.Lease = nil
		m.log("%s: %v", l.Attachment, err)
		m.fail(l, err)
		m.pause(l, err)
		return
	}
	m.begin(l, requesting)
}

// bind stores a lease that a server has acknowledged, and answers the waiting ADDs.
func (m *machine) bind(l *lease, done outcome) {
	for _, ignored := range done.lease.Ignored {
		m.log("%s: ignored in the answer of %s: %v", l.Attachment, done.lease.Server, ignored)
	}
	switch {
	case l.State == requesting:
		m.log("%s: %s is leased by %s for %s", l.Attachment, done.lease.Address, done.lease.Server, done.lease.Duration)
	case l.Lease.Address != done.lease.Address:
		m.log("%s: the server has changed the address from %s to %s", l.Attachment, l.Lease.Address, done.lease.Address)
	default:
		m.log("%s: the lease of %s is renewed by %s for %s", l.Attachment, done.lease.Address, done.lease.Server, done.lease.Duration)
	}
	answer := Answer{Lease: &done.lease}
	if done.warning != nil {
		answer.Warning = done.warning.Error()
	}
	l.Lease, l.offer, l.Start, l.State = &done.lease, dhcp4.Offer{}, l.begun, bound
	l.Added = l.Added || len(l.adds) > 0
	l.failures, l.declined, l.lastErr = 0, 0, nil
	if err := m.store.save(l.record); err != nil {
		m.log("%s: %v", l.Attachment, err)
	}
	l.answer(answer)
	m.resume(l)
}

// answer answers all waiting ADDs.
func (l *lease) answer(a Answer) {
	for _, c := range l.adds {
		c.answer <- a
	}
	l.adds = nil
}

// retry waits before the next attempt to renew a lease, for half of the remaining time but at least a minute (RFC 2131,
// section 4.4.5).
func (m *machine) retry(l *lease, err error) {
	m.log("%s: the lease of %s is not renewed: %v", l.Attachment, l.Lease.Address, err)
	_, next, end := l.times()
	now := m.clock.now()
	if l.State == rebooting || l.State == renewing && now >= next || now >= end {
		m.resume(l)
		return
	}
	if l.State == rebinding {
		next = end
	}
	l.due = min(next, now+max((next-now)/2, minWait))
}

// pause waits before the next DISCOVER, except after the first failure.
func (m *machine) pause(l *lease, err error) {
	inUse := errors.Is(err, dhcp4.ErrInUse)
	if errors.Is(err, dhcp4.ErrNAK) || inUse {
		l.offer = dhcp4.Offer{}
		if !l.Added {
			l.Lease = nil
		}
	}
	if inUse {
		l.declined++
		m.log("%s: %v", l.Attachment, err)
	}
	if l.declined >= maxDeclines {
		m.fail(l, types.Errorf(codeInUse, "%d addresses that the DHCP server offered are in use: %w", l.declined, err))
	}
	if l.exchange == 0 || l.State == releasing { // fail has ended the lease
		return
	}
	l.State, l.lastErr, l.due = selecting, err, m.clock.now()
	if l.failures > 0 {
		l.due += min(time.Second<<min(l.failures, 10), maxPause)
	}
	l.failures++
}

// fail answers the waiting ADDs with an error. If no ADD has succeeded, it releases the lease.
func (m *machine) fail(l *lease, err error) {
	l.answer(failure(err))
	if !l.Added {
		m.release(l)
	}
}

// release releases a lease and forgets it.
func (m *machine) release(l *lease) {
	l.answer(failure(types.Errorf(types.CodeTryAgain, "a DEL of %s has released the lease", l.Attachment)))
	switch {
	case l.State == releasing && l.cancel != nil:
		return
	case !l.isLeased():
		m.forget(l, "")
		return
	}
	l.State = releasing
	if err := m.store.save(l.record); err != nil {
		m.log("%s: %v", l.Attachment, err)
	}
	m.begin(l, releasing)
}

// forget removes a lease, and logs the reason unless it is empty.
func (m *machine) forget(l *lease, why string) {
	if l.cancel != nil {
		l.cancel()
	}
	l.exchange, l.due = 0, never
	delete(m.leases, l.Attachment)
	if why != "" {
		m.log("%s: %s", l.Attachment, why)
	}
	if err := m.store.remove(l.Attachment); err != nil {
		m.log("%s: %v", l.Attachment, err)
	}
	l.answer(failure(types.Errorf(types.CodeNamespace, "%s: %s", l.Attachment, why)))
	for _, c := range l.dels {
		c.done()
	}
}

// done counts a forgotten lease, and answers after the last one.
func (c *call) done() {
	if c.left--; c.left == 0 {
		c.answer <- Answer{}
	}
}
