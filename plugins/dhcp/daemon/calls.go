package daemon

import (
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// add answers with the lease of an interface, and requests a lease if there is none.
func (m *machine) add(r record, c *call) {
	l := m.leases[r.Attachment]
	if l != nil && !l.sameLink(r) {
		m.forget(l, "its container is replaced")
		l = nil
	}
	switch {
	case m.ctx.Err() != nil: // submit answers the call
	case l == nil:
		l = &lease{record: r, adds: []*call{c}}
		m.leases[r.Attachment] = l
		m.begin(l, selecting)
	case l.State == releasing, m.store.isMarked(r.Attachment):
		m.release(l)
		c.answer <- failure(types.Errorf(types.CodeTryAgain, "the former lease of %s is being released; try again", r.Attachment))
	case l.State.hasAddress():
		c.answer <- Answer{Lease: l.Lease}
	default:
		l.adds = append(l.adds, c)
		if l.State == selecting && l.cancel == nil {
			m.begin(l, selecting)
		} else if l.State == selecting {
			l.due = never // the ADD has its own limit
		}
	}
}

// check answers with the lease of an attachment, and sends nothing.
func (m *machine) check(o types.Attachment, c *call) {
	l := m.leases[o]
	if l == nil || !l.State.hasAddress() {
		c.answer <- failure(types.Errorf(types.CodeChanged, "%s has no lease", o))
		return
	}
	c.answer <- Answer{Lease: l.Lease}
}

// del releases the matching leases, and answers when the machine has forgotten them.
func (m *machine) del(match func(types.Attachment) bool, c *call) {
	c.left = 1
	for _, l := range m.leases {
		if match(l.Attachment) {
			c.left++
			l.dels = append(l.dels, c)
			m.release(l)
		}
	}
	c.done()
}

// awaitForgotten answers when the machine has no lease of the attachment. It answers with an error if there is a lease
// that is not being released.
func (m *machine) awaitForgotten(o types.Attachment, c *call) {
	switch l := m.leases[o]; {
	case l == nil:
		c.answer <- Answer{}
	case l.State == releasing:
		c.left = 1
		l.dels = append(l.dels, c)
	default:
		c.answer <- failure(types.Errorf(types.CodeTryAgain, "%s has a lease", o))
	}
}

// abandon answers a call whose caller does not wait any longer. It releases the lease of an ADD unless another ADD
// waits for it.
func (m *machine) abandon(c *call, cause error) {
	for _, l := range m.leases {
		i := slices.Index(l.adds, c)
		if i < 0 {
			continue
		}
		l.adds = slices.Delete(l.adds, i, i+1)
		c.answer <- failure(types.Errorf(types.CodeTryAgain, "no lease from a DHCP server: %w%s", cause, l.progress()))
		if len(l.adds) == 0 && !l.Added {
			m.release(l)
		} else if l.due == never {
			l.due = m.limit(l, l.State)
		}
		return
	}
	select {
	case c.answer <- failure(types.Errorf(types.CodeTryAgain, "the lease is still being released: %w", cause)):
	default: // it has an answer
	}
}

// progress describes, in brackets, what the lease is waiting for.
func (l *lease) progress() string {
	switch {
	case l.lastErr != nil:
		return fmt.Sprintf(" (%v)", l.lastErr)
	case l.State == requesting:
		return " (no answer to DHCPREQUEST)"
	}
	return " (no answer to DHCPDISCOVER)"
}
