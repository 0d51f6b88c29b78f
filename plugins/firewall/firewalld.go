package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	bus "github.com/plumb-cni/plumb/pkg/firewalld"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A zone of firewalld does not say who added a source. So the sources of each attachment are
// listed in table inet plumb, under the keys of their owner:
//
//	map zonesource4 { "5dd9d1c2b7989a8" comment "net1/cid1/eth0" : 10.88.0.2 }
func sourceList(f nft.Family) nft.Set {
	if f == nft.IPv6 {
		return nft.Set{Name: "zonesource6", Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.IPv6Addr}}
	}
	return nft.Set{Name: "zonesource4", Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.IPv4Addr}}
}

// addSources makes the addresses sources of the zone. It reports false if firewalld does not run
// or does not let us, and the configuration does not insist on it.
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
// not insist on it.
func (f *firewall) isOptional(err error) bool {
	return f.conf.backend != firewalld && (errors.Is(err, bus.ErrNotRunning) || errors.Is(err, bus.ErrNotAuthorized))
}

func (f *firewall) addSourcesTo(z *bus.Conn) error {
	if err := f.listSources(); err != nil {
		return err
	}
	for _, a := range f.addrs {
		p := netip.PrefixFrom(a, a.BitLen())
		added, err := z.AddSource(f.conf.zone, p)
		if added {
			f.r.Undo.Push("remove source "+p.String(), func() error { return f.removeSources([]netip.Addr{a}) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeSources removes the addresses from the zone. That firewalld does not run is no error: its
// sources ended with it.
func (f *firewall) removeSources(addrs []netip.Addr) error {
	if len(addrs) == 0 {
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
	for _, a := range addrs {
		errs = append(errs, z.RemoveSource(f.conf.zone, netip.PrefixFrom(a, a.BitLen())))
	}
	return errors.Join(errs...)
}

// checkSources reports whether firewalld has to have the sources, and names those that it lacks.
func (f *firewall) checkSources() (done bool, err error) {
	z, err := bus.Open(f.r.Node)
	if err == nil {
		defer func() { _ = z.Close() }()
		for _, a := range f.addrs {
			p := netip.PrefixFrom(a, a.BitLen())
			has, herr := z.HasSource(f.conf.zone, p)
			if herr == nil && !has {
				herr = fmt.Errorf("%s is no source of the zone %s of firewalld", p, f.conf.zone)
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
		for _, a := range f.addrs {
			fam := nft.FamilyOf(a)
			tx.AddElement(isolationLayout().Table, sourceList(fam).Name,
				nft.Element{Key: key(count[fam]), Data: nft.AddrKey(a), Comment: nft.Owner(owner)})
			count[fam]++
		}
		return nil
	})
}

// deleteList puts the deletion of the attachment's list into tx. It returns the listed sources.
func (f *firewall) deleteList(tx *nft.Tx) (addrs []netip.Addr, err error) {
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
				addrs = append(addrs, found[0].Data.Addr())
			}
		}
	}
	return addrs, nil
}

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
	addrs := f.addrs
	if f.conf.backend != "" && f.conf.backend != firewalld {
		addrs = nil
	}
	if f.c == nil {
		return f.removeSources(addrs)
	}
	return f.c.Atomically("nft delete list of sources of "+f.r.Attachment().String(), func(tx *nft.Tx) error {
		listed, err := f.deleteList(tx)
		if err != nil {
			return err
		}
		err = f.removeSources(append(listed, addrs...))
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
		var addrs []netip.Addr
		for _, fam := range nft.Families() {
			set := sourceList(fam).Name
			all, err := f.c.Elements(isolationLayout().Table, set)
			if err = types.IgnoreNotExist(err); err != nil {
				return err
			}
			for _, e := range all {
				if strings.HasPrefix(e.Comment, nft.NetworkPrefix(f.r.Conf.Name)) && !kept[e.Comment] {
					tx.DelElement(isolationLayout().Table, set, e.Key)
					addrs = append(addrs, e.Data.Addr())
				}
			}
		}
		return f.removeSources(addrs)
	})
}
