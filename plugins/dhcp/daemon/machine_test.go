package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// The tests of the machine run in bubbles of synctest, whose clock jumps to the next timer as soon as all
// goroutines wait. A lease of an hour therefore runs out in a millisecond.

// A fakeClock is a clock with the time of the bubble. boot is the time at which the bubble began.
type fakeClock struct {
	boot  time.Time
	timer *time.Timer
	rings chan struct{}
}

func (c *fakeClock) now() time.Duration     { return time.Since(c.boot) }
func (c *fakeClock) alarm() <-chan struct{} { return c.rings }

func (c *fakeClock) set(at time.Duration) {
	if c.timer != nil {
		c.timer.Stop()
	}
	if at == never {
		return
	}
	c.timer = time.AfterFunc(at-c.now(), func() {
		select {
		case c.rings <- struct{}{}:
		default:
		}
	})
}

// A fakeNet is a segment with a DHCP server and one container.
type fakeNet struct {
	boot   time.Time
	mu     sync.Mutex
	events []string // "30m0s RENEW 10.0.0.5"
	// The server gives the address addr, is silent, or refuses REQUESTs.
	addr   string
	silent bool
	nak    bool
	inUse  map[string]bool // addresses that another host uses
	gone   bool            // the interface does not exist
	lease  time.Duration   // zero: an hour
}

// set changes the segment, and clears the events.
func (f *fakeNet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.events = nil
}

func (f *fakeNet) event(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, strings.TrimSpace(time.Since(f.boot).String()+" "+fmt.Sprintf(format, args...)))
}

func (f *fakeNet) open(r record) (iface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return nil, errGone
	}
	return fakeLink{f, r}, nil
}

// A fakeLink is the interface of a container.
type fakeLink struct {
	*fakeNet
	r record
}

func (f *fakeNet) answer(ctx context.Context) (dhcp4.Lease, error) {
	f.mu.Lock()
	silent, d, addr := f.silent, f.lease, f.addr
	f.mu.Unlock()
	if silent {
		<-ctx.Done()
		return dhcp4.Lease{}, errors.New("no usable answer")
	}
	if d == 0 {
		d = time.Hour
	}
	return dhcp4.Lease{
		Address: netip.MustParsePrefix(addr + "/24"), Server: netip.MustParseAddr("10.0.0.1"),
		Duration: d, RenewAfter: d / 2, RebindAfter: d / 8 * 7,
	}, nil
}

func (f *fakeNet) request(ctx context.Context) (dhcp4.Lease, error) {
	f.mu.Lock()
	nak := f.nak
	f.mu.Unlock()
	if nak {
		return dhcp4.Lease{}, dhcp4.ErrNAK
	}
	return f.answer(ctx)
}

func (f *fakeNet) Discover(ctx context.Context) (dhcp4.Offer, error) {
	f.event("DISCOVER")
	l, err := f.answer(ctx)
	return dhcp4.Offer{Lease: l}, err
}

func (f *fakeNet) Accept(ctx context.Context, o dhcp4.Offer) (dhcp4.Lease, error) {
	f.event("REQUEST %s", o.Address.Addr())
	return f.request(ctx)
}

func (f *fakeNet) Reboot(ctx context.Context, a netip.Addr) (dhcp4.Lease, error) {
	f.event("REBOOT %s", a)
	return f.request(ctx)
}

func (f *fakeNet) Renew(ctx context.Context, l dhcp4.Lease) (dhcp4.Lease, error) {
	f.event("RENEW %s", l.Address.Addr())
	return f.request(ctx)
}

func (f *fakeNet) Rebind(ctx context.Context, l dhcp4.Lease) (dhcp4.Lease, error) {
	f.event("REBIND %s", l.Address.Addr())
	return f.request(ctx)
}

func (f *fakeNet) Release(_ context.Context, l dhcp4.Lease) error {
	f.event("RELEASE %s", l.Address.Addr())
	return nil
}

func (f *fakeNet) Decline(_ context.Context, l dhcp4.Lease) error {
	f.event("DECLINE %s", l.Address.Addr())
	return nil
}

