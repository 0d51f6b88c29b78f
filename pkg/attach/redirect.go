package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// AddQdisc adds a qdisc and pushes its removal to u. If the parent already has a qdisc, the error names the kind of that
// qdisc and contains advice.
func AddQdisc(c *nl.Conn, u *undo.Stack, l nl.Link, q nl.Qdisc) error {
	err := c.AddQdisc(u, l, q)
	if errors.Is(err, fs.ErrExist) {
		other, _ := c.Qdisc(l, q.Parent) // err explains enough without the kind
		return types.Errorf(types.CodeConfig, "interface %s already has a qdisc (%s): an earlier ADD was not followed by a DEL, or another program created the qdisc: %w; delete the qdisc", l.Name, other.Kind, err)
	}
	return err
}

// AddRedirect redirects each packet that a link receives to the link to, which sends it. It adds an ingress qdisc, and
// pushes the removal of the qdisc to u.
func AddRedirect(c *nl.Conn, u *undo.Stack, from, to nl.Link) error {
	if err := AddQdisc(c, u, from, ingressQdisc()); err != nil {
		return err
	}
	return c.AddFilter(from, redirectFilter(to.Index))
}

// RestoreRedirect adds the qdisc and the filter of AddRedirect if they are missing, for REPAIR. It keeps filters of other programs.
func RestoreRedirect(c *nl.Conn, u *undo.Stack, from, to nl.Link) error {
	_, err := ingressFilters(c, from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return AddRedirect(c, u, from, to)
	case err != nil || DiffRedirect(c, from, to) == nil:
		return err
	}
	return c.AddFilter(from, redirectFilter(to.Index))
}

// DiffRedirect returns an error if a link does not redirect each packet that it receives to the link to.
func DiffRedirect(c *nl.Conn, from, to nl.Link) error {
	filters, err := ingressFilters(c, from)
	redirects := func(f nl.Filter) bool {
		return f.Redirect == to.Index && f.Protocol == syscall.ETH_P_ALL && len(f.Keys) == 0
	}
	if err == nil && !slices.ContainsFunc(filters, redirects) {
		err = fmt.Errorf("interface %s has no filter that redirects what it receives to %s", from.Name, to.Name)
	}
	return err
}

// DeleteRedirect deletes the ingress qdisc of a link, unless a filter is attached to it that isOwn does not accept.
func DeleteRedirect(c *nl.Conn, from nl.Link, isOwn func(nl.Filter) bool) error {
	filters, err := ingressFilters(c, from)
	if err != nil || slices.ContainsFunc(filters, func(f nl.Filter) bool { return !isOwn(f) }) {
		return types.IgnoreNotExist(err)
	}
	return c.DeleteQdisc(from, ingressQdisc())
}

// ingressFilters returns the filters that are attached to ingressQdisc. If the link does not have this qdisc, the error
// matches fs.ErrNotExist.
func ingressFilters(c *nl.Conn, l nl.Link) ([]nl.Filter, error) {
	q, err := c.Qdisc(l, nl.Ingress)
	if err == nil && q != ingressQdisc() {
		err = types.NotExist("interface " + l.Name + " has no ingress qdisc")
	}
	if err != nil {
		return nil, err
	}
	return c.Filters(l, q.Handle)
}

// IsRedirect reports whether the filter equals one that AddRedirect adds.
func IsRedirect(f nl.Filter) bool { return f.Same(redirectFilter(f.Redirect)) }

// ingressQdisc returns the qdisc to which redirectFilter is attached.
func ingressQdisc() nl.Qdisc {
	return nl.Qdisc{Kind: "ingress", Handle: nl.IngressHandle, Parent: nl.Ingress}
}

// redirectFilter returns the filter that redirects each packet to the link with the index. Its priority and class are the
// same as in the reference plugin bandwidth.
func redirectFilter(index int) nl.Filter {
	return nl.Filter{Parent: nl.IngressHandle, Priority: 1, Protocol: syscall.ETH_P_ALL, Class: 0x10001, Redirect: index}
}
