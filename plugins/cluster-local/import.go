package main

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/datastore"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// importAddresses reserves the addresses in the key "import" of the configuration, which another IPAM plugin has assigned to
// containers of this node, and claims them. Before it claims them, a killed import leaves reservations, which the next import,
// ADD or GC claims. It releases the reservations of addresses that another node owns.
func (h host) importAddresses(r *skel.Request, args []string) error {
	if len(args) > 0 {
		return types.Errorf(types.CodeConfig, "import takes no arguments; pass the configuration on stdin")
	}
	if err := r.ReadConfig(); err != nil {
		return err
	}
	n, err := h.parse(r)
	if err != nil {
		return err
	}
	var conf struct {
		Import []pool.Imported `json:"import"`
	}
	if err := r.Decode(&conf); err != nil {
		return err
	}
	for _, i := range conf.Import {
		if i.ContainerID == "" || i.IfName == "" || !isAddress(i.Address) {
			return types.Errorf(types.CodeConfig, "import: %v must contain containerID, ifName and address", i)
		}
	}
	reserved, problems := n.Import(conf.Import)
	return errors.Join(problems, n.claimImported(reserved))
}

// claimImported claims all reserved addresses. If it cannot claim an address that Import has reserved, it releases the
// reservation. If the outcome of a claim is unknown, it keeps the reservations, because the node may own the addresses, and
// would otherwise assign them to other containers. The next session claims the addresses.
func (n *network) claimImported(reserved []pool.Imported) error {
	s, err := n.open(n.host.Wait)
	if err != nil {
		return errors.Join(err, n.Undo(reserved))
	}
	defer s.close()
	err = errors.Join(s.settle(n.firstSet()), s.foreign)
	if reasonOf(err) == datastore.ReasonUnknown {
		return err
	}
	var lost []pool.Imported
	for _, i := range reserved {
		if s.st == nil || s.st.claims[i.Address] == "" {
			lost = append(lost, i)
		}
	}
	return errors.Join(err, n.Undo(lost))
}