func (f *fakeNet) Probe(_ context.Context, a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inUse[a.String()] {
		return dhcp4.ErrInUse
	}
	return nil
}

func (f fakeLink) configure(from, to *dhcp4.Lease) error {
	name := func(l *dhcp4.Lease) string {
		if l == nil {
			return "none"
		}
		return l.Address.Addr().String()
	}
	if f.r.Added && name(from) != name(to) {
		f.event("configure %s -> %s", name(from), name(to))
	}
	return nil
}

func (f *fakeNet) restore(*dhcp4.Lease) (bool, error) { return false, nil }

func (f *fakeNet) close() {}

// A bed is a running machine on a fakeNet.
type bed struct {
	*machine
	t    *testing.T
	net  *fakeNet
	logs []string // only the loop appends to it
	stop func()
}

// inBubble runs f in a bubble, with a machine whose server gives 10.0.0.5.
func inBubble(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t: t, net: &fakeNet{boot: time.Now(), addr: "10.0.0.5"}}
		b.start(filepath.Join(t.TempDir(), "leases"))
		f(t, b)
		b.stop()
	})
}

func (b *bed) start(dir string) {
	b.machine = &machine{
		store: Store{Dir: dir}, clock: &fakeClock{boot: b.net.boot, rings: make(chan struct{}, 1)}, open: b.net.open, boot: "boot",
		timeout: 10 * time.Second,
		log: func(format string, args ...any) {
			b.t.Logf(format, args...)
			b.logs = append(b.logs, fmt.Sprintf(format, args...))
		},
	}
	b.init()
	ctx, cancel := context.WithCancel(b.t.Context())
	b.stop = func() { cancel(); <-b.ended }
	go func() {
		if err := b.run(ctx); err != nil {
			b.t.Error(err)
		}
	}()
}

// restart ends the machine, and starts another one after some time.
func (b *bed) restart(after time.Duration) {
	b.stop()
	time.Sleep(after)
	b.start(b.store.Dir)
}

// attachment returns the attachment of eth0 in a container.
func attachment(network, id string) types.Attachment {
	return types.Attachment{Network: network, ContainerID: id, IfName: "eth0"}
}

var owner = attachment("net1", "cid")

func recordOf(o types.Attachment) record {
	return record{Attachment: o, NetNS: "/ns", Cookie: 1, Link: 2, Boot: "boot"}
}

func (b *bed) add(r record, limit time.Duration) Answer {
	ctx, cancel := context.WithTimeoutCause(b.t.Context(), limit, errors.New("too late"))
	defer cancel()
	return b.submit(ctx, func(c *call) { b.machine.add(r, c) })
}

// mustAdd returns the address that an ADD gets.
func (b *bed) mustAdd() string {
	b.t.Helper()
	a := b.add(recordOf(owner), time.Minute)
	if a.Err() != nil {
		b.t.Fatal(a.Err())
	}
	return a.Lease.Address.Addr().String()
}

func (b *bed) del(match func(types.Attachment) bool) Answer {
	return b.submit(b.t.Context(), func(c *call) { b.machine.del(match, c) })
}

func (b *bed) check() Answer {
	return b.submit(b.t.Context(), func(c *call) { b.machine.check(owner, c) })
}

func all(types.Attachment) bool { return true }

// wantEvents compares the events since the last call.
func (b *bed) wantEvents(want ...string) {
	b.t.Helper()
	synctest.Wait()
	var got []string
	b.net.set(func() { got = b.net.events })
	if !slices.Equal(got, want) {
		b.t.Errorf("events\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (b *bed) wantFiles(want int) {
	b.t.Helper()
	synctest.Wait()
	files, _ := filepath.Glob(filepath.Join(b.store.Dir, "*"))
	if len(files) != want {
		b.t.Errorf("files %q, want %d", files, want)
	}
}

func TestALeaseIsRenewedAtT1(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		if got := b.mustAdd(); got != "10.0.0.5" {
			t.Error(got)
		}
		time.Sleep(61 * time.Minute)
		b.wantEvents("0s DISCOVER", "0s REQUEST 10.0.0.5", "30m0s RENEW 10.0.0.5", "1h0m0s RENEW 10.0.0.5")
		if got := b.mustAdd(); got != "10.0.0.5" {
			t.Error(got)
		}
		b.wantEvents() // a second ADD gets the lease at once
		if a := b.del(all); a.Err() != nil {
			t.Error(a.Err())
		}
		b.wantEvents("1h1m0s RELEASE 10.0.0.5")
		b.wantFiles(0)
		if a := b.check(); a.Code != types.CodeChanged {
			t.Errorf("%+v", a)
		}
	})
}

