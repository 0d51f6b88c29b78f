package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/daemon"
)

// A pathSet is a list of directories without duplicates.
type pathSet []string

func (s *pathSet) add(dir string) {
	if dir = filepath.Clean(dir); !slices.Contains(*s, dir) {
		*s = append(*s, dir)
	}
}

// readFiles reads the plugins' reservations, state files and leases in the default directories and in the directories that
// network configurations set.
func (inv *Inventory) readFiles(p Places) {
	pools := pathSet{filepath.Clean(p.DataDir)}
	var leases pathSet
	if socket := p.InRun(filepath.Base(daemon.DefaultSocket)); socket != "" {
		leases.add(daemon.StoreOf(socket).Dir)
	}
	records := map[string]*pathSet{}
	for _, plugin := range []string{"tuning", "ipvlan", "host-device"} {
		records[plugin] = &pathSet{}
		if dir := p.InRun(plugin); dir != "" {
			records[plugin].add(dir)
		}
	}
	for _, keys := range inv.allKeys() {
		var ipam struct{ DataDir, DaemonSocketPath string }
		_ = json.Unmarshal(keys.IPAM, &ipam) // ipam is empty if the key ipam has a wrong type, which the plugin rejects
		if set := records[keys.Type]; set != nil && keys.DataDir != "" {
			set.add(keys.DataDir)
		}
		if ipam.DataDir != "" && filepath.IsAbs(ipam.DataDir) {
			pools.add(ipam.DataDir)
		}
		if ipam.DaemonSocketPath != "" {
			leases.add(daemon.StoreOf(ipam.DaemonSocketPath).Dir)
		}
	}
	for _, dir := range pools {
		inv.readPools(dir)
	}
	for _, dir := range leases {
		inv.readLeases(dir)
	}
	for _, plugin := range []string{"ipvlan", "host-device"} {
		for _, dir := range *records[plugin] {
			inv.readRecords(plugin, dir, func(id types.Attachment, _ string) types.Attachment { return id })
		}
	}
	ownerOfTuning := inv.tuningOwners() // which needs the attachments of all other files
	for _, dir := range *records["tuning"] {
		inv.readRecords("tuning", dir, ownerOfTuning)
	}
}

func (inv *Inventory) readPools(dataDir string) {
	networks, err := pool.Networks(dataDir)
	inv.unread(dataDir, err)
	for _, network := range networks {
		all, err := pool.Reservations(dataDir, network)
		inv.unread(filepath.Join(dataDir, network), err)
		for _, r := range all {
			t := Resource{Kind: Reservation, Name: r.Addr.String(), Where: r.Path, Address: r.Addr.String(), Remove: types.Command("rm", r.Path)}
			if !r.Since.IsZero() {
				t.Since = &r.Since
			}
			inv.ownerOfReservation(network, r).add(t)
		}
		irregular, err := pool.Irregular(dataDir, network)
		inv.unreadFile(filepath.Join(dataDir, network), err)
		inv.Irregular = append(inv.Irregular, irregular...)
		remembered, err := pool.Remembered(dataDir, network)
		inv.unreadFile(filepath.Join(dataDir, network), err)
		remembered = slices.DeleteFunc(remembered, func(ip netip.Addr) bool {
			_, reserved := slices.BinarySearchFunc(all, ip, func(r pool.Reservation, ip netip.Addr) int { return r.Addr.Compare(ip) })
			return reserved
		})
		if len(remembered) > 0 {
			n := inv.NetworkOf(network)
			n.Remembered = append(n.Remembered, remembered...)
		}
	}
}

// ownerOfReservation returns the attachment of a reservation. A reservation without an interface belongs to the container's
// attachment in the network, if there is exactly one.
func (inv *Inventory) ownerOfReservation(network string, r pool.Reservation) *Attachment {
	id := types.Attachment{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}
	if r.IfName == "" && r.ContainerID != "" {
		var matches []types.Attachment
		for known := range inv.byID {
			if known.Network == network && known.ContainerID == r.ContainerID {
				matches = append(matches, known)
			}
		}
		if len(matches) == 1 {
			id = matches[0]
		}
	}
	return inv.attachment(id)
}

func (inv *Inventory) readLeases(dir string) {
	inv.eachFile(dir, ".lease", func(path string, text []byte) {
		var lease struct {
			types.Attachment
			Lease *struct {
				Address netip.Prefix `json:"address"`
			} `json:"lease"`
		}
		if json.Unmarshal(text, &lease) != nil || lease.ContainerID == "" {
			return
		}
		t := fileResource(Lease, "no address yet", path)
		if lease.Lease != nil {
			t.Name = lease.Lease.Address.Addr().String()
			t.Address = t.Name
		}
		inv.attachment(lease.Attachment).add(t)
	})
}

// readRecords reads the records of a plugin. owner returns the owner of a file from the file's content and its name
// without the extension.
func (inv *Inventory) readRecords(plugin, dir string, owner func(content types.Attachment, name string) types.Attachment) {
	inv.eachFile(dir, ".json", func(path string, text []byte) {
		var content types.Attachment
		if json.Unmarshal(text, &content) == nil {
			id := owner(content, strings.TrimSuffix(filepath.Base(path), ".json"))
			inv.attachment(id).add(fileResource(Record, plugin, path))
		}
	})
}

// tuningOwners returns a function that returns the owner of a file of tuning. The files are called
// "<container>_<interface>", with a hash in place of a long container ID. Because both may contain underscores, the function tries known attachments first. A file of
// the reference plugin does not contain the network, and matches an attachment of any network.
func (inv *Inventory) tuningOwners() func(content types.Attachment, name string) types.Attachment {
	known := map[string][]types.Attachment{}
	for id := range inv.byID {
		name := strings.TrimSuffix(statefile.TuningName(id), ".json")
		known[name] = append(known[name], id)
	}
	return func(content types.Attachment, name string) types.Attachment {
		found := slices.DeleteFunc(slices.Clone(known[name]), func(id types.Attachment) bool {
			return content.Network != "" && content.Network != id.Network
		})
		if len(found) == 1 {
			return found[0]
		}
		i := max(strings.LastIndex(name, "_"), 0)
		return types.Attachment{Network: content.Network, ContainerID: name[:i], IfName: strings.TrimPrefix(name[i:], "_")}
	}
}

// eachFile calls use for each readable file in dir whose name ends with ending.
func (inv *Inventory) eachFile(dir, ending string, use func(path string, text []byte)) {
	entries, err := os.ReadDir(dir)
	inv.unread(dir, types.IgnoreNotExist(err))
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasSuffix(path, ending) {
			continue
		}
		switch text, err := statefile.Read(path); {
		case err == nil:
			use(path, text)
		case errors.Is(err, fs.ErrPermission):
			inv.unread(path, err)
		}
	}
}

// compareAddresses compares addresses in text form. Invalid texts come first, then IPv4, then IPv6.
func compareAddresses(x, y string) int {
	a, _ := netip.ParseAddr(x)
	b, _ := netip.ParseAddr(y)
	return cmp.Or(a.Compare(b), cmp.Compare(x, y))
}
