package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	bus "github.com/plumb-cni/plumb/v2/plugins/firewall/internal/firewalld"
)

// firewalld does not record who added a source to a zone, and forgets the source when it reloads or
// restarts. Therefore table inet plumb lists the sources with their zones. A value consists of two parts,
// because the only nftables type for text, ifname, holds 15 bytes, and the name of a zone can be longer:
//
//	map source4 { 10.88.0.2 comment "net1/cid1/eth0" : "trusted" . "" }
const (
	maxIfName = 15            // largest length of an ifname, in bytes
	maxZone   = 2 * maxIfName // largest length of a zone name, in bytes
)

// sources returns the attachment's addresses as sources of the configured zone.
func (f *firewall) sources() (all []nft.SetElement) {
	name := f.conf.zone
	n := min(len(name), maxIfName)
	for _, a := range f.addrs {
		all = append(all, nft.SetElement{Set: tables.Source(nft.FamilyOf(a)), Element: nft.Element{
			Key: nft.AddrKey(a), Data: nft.Concat(nft.IfNameKey(name[:n]), nft.IfNameKey(name[n:])),
		}})
	}
	return all
}

// zone returns the zone of a source.
func zone(source nft.SetElement) string { return strings.ReplaceAll(string(source.Data), "\x00", "") }

// prefix returns the prefix that contains only the address of a source.
func prefix(source nft.SetElement) netip.Prefix { return host(source.Key.Addr()) }

// sourceStore returns the store of the attachment's sources in table inet plumb.
func (f *firewall) sourceStore() *claims.Store {
	s := &claims.Store{
		Conn:        f.c,
		Layout:      isolationLayout(),
		Groups:      []claims.Group{{tables.Source(nft.IPv4)}, {tables.Source(nft.IPv6)}},
		Owner:       f.r.Attachment(),
		Description: "sources of " + f.r.Attachment().String(),
		OnlyFree:    f.r.IsRepair(),
	}
	for _, source := range f.sources() {
		s.Claims = append(s.Claims, claims.Claim{Description: "source " + source.Key.Addr().String(), Elements: []nft.SetElement{source}})
	}
	return s
}

// addSources adds the addresses to the zone as sources. done is false if the configuration does not
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
	if f.c == nil || f.r.IsRepair() {
		return false, nil
	}
	return false, f.sourceStore().Remove()
}

// isOptional reports whether err means that the plugin cannot use firewalld, and the configuration does
// not require it.
func (f *firewall) isOptional(err error) bool {
	return f.conf.backend != firewalld && (errors.Is(err, bus.ErrNotRunning) || errors.Is(err, bus.ErrNotAuthorized))
}

// addSourcesTo records the sources in table inet plumb, and adds them to firewalld.
func (f *firewall) addSourcesTo(z *bus.Conn) error {
	if f.c != nil {
		if err := f.sourceStore().Add(&f.r.Undo); err != nil {
			return err
		}
	}
	if f.c != nil && f.r.IsRepair() {
		return f.restoreSources(z, f.isOwner)
	}
	for _, s := range f.sources() {
		added, err := z.AddSource(zone(s), prefix(s))
		if added {
			f.r.Undo.Push("remove source "+prefix(s).String(), func() error { return f.removeSources([]nft.SetElement{s}, f.isOwner) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeSources removes the sources from their zones. It keeps a source if table inet plumb lists it with
// the same zone for an owner, or a former owner, for which match returns false. It returns nil if
// firewalld does not run, because firewalld forgets its sources when it ends.
func (f *firewall) removeSources(sources []nft.SetElement, match func(owner string) bool) error {
	if len(sources) == 0 {
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
	listed := make([]nft.Element, 2*len(sources))
	if f.c != nil {
		var refs []nft.ElementRef
		for _, s := range sources {
			refs = append(refs, s.Ref(), claims.FormerRef(s.Ref()))
		}
		if listed, err = f.c.Lookup(isolationLayout().Table, refs); err != nil {
			return err
		}
	}
	var errs []error
	for i, s := range sources {
		if !slices.ContainsFunc(listed[2*i:2*i+2], func(e nft.Element) bool { return e.Data == s.Data && !match(e.Comment) }) {
			errs = append(errs, z.RemoveSource(zone(s), prefix(s)))
		}
	}
	return errors.Join(errs...)
}

// isOwner reports whether the comment of an element names the attachment.
func (f *firewall) isOwner(comment string) bool { return comment == nft.Owner(f.r.Attachment()) }

// checkSources returns an error that lists the sources that firewalld lacks. done is as in addSources.
func (f *firewall) checkSources() (done bool, err error) {
	z, err := bus.Open(f.r.HostNS)
	if err == nil {
		defer func() { _ = z.Close() }()
		for _, s := range f.sources() {
			found, findErr := z.HasSource(zone(s), prefix(s))
			if findErr == nil && !found {
				findErr = fmt.Errorf("firewalld zone %s lacks the source %s", zone(s), prefix(s))
			}
			err = errors.Join(err, findErr)
		}
		if f.c != nil && f.r.IsRepair() { // CHECK accepts the sources of the reference plugin, which lists them nowhere
			err = errors.Join(err, f.sourceStore().Check())
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
	err = f.removeSources(append(deleted, f.sourcesInPrev()...), f.isOwner)
	if len(deleted) == 0 && errors.Is(err, bus.ErrNotAuthorized) { // firewalld refused ADD as well
		return nil
	}
	return err
}

// sourcesInPrev returns the sources that the reference plugin may have added for prevResult.
func (f *firewall) sourcesInPrev() []nft.SetElement {
	if f.conf.backend == "" || f.conf.backend == firewalld {
		return f.sources()
	}
	return nil
}

// restore implements the plugin's command "restore", which adds the sources in table inet plumb to their
// firewalld zones again.
func restore(r *skel.Request, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: restore takes no arguments", args[0])
	}
	f := &firewall{r: r}
	if err := f.connect(); err != nil || f.c == nil {
		return err
	}
	return f.restoreSources(nil, func(string) bool { return true })
}

// restoreSources adds the sources in table inet plumb whose owners match to their zones again. If z is nil, it
// connects to firewalld only if there are such sources.
func (f *firewall) restoreSources(z *bus.Conn, match func(owner string) bool) error {
	all, err := f.elementsIn(tables.Source(nft.IPv4), tables.Source(nft.IPv6))
	errs := []error{err}
	for _, s := range all {
		if !match(s.Comment) {
			continue
		}
		if z == nil {
			if z, err = bus.Open(f.r.HostNS); err != nil {
				return err
			}
			defer func() { _ = z.Close() }()
		}
		_, err := z.AddSource(zone(s), prefix(s))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
