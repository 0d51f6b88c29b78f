package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
)

// A Pool is a range set of a network with host-local or cluster-local.
type Pool struct {
	Range    string  `json:"range"`          // "FIRST-LAST", or several separated by commas
	Size     uint64  `json:"size"`           // the number of addresses that can be allocated
	Reserved uint64  `json:"reserved"`       // the number of addresses that are reserved for an attachment on this host
	Free     *uint64 `json:"free,omitempty"` // the number of free addresses; nil if only the datastore of cluster-local knows it
	// Estimated is whether Free is an estimate in an answer of cluster-local's datastore, which may be days old.
	Estimated bool `json:"estimated,omitempty"`

	Set pool.Set `json:"-"`
	dir string   // the directory of the reservations
}

// Reserves reports whether the resource is a reservation of an address in the pool.
func (p Pool) Reserves(r Resource) bool {
	ip, err := netip.ParseAddr(r.Address)
	return r.Kind == Reservation && err == nil && filepath.Dir(r.Where) == p.dir && p.Set.Contains(ip)
}

// HasDirectory reports whether the directory of the reservations exists, which ADD creates and no DEL removes. It returns true
// if that is unknown.
func (p Pool) HasDirectory() bool {
	_, err := os.Stat(p.dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// NearlyFull reports whether at least 90 % of the addresses are in use. It returns false for an estimate.
func (p Pool) NearlyFull() bool {
	return p.Free != nil && !p.Estimated && p.Size > 0 && (p.Size-min(*p.Free, p.Size))*10 >= p.Size*9
}

// An IPAM is a plugin's key ipam with host-local or cluster-local.
type IPAM struct {
	ClusterLocal bool
	State        *owned.State // the state of cluster-local; nil for host-local
	Pools        []Pool
}

// ipamsOf returns what is known of the address pools of the network, for each plugin of its configuration. It omits a plugin
// whose configuration is wrong, because STATUS reports it.
func (inv *Inventory) ipamsOf(n *Network) (all []IPAM) {
	for _, keys := range n.Keys() {
		dataDir, sets, err := pool.ParseIPAM(keys.IPAM)
		local := keys.IPAMType == "host-local"
		if !local && keys.IPAMType != "cluster-local" || err != nil {
			continue
		}
		i := IPAM{ClusterLocal: !local}
		if !local {
			i.State = ReadOwned(dataDir, n.Name)
		}
		for _, set := range sets {
			p := Pool{
				Range: strings.ReplaceAll(strings.Trim(fmt.Sprint(set.Ranges), "[]"), " ", ","), // the format is FIRST-LAST FIRST-LAST
				Size:  set.Size(), Set: set, dir: filepath.Join(dataDir, n.Name),
			}
			p.Reserved = inv.reservedIn(n.Name, p)
			if local {
				free := p.Size - min(p.Reserved, p.Size)
				p.Free = &free
			} else if free, known := i.State.Free[set.Ranges[0].First]; known {
				p.Free, p.Estimated = &free, true
			}
			i.Pools = append(i.Pools, p)
		}
		all = append(all, i)
	}
	return all
}

// reservedIn returns the number of addresses of the pool that are reserved for the network.
func (inv *Inventory) reservedIn(network string, p Pool) (count uint64) {
	for _, a := range inv.Attachments {
		for _, r := range a.Resources {
			if a.Network == network && p.Reserves(r) {
				count++
			}
		}
	}
	return count
}
