package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	bus "github.com/plumb-cni/plumb/plugins/firewall/internal/firewalld"
)

// A zone of firewalld does not say who added a source, and firewalld forgets the source when it
// reloads or restarts. So the sources of each attachment are listed in table inet plumb, with their
// zones and under the keys of their owner. The name of a zone takes two parts of the value, because
// ifname, the only type of nftables for text, has 15 bytes, and the name can have 17:
//
//	map source4 { "5dd9d1c2b7989a8" comment "net1/cid1/eth0" : "trusted" . "" . 10.88.0.2 }
func sourceList(f nft.Family) nft.Set {
	s := nft.Set{Name: "source4", Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.IfName, nft.IfName, nft.IPv4Addr}}
	if f == nft.IPv6 {
		s.Name, s.Data[2] = "source6", nft.IPv6Addr
	}
	return s
}

const (
	maxIfName = 15            // bytes of text in an ifname
	maxZone   = 2 * maxIfName // bytes of the name of a zone in a list
)

// A source is an address in a zone.
type source struct {
	zone string
	addr netip.Addr
}

func (s source) prefix() netip.Prefix { return netip.PrefixFrom(s.addr, s.addr.BitLen()) }

// value returns the value of the source in the list.
func (s source) value() nft.Key {
	n := min(len(s.zone), maxIfName)
	return nft.Concat(nft.IfNameKey(s.zone[:n]), nft.IfNameKey(s.zone[n:]), nft.AddrKey(s.addr))
}

// parseSource returns the source of a value in the list.
func parseSource(value nft.Key) source {
	const size = maxIfName + 1 // of an ifname
	if len(value) < 2*size {
		return source{}
	}
	return source{zone: strings.ReplaceAll(string(value[:2*size]), "\x00", ""), addr: value[2*size:].Addr()}
}

// sources returns the attachment's addresses as sources of the configured zone.
func (f *firewall) sources() (all []source) {
	for _, a := range f.addrs {
		all = append(all, source{f.conf.zone, a})
	}
	return all
}

// addSources makes the addresses sources of the zone. It reports false if firewalld does not run
// or does not authorize the plugin, and the configuration does not require it.
func (f *firewall) addSources() (done bool, err error) {
	z, err := bus.Open(f.r.Node)
	if err == nil {
		defer func() { _ = z.Close() }()
		err = f.addSourcesTo(z)
	}
	if f.isOptional(err) {
		return false, f.unlistSources()
	}
	return err == nil, err
}

// isOptional reports whether the error says that firewalld cannot be used, and the configuration does
// not require it.
func (f *firewall) isOptional(err error) bool {
	return f.conf.backend != firewalld && (errors.Is(err, bus.ErrNotRunning) || errors.Is(err, bus.ErrNotAuthorized))
}

