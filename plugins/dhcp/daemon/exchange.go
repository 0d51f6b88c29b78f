package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// An iface is the interface of a container, with the exchanges of dhcp4.Client.
type iface interface {
	Discover(context.Context) (dhcp4.Offer, error)
	Accept(context.Context, dhcp4.Offer) (dhcp4.Lease, error)
	Reboot(context.Context, netip.Addr) (dhcp4.Lease, error)
	Renew(context.Context, dhcp4.Lease) (dhcp4.Lease, error)
	Rebind(context.Context, dhcp4.Lease) (dhcp4.Lease, error)
	Release(context.Context, dhcp4.Lease) error
	Decline(context.Context, dhcp4.Lease) error
	Probe(context.Context, netip.Addr) error

	// configure replaces the address, routes and MTU of one lease with another lease's. nil means no lease.
	configure(from, to *dhcp4.Lease) error
	// restore adds the address and the routes of a lease again if the interface has lost the address, and reports whether it
	// had lost it.
	restore(*dhcp4.Lease) (lost bool, err error)
	close()
}

// An exchange is the work for a lease in one state, with a copy of the lease's record.
type exchange struct {
	record
	offer dhcp4.Offer
}

// An outcome is the result of an exchange. It contains an offer in state selecting, nothing in state releasing, and a
// lease in all other states.
type outcome struct {
	offer    dhcp4.Offer
	lease    dhcp4.Lease
	restored bool  // whether the interface had lost the address
	warning  error // why the interface could not be configured, or nil
	err      error
}

func (x exchange) run(ctx context.Context, open func(record) (iface, error)) (done outcome) {
	i, err := open(x.record)
	if err != nil {
		return outcome{err: err}
	}
	defer i.close()
	from := x.Lease
	if x.Added && (x.State == renewing || x.State == rebinding) { // REQUEST is sent from the address
		done.restored, done.warning = i.restore(x.Lease)
	}
	switch x.State {
	case selecting:
		if x.Added && x.Lease != nil {
			if err := i.configure(x.Lease, nil); err != nil {
				return outcome{err: err}
			}
		}
		done.offer, done.err = i.Discover(ctx)
		return done
	case releasing:
		return outcome{err: i.Release(ctx, *x.Lease)}
	case requesting:
		from = nil
		done.lease, done.err = x.accept(ctx, i)
	case renewing:
		done.lease, done.err = i.Renew(ctx, *x.Lease)
	case rebinding:
		done.lease, done.err = i.Rebind(ctx, *x.Lease)
	default:
		done.lease, done.err = i.Reboot(ctx, x.Lease.Address.Addr())
	}
	if done.err == nil {
		done.warning = errors.Join(done.warning, i.configure(from, &done.lease))
	}
	return done
}

// accept requests the offered address, and probes it.
func (x exchange) accept(ctx context.Context, i iface) (dhcp4.Lease, error) {
	l, err := i.Accept(ctx, x.offer)
	if err != nil || !x.Probe {
		return l, err
	}
	err = i.Probe(ctx, l.Address.Addr())
	if errors.Is(err, dhcp4.ErrInUse) {
		err = errors.Join(fmt.Errorf("%s: %w", l.Address.Addr(), err), i.Decline(ctx, l))
	}
	return l, err
}
