package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
)

// ownedPath returns the path of the file.
func (n *network) ownedPath() string { return n.PrivatePath("owned") }

// read returns the state. If there is none for this boot and scope, or if a power failure has damaged the file, valid is
// false and the state contains no addresses.
func (n *network) read(se *pool.Session) (st *owned.State, valid bool, err error) {
	if se.Boot() == "" {
		return nil, false, types.Errorf(types.CodeIO, "the ID of the running boot cannot be read, and therefore %s may be outdated; mount /proc", n.ownedPath())
	}
	text, err := statefile.Read(n.ownedPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, statefile.ErrUnreadable) {
		return nil, false, types.Coded(types.CodeIO, err)
	}
	st, ok := owned.Parse(string(text))
	if !ok || st.Scope != n.scope {
		st = &owned.State{}
	}
	if valid = st.Boot == se.Boot(); valid {
		return st, true, nil
	}
	fresh := owned.New(se.Boot(), n.scope, st.LastRevision)
	fresh.Store, fresh.Second, fresh.Calls = st.Store, st.Second, st.Calls
	return fresh, false, nil
}

func (n *network) write(st *owned.State) error {
	path := n.ownedPath()
	file := statefile.File{
		Dir: filepath.Dir(path), Name: filepath.Base(path), Owner: types.Attachment{Network: filepath.Base(path)}, Trace: n.request.Trace,
	}
	return file.Write([]byte(st.Text()))
}

// choose returns the owned addresses that this ADD may allocate. It leaves out the addresses of onRequestOnly that the ADD
// does not request, and all addresses if a second machine allocates them as well. The caller holds the pool's lock.
func (n *network) choose(se *pool.Session) (pool.Choice, error) {
	st, _, err := n.read(se)
	if err != nil {
		return pool.Choice{}, err
	}
	var addresses []netip.Addr
	for ip := range st.Claims {
		if !st.Second && (!n.isOnRequestOnly(ip) || slices.Contains(n.Requested, ip)) {
			addresses = append(addresses, ip)
		}
	}
	return pool.OnlyAddresses(addresses), nil
}

// checkOwned returns an error if the node does not own an address that is reserved for the attachment, because another
// node may allocate that address. While the node does not know what it owns, checkOwned returns nil.
func (n *network) checkOwned(r *skel.Request) error {
	var errs []error
	err := n.Lock(func(se *pool.Session) error {
		held, err := se.Held(r)
		if err != nil || len(held) == 0 {
			return err
		}
		st, valid, err := n.read(se)
		if err != nil || !valid || st.Unsettled {
			return err
		}
		for _, ip := range held {
			if st.Claims[ip] == "" {
				errs = append(errs, fmt.Errorf("address %s of %s does not belong to node %s in segment %s: another node may use it; delete the container",
					ip, r.Attachment(), n.node, n.segment))
			}
		}
		return nil
	})
	return errors.Join(types.IgnoreNotExist(err), types.Coded(types.CodeChanged, types.WithRepair(types.RepairNever, errors.Join(errs...))))
}