// addSourcesTo lists the sources and adds them to firewalld.
func (f *firewall) addSourcesTo(z *bus.Conn) error {
	if err := f.listSources(); err != nil {
		return err
	}
	for _, s := range f.sources() {
		added, err := z.AddSource(s.zone, s.prefix())
		if added {
			f.r.Undo.Push("remove source "+s.prefix().String(), func() error { return f.removeSources(s) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeSources removes the sources from their zones. That firewalld does not run is no error: its
// sources ended with it.
func (f *firewall) removeSources(sources ...source) error {
	if len(sources) == 0 {
		return nil
	}
	z, err := bus.Open(f.r.Node)
	if errors.Is(err, bus.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = z.Close() }()
	var errs []error
	for _, s := range sources {
		errs = append(errs, z.RemoveSource(s.zone, s.prefix()))
	}
	return errors.Join(errs...)
}

// checkSources reports whether firewalld has to have the sources, and names those that it lacks.
func (f *firewall) checkSources() (done bool, err error) {
	z, err := bus.Open(f.r.Node)
	if err == nil {
		defer func() { _ = z.Close() }()
		for _, s := range f.sources() {
			has, herr := z.HasSource(s.zone, s.prefix())
			if herr == nil && !has {
				herr = fmt.Errorf("%s is no source of the zone %s of firewalld", s.prefix(), s.zone)
			}
			err = errors.Join(err, herr)
		}
	}
	if f.isOptional(err) {
		return false, nil
	}
	return true, err
}

// listSources writes the list of the attachment's sources, which DEL and GC read.
func (f *firewall) listSources() error {
	if f.c == nil {
		return nil
	}
	owner, key := f.r.Attachment(), nft.OwnerKeys(f.r.Attachment())
	f.r.Undo.Push("delete list of sources of "+owner.String(), f.unlistSources)
	return f.c.Atomically("nft list sources of "+owner.String(), func(tx *nft.Tx) error {
		if err := f.c.Ensure(isolationLayout()); err != nil {
			return err
		}
		if _, err := f.deleteList(tx); err != nil {
			return err
		}
		count := map[nft.Family]int{}
		for _, s := range f.sources() {
			fam := nft.FamilyOf(s.addr)
			tx.AddElement(isolationLayout().Table, sourceList(fam).Name,
				nft.Element{Key: key(count[fam]), Data: s.value(), Comment: nft.Owner(owner)})
			count[fam]++
		}
		return nil
	})
}

// deleteList puts the deletion of the attachment's list into tx. It returns the listed sources.
func (f *firewall) deleteList(tx *nft.Tx) (listed []source, err error) {
	table, key := isolationLayout().Table, nft.OwnerKeys(f.r.Attachment())
	for _, fam := range nft.Families() {
		set := sourceList(fam).Name
		for n, more := 0, true; more; n++ {
			found, err := f.c.Lookup(table, []nft.ElementRef{{Set: set, Key: key(n)}})
			if err != nil {
				return nil, err
			}
			if more = found[0].Comment == nft.Owner(f.r.Attachment()); more {
				tx.DelElement(table, set, found[0].Key)
				listed = append(listed, parseSource(found[0].Data))
			}
		}
	}
	return listed, nil
}

// unlistSources deletes the list of the attachment's sources.
func (f *firewall) unlistSources() error {
	if f.c == nil {
		return nil
	}
	return f.c.Atomically("nft delete list of sources of "+f.r.Attachment().String(), func(tx *nft.Tx) error {
		_, err := f.deleteList(tx)
		return err
	})
}

// delSources removes the sources of the attachment: those that are listed, and those of
// prevResult, which the reference plugin may have added.
func (f *firewall) delSources() error {
	var inPrev []source
	if f.conf.backend == "" || f.conf.backend == firewalld {
		inPrev = f.sources()
	}
	if f.c == nil {
		return f.removeSources(inPrev...)
	}
	return f.c.Atomically("nft delete list of sources of "+f.r.Attachment().String(), func(tx *nft.Tx) error {
		listed, err := f.deleteList(tx)
		if err != nil {
			return err
		}
		err = f.removeSources(append(listed, inPrev...)...)
		if len(listed) == 0 && errors.Is(err, bus.ErrNotAuthorized) { // so ADD was refused too
			return nil
		}
		return err
	})
}

// gcSources removes the sources of the network's attachments that are not in keep.
func (f *firewall) gcSources(keep types.Set) error {
	if f.c == nil {
		return nil
	}
	kept := map[string]bool{}
	for a := range keep {
		kept[nft.Owner(a)] = true
	}
	return f.c.Atomically("nft delete stale lists of sources of network "+f.r.Conf.Name, func(tx *nft.Tx) error {
		var stale []source
		for _, fam := range nft.Families() {
			set := sourceList(fam).Name
			all, err := f.elementsIn(set)
			if err != nil {
				return err
			}
			for _, e := range all {
				if strings.HasPrefix(e.Comment, nft.NetworkPrefix(f.r.Conf.Name)) && !kept[e.Comment] {
					tx.DelElement(isolationLayout().Table, set, e.Key)
					stale = append(stale, parseSource(e.Data))
				}
			}
		}
		return f.removeSources(stale...)
	})
}

// restore adds the listed sources of all attachments to their zones again.
func restore(r *skel.Request, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: restore takes none", args[0])
	}
	f := &firewall{r: r}
	if err := f.connect(); err != nil || f.c == nil {
		return err
	}
	var sources []source
	for _, fam := range nft.Families() {
		all, err := f.elementsIn(sourceList(fam).Name)
		if err != nil {
			return err
		}
		for _, e := range all {
			sources = append(sources, parseSource(e.Data))
		}
	}
	if len(sources) == 0 {
		return nil
	}
	z, err := bus.Open(r.Node)
	if err != nil {
		return err
	}
	defer func() { _ = z.Close() }()
	var errs []error
	for _, s := range sources {
		_, err := z.AddSource(s.zone, s.prefix())
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
