package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/claims"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/tables"
	bus "github.com/plumb-cni/plumb/plugins/firewall/internal/firewalld"
)

// firewalld does not record who added a source to a zone, and forgets the source when it reloads or
// restarts. Therefore table inet plumb lists the sources with their zones. A value consists of two parts,
// because the only nftables type for text, ifname, holds 15 bytes, and the name of a zone can be longer:
//
//	map source4 { 10.88.0.2 comment "net1/cid1/eth0" : "trusted" . "" }
const (
	maxIfName = 15            // the most bytes of text in an ifname
	maxZone   = 2 * maxIfName // the most bytes of the name of a zone in a value
)

// A source is an address in a zone.
type source struct {
	zone string
	addr netip.Addr
}

func (s source) String() string { return "source " + s.addr.String() }

// element returns the element of the source in the list.
func (s source) element() nft.SetElement {
	n := min(len(s.zone), maxIfName)
	return nft.SetElement{Set: tables.Source(nft.FamilyOf(s.addr)), Element: nft.Element{
		Key: nft.AddrKey(s.addr), Data: nft.Concat(nft.IfNameKey(s.zone[:n]), nft.IfNameKey(s.zone[n:])),
	}}
}

// parseSource returns the source of an element in the list.
func parseSource(e nft.Element) source {
	return source{zone: strings.ReplaceAll(string(e.Data), "\x00", ""), addr: e.Key.Addr()}
}

// parseSources returns the sources of deleted elements.
func parseSources(deleted []nft.SetElement) (all []source) {
	for _, e := range deleted {
		all = append(all, parseSource(e.Element))
	}
	return all
}

// sourceStore returns the store of the attachment's list.
func (f *firewall) sourceStore() *claims.Store {
	s := &claims.Store{
		Conn:        f.c,
		Layout:      isolationLayout(),
		Groups:      []claims.Group{{tables.Source(nft.IPv4)}, {tables.Source(nft.IPv6)}},
		Owner:       f.r.Attachment(),
		Description: "sources of " + f.r.Attachment().String(),
	}
	for _, src := range f.sources() {
		s.Claims = append(s.Claims, claims.Claim{Description: src.String(), Elements: []nft.SetElement{src.element()}})
	}
	return s
}

// sources returns the attachment's addresses as sources of the configured zone.
func (f *firewall) sources() (all []source) {
	for _, a := range f.addrs {
		all = append(all, source{f.conf.zone, a})
	}
	return all
}

// addSources adds the addresses to the zone as sources. It returns false if the configuration does not
// require firewalld, and firewalld does not run or does not authorize the plugin.
func (f *firewall) addSources() (done bool, err error) {
	z, err := bus.Open(f.r.HostNS)
	if err == nil {
		defer func() { _ = z.Close() }()
		err = f.addSourcesTo(z)
	}
	if !f.isOptional(err) {
		return err == nil, err
	}
	if f.c == nil {
		return false, nil
	}
	return false, f.sourceStore().Remove()
}

// isOptional reports whether the configuration does not require firewalld, and the error means that the
// plugin cannot use it.
func (f *firewall) isOptional(err error) bool {
	return f.conf.backend != firewalld && (errors.Is(err, bus.ErrNotRunning) || errors.Is(err, bus.ErrNotAuthorized))
}

// addSourcesTo lists the sources and adds them to firewalld.
func (f *firewall) addSourcesTo(z *bus.Conn) error {
	if f.c != nil {
		if err := f.sourceStore().Add(&f.r.Undo); err != nil {
			return err
		}
	}
	for _, s := range f.sources() {
		added, err := z.AddSource(s.zone, host(s.addr))
		if added {
			f.r.Undo.Push("remove source "+host(s.addr).String(), func() error { return f.removeSources(nil, s) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeSources removes from their zones the sources of the deleted elements, and the other sources that
// the list does not contain for another attachment. It is not an error if firewalld does not run,
// because firewalld forgets its sources when it ends.
func (f *firewall) removeSources(deleted []nft.SetElement, others ...source) error {
	if len(deleted)+len(others) == 0 {
		return nil
	}
	z, err := bus.Open(f.r.HostNS)
	if errors.Is(err, bus.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = z.Close() }()
	others, err = f.withoutOtherOwners(others)
	errs := []error{err}
	for _, s := range append(parseSources(deleted), others...) {
		errs = append(errs, z.RemoveSource(s.zone, host(s.addr)))
	}
	return errors.Join(errs...)
}

// withoutOtherOwners returns the sources whose addresses the list does not contain for another
// attachment.
func (f *firewall) withoutOtherOwners(sources []source) ([]source, error) {
	if f.c == nil {
		return sources, nil
	}
	var refs []nft.ElementRef
	for _, s := range sources {
		refs = append(refs, s.element().Ref())
	}
	listed, err := f.c.Lookup(isolationLayout().Table, refs)
	if err != nil {
		return nil, err
	}
	var own []source
	for i, e := range listed {
		if e.Key == "" || e.Comment == nft.Owner(f.r.Attachment()) {
			own = append(own, sources[i])
		}
	}
	return own, nil
}

// checkSources returns an error that lists the sources that firewalld lacks. done is false if the plugin
// cannot use firewalld, and the configuration does not require it.
func (f *firewall) checkSources() (done bool, err error) {
	z, err := bus.Open(f.r.HostNS)
	if err == nil {
		defer func() { _ = z.Close() }()
		for _, s := range f.sources() {
			found, findErr := z.HasSource(s.zone, host(s.addr))
			if findErr == nil && !found {
				findErr = fmt.Errorf("firewalld zone %s lacks the source %s", s.zone, host(s.addr))
			}
			err = errors.Join(err, findErr)
		}
	}
	if f.isOptional(err) {
		return false, nil
	}
	return true, err
}

// delSources adds the deletion of the attachment's elements to tx, and removes its sources, including
// the sources in prevResult, which the reference plugin may have added.
func (f *firewall) delSources(tx *nft.Tx) error {
	deleted, err := f.sourceStore().Delete(tx)
	if err != nil {
		return err
	}
	err = f.removeSources(deleted, f.sourcesInPrev()...)
	if len(deleted) == 0 && errors.Is(err, bus.ErrNotAuthorized) { // firewalld refused ADD as well
		return nil
	}
	return err
}

// sourcesInPrev returns the sources that the reference plugin may have added for prevResult.
func (f *firewall) sourcesInPrev() []source {
	if f.conf.backend == "" || f.conf.backend == firewalld {
		return f.sources()
	}
	return nil
}

// restore adds all listed sources to their zones again. It is the command "restore" of the plugin.
func restore(r *skel.Request, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: restore takes no arguments", args[0])
	}
	f := &firewall{r: r}
	if err := f.connect(); err != nil || f.c == nil {
		return err
	}
	all, err := f.elementsIn(tables.Source(nft.IPv4), tables.Source(nft.IPv6))
	if err != nil || len(all) == 0 {
		return err
	}
	z, err := bus.Open(r.HostNS)
	if err != nil {
		return err
	}
	defer func() { _ = z.Close() }()
	var errs []error
	for _, s := range parseSources(all) {
		_, err := z.AddSource(s.zone, host(s.addr))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
