package main

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// importAddresses reserves the addresses in the key "import" of the configuration, which another IPAM plugin has assigned to
// containers of this node, and claims them. An import that ends before it has claimed them leaves reservations, which the next
// import, ADD or GC claims.
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
	var problems []error
	valid := slices.DeleteFunc(conf.Import, func(i pool.Imported) bool {
		wrong := i.ContainerID == "" || i.IfName == "" || !datastore.IsAddress(i.Address)
		types.ProblemsInto(&problems)(wrong, "import: %v must contain containerID, ifName and address", i)
		return wrong
	})
	reserved, err := n.Import(valid)
	return errors.Join(types.Coded(types.CodeConfig, errors.Join(problems...)), err, n.claimImported(reserved))
}

// claimImported claims all reserved addresses, and releases those reservations of reserved that the node does not own
// afterwards. Until the datastore has answered which addresses the node owns, it keeps all reservations: another process may
// have claimed the addresses for them, and the node would otherwise assign these to other containers.
func (n *network) claimImported(reserved []pool.Imported) error {
	s, err := n.open(n.host.Wait)
	if err != nil {
		return err
	}
	defer s.close()
	err = errors.Join(s.settle(n.firstSet()), s.foreign)
	if !s.registered || reasonOf(err) == datastore.ReasonUnknown {
		return err
	}
	var lost []pool.Imported
	for _, i := range reserved {
		if s.st.Claims[i.Address] == "" {
			lost = append(lost, i)
		}
	}
	return errors.Join(err, n.Undo(lost))
}