func TestWithoutAnAnswerALeaseIsReboundAndRunsOut(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		b.net.set(func() { b.net.silent = true })
		b.net.set(func() {})
		time.Sleep(time.Hour - time.Second)
		b.wantEvents(
			"30m0s RENEW 10.0.0.5", "41m20s RENEW 10.0.0.5", "47m0s RENEW 10.0.0.5", "49m50s RENEW 10.0.0.5",
			"51m15s RENEW 10.0.0.5", "52m25s RENEW 10.0.0.5",
			"52m30s REBIND 10.0.0.5", "56m20s REBIND 10.0.0.5", "58m15s REBIND 10.0.0.5", "59m25s REBIND 10.0.0.5")
		if a := b.check(); a.Err() != nil {
			t.Error("before the end:", a.Err())
		}
		time.Sleep(time.Minute)
		b.wantEvents("1h0m0s configure 10.0.0.5 -> none", "1h0m0s DISCOVER",
			"1h0m10s configure 10.0.0.5 -> none", "1h0m10s DISCOVER",
			"1h0m22s configure 10.0.0.5 -> none", "1h0m22s DISCOVER",
			"1h0m36s configure 10.0.0.5 -> none", "1h0m36s DISCOVER",
			"1h0m54s configure 10.0.0.5 -> none", "1h0m54s DISCOVER")
		if a := b.check(); a.Code != types.CodeChanged {
			t.Errorf("after the end: %+v", a)
		}
		b.net.set(func() { b.net.silent, b.net.addr = false, "10.0.0.9" })
		time.Sleep(time.Minute)
		b.wantEvents("1h1m20s configure 10.0.0.5 -> none", "1h1m20s DISCOVER", "1h1m20s REQUEST 10.0.0.9", "1h1m20s configure none -> 10.0.0.9")
		if a := b.check(); a.Err() != nil || a.Lease.Address.String() != "10.0.0.9/24" {
			t.Errorf("%+v", a)
		}
	})
}

func TestALeaseWithoutServerWaitsFiveMinutesAtMost(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		b.net.set(func() { b.net.silent = true })
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		n := 0
		for _, e := range b.net.events {
			if strings.HasSuffix(e, "DISCOVER") {
				n++
			}
		}
		if n < 260 || n > 290 {
			t.Errorf("%d times DISCOVER in a day", n)
		}
	})
}

func TestARefusedLeaseIsReplacedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		time.Sleep(29 * time.Minute)
		b.net.set(func() { b.net.nak = true })
		time.AfterFunc(61*time.Second, func() { b.net.mu.Lock(); defer b.net.mu.Unlock(); b.net.nak, b.net.addr = false, "10.0.0.6" })
		time.Sleep(2 * time.Minute)
		b.wantEvents("30m0s RENEW 10.0.0.5", "30m0s configure 10.0.0.5 -> none", "30m0s DISCOVER", "30m0s REQUEST 10.0.0.5",
			"30m0s configure 10.0.0.5 -> none", "30m0s DISCOVER", "30m0s REQUEST 10.0.0.5",
			"30m2s configure 10.0.0.5 -> none", "30m2s DISCOVER", "30m2s REQUEST 10.0.0.6", "30m2s configure none -> 10.0.0.6")
	})
}

func TestAShortLeaseDoesNotMakeTheDaemonBusy(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.net.set(func() { b.net.lease = 1 })
		b.mustAdd()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(b.net.events); n > 400 {
			t.Errorf("%d events in a minute", n)
		}
	})
}

func TestALeaseSurvivesARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		b.net.set(func() {})
		b.restart(10 * time.Minute)
		b.wantEvents("10m0s REBOOT 10.0.0.5")
		b.net.set(func() { b.net.silent = true })
		b.restart(5 * time.Minute) // without an answer, the lease continues
		time.Sleep(30 * time.Minute)
		b.wantEvents("15m0s REBOOT 10.0.0.5", "40m0s RENEW 10.0.0.5")
		b.net.set(func() { b.net.silent, b.net.nak = false, true })
		b.restart(0)
		b.wantEvents("45m0s REBOOT 10.0.0.5", "45m0s configure 10.0.0.5 -> none", "45m0s DISCOVER", "45m0s REQUEST 10.0.0.5",
			"45m0s configure 10.0.0.5 -> none", "45m0s DISCOVER", "45m0s REQUEST 10.0.0.5")
	})
}

func TestALeaseThatRanOutDuringARestartIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		b.net.set(func() {})
		b.restart(2 * time.Hour)
		time.Sleep(time.Second)
		b.wantEvents("2h0m0s configure 10.0.0.5 -> none", "2h0m0s DISCOVER", "2h0m0s REQUEST 10.0.0.5", "2h0m0s configure none -> 10.0.0.5")
	})
}

func TestAfterABootOrWithoutItsInterfaceALeaseIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		b.net.set(func() {})
		b.net.set(func() { b.net.gone = true })
		b.restart(0)
		b.wantEvents()
		b.wantFiles(0)
		b.net.set(func() { b.net.gone = false })
		r := recordOf(owner)
		r.Boot = "another boot"
		if a := b.add(r, time.Minute); a.Err() != nil {
			t.Fatal(a.Err())
		}
		b.net.set(func() {})
		b.restart(0)
		b.wantEvents()
		b.wantFiles(0)
	})
}

func TestAnotherAddressThatWasRequestedIsRequestedAgainAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r := recordOf(owner)
		l, _ := b.net.answer(t.Context())
		r.State, r.Lease, r.Added = requesting, &l, true // the lease of an ADD is replaced
		restart := func() {
			b.stop()
			if err := b.store.save(r); err != nil {
				t.Fatal(err)
			}
			b.start(b.store.Dir)
		}
		restart()
		b.wantEvents("0s REQUEST 10.0.0.5", "0s configure none -> 10.0.0.5")
		for _, wait := range []time.Duration{0, time.Minute} { // during the REQUEST, and later
			b.net.set(func() { b.net.silent = true })
			restart()
			time.Sleep(wait)
			synctest.Wait()
			b.net.set(func() {})
			b.del(all)
			b.wantEvents(fmt.Sprintf("%s RELEASE 10.0.0.5", wait))
			b.wantFiles(0)
		}
	})
}

func TestTheFileIsWrittenBeforeTheRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.net.set(func() { b.net.silent = true })
		go b.add(recordOf(owner), time.Minute)
		synctest.Wait()
		b.wantFiles(0)
		b.del(all)
		if err := os.RemoveAll(b.store.Dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.store.Dir, nil, 0o600); err != nil { // no file can be written
			t.Fatal(err)
		}
		b.net.set(func() { b.net.silent = false })
		if a := b.add(recordOf(owner), time.Minute); a.Code != types.CodeIO {
			t.Errorf("%+v", a)
		}
		b.wantEvents("0s DISCOVER")
	})
}

func TestWhatIsLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		time.Sleep(31 * time.Minute)
		b.restart(0)
		synctest.Wait()
		b.net.set(func() { b.net.gone = true })
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		want := []string{
			"net1/cid/eth0: 10.0.0.5/24 is leased by 10.0.0.1 for 1h0m0s",
			"net1/cid/eth0: the lease of 10.0.0.5/24 is renewed by 10.0.0.1 for 1h0m0s",
			"leases taken over from the former daemon: 1",
			"net1/cid/eth0: the lease of 10.0.0.5/24 is renewed by 10.0.0.1 for 1h0m0s",
			"net1/cid/eth0: its interface is gone; the server keeps 10.0.0.5/24 until the lease runs out",
		}
		if !slices.Equal(b.logs, want) {
			t.Errorf("logged %q, want %q", b.logs, want)
		}
	})
}

func TestAMarkedLeaseIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		b.net.set(func() {})
		if err := b.store.setMark(owner); err != nil { // the plugin got no answer, but the daemon runs
			t.Error(err)
		}
		time.Sleep(31 * time.Minute)
		b.wantEvents("30m0s RELEASE 10.0.0.5")
		b.wantFiles(0)
	})
}

func TestTwoADDsGetOneLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.net.set(func() { b.net.silent = true })
		answers := make(chan Answer, 3)
		for _, limit := range []time.Duration{5 * time.Second, time.Hour, time.Hour} {
			go func() { answers <- b.add(recordOf(owner), limit) }()
		}
		if a := <-answers; a.Code != types.CodeTryAgain || a.Msg != "no lease from a DHCP server: too late (no answer to DHCPDISCOVER)" {
			t.Errorf("%+v", a)
		}
		b.wantEvents("0s DISCOVER") // continues for the other ADDs
		b.net.set(func() { b.net.silent = false })
		b.stop() // ends the silence, and the other ADDs
		for range 2 {
			if a := <-answers; a.Code != types.CodeTryAgain {
				t.Errorf("%+v", a)
			}
		}
		b.net.set(func() {})
		b.start(b.store.Dir)
		b.net.set(func() { b.net.lease = 10 * time.Hour })
		for range 2 {
			go func() { answers <- b.add(recordOf(owner), time.Hour) }()
		}
		for range 2 {
			if a := <-answers; a.Err() != nil {
				t.Error(a.Err())
			}
		}
		b.wantEvents("5s DISCOVER", "5s REQUEST 10.0.0.5")
	})
}

func TestAnAddressInUseIsDeclined(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r := recordOf(owner)
		r.Probe = true
		b.net.set(func() { b.net.inUse = map[string]bool{"10.0.0.5": true} })
		if a := b.add(r, time.Minute); a.Code != codeInUse || !strings.Contains(a.Msg, "10.0.0.5: another host") {
			t.Errorf("%+v", a)
		}
		b.wantEvents("0s DISCOVER", "0s REQUEST 10.0.0.5", "0s DECLINE 10.0.0.5", "0s DISCOVER", "0s REQUEST 10.0.0.5", "0s DECLINE 10.0.0.5",
			"2s DISCOVER", "2s REQUEST 10.0.0.5", "2s DECLINE 10.0.0.5")
		b.wantFiles(0)
		time.AfterFunc(time.Second, func() { b.net.set(func() { b.net.addr = "10.0.0.6" }) })
		if a := b.add(r, time.Minute); a.Err() != nil || a.Lease.Address.Addr().String() != "10.0.0.6" {
			t.Errorf("%+v", a)
		}
	})
}

func TestAReplacedContainerGetsALeaseOfItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.mustAdd()
		b.net.set(func() {})
		r := recordOf(owner)
		r.Cookie = 7
		if a := b.add(r, time.Minute); a.Err() != nil {
			t.Error(a.Err())
		}
		b.wantEvents("0s DISCOVER", "0s REQUEST 10.0.0.5")
	})
}

func TestNotAllLeasesAskAtOnceAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		const n = 100
		for i := range n {
			if a := b.add(recordOf(attachment("net1", fmt.Sprint("c", i))), time.Minute); a.Err() != nil {
				t.Fatal(a.Err())
			}
		}
		b.net.set(func() { b.net.silent = true })
		b.restart(0)
		synctest.Wait()
		asked := 0
		b.net.set(func() { asked = len(b.net.events) })
		if asked != maxReboots {
			t.Errorf("%d leases ask at once, want %d", asked, maxReboots)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		b.net.set(func() { asked += len(b.net.events) })
		if asked != n {
			t.Errorf("%d leases have asked, want %d", asked, n)
		}
	})
}
