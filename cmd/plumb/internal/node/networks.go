package node

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// A Network is a network with a configuration, or for which the host holds resources.
type Network struct {
	Name       string   `json:"name"`
	File       string   `json:"file,omitempty"`       // of the configuration; empty if libcni's cache contains it or none exists
	CNIVersion string   `json:"cniVersion,omitempty"` // the configuration's cniVersion
	Plugins    []string `json:"plugins"`              // the types of the plugins, in order
	DisableGC  bool     `json:"disableGC,omitempty"`  // other nodes or runtimes share the network
	// Remembered contains the free addresses that host-local or cluster-local remembers for a pod or a MAC address (key sticky).
	Remembered []netip.Addr `json:"remembered,omitempty"`

	Pools []Pool `json:"pools,omitempty"` // the address pools of host-local and cluster-local
	IPAMs []IPAM `json:"-"`               // the same by plugin of the configuration

	list *libcni.NetworkConfigList // nil if there is no configuration
}

// List returns the configuration from the file or else from libcni's cache, or nil.
func (n *Network) List() *libcni.NetworkConfigList { return n.list }

// Keys returns the keys of each plugin of the configuration.
func (n *Network) Keys() []Keys { return keysOf(n.list) }

// readNetworks reads the configurations. If several have the same name, it uses the first one, as libcni does.
func (inv *Inventory) readNetworks(p Places) {
	var files []string
	for _, dir := range p.ConfDirs {
		found, err := configurationFiles(dir)
		inv.unreadFile(dir, err)
		files = slices.Concat(files, found, ListsBelow(dir))
	}
	for _, file := range files {
		list, err := ReadConfiguration(file)
		if err != nil {
			inv.unreadFile(file, err)
			continue
		}
		if n := inv.NetworkOf(list.Name); n.list == nil {
			n.File = file
			n.setList(list)
		}
	}
}

// setCachedLists sets the configuration of each network without a file from its youngest attachment in libcni's cache.
func (inv *Inventory) setCachedLists() {
	youngest := map[*Network]*Attachment{}
	for _, a := range inv.Attachments {
		n := inv.NetworkOf(a.Network)
		list, _ := a.Added()
		if list != nil && n.File == "" && (youngest[n] == nil || a.youngest.After(youngest[n].youngest)) {
			youngest[n] = a
		}
	}
	for n, a := range youngest {
		n.setList(a.cached.list)
	}
}

// ListsBelow returns the files *.conflist in the directories below a directory of configurations. nerdctl uses such a
// directory for each of its namespaces. libcni reads only files of single plugins there, as parts of lists.
func ListsBelow(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.conflist")) // Glob fails only for a wrong pattern
	return files
}

// setList sets the configuration and the fields that depend on it.
func (n *Network) setList(list *libcni.NetworkConfigList) {
	n.list, n.CNIVersion, n.DisableGC = list, list.CNIVersion, list.DisableGC
	for _, p := range list.Plugins {
		n.Plugins = append(n.Plugins, p.Network.Type)
	}
}

// configurationFiles returns the files in which libcni looks for a network. In the same order as libcni, it returns
// first lists, and then configurations of single plugins. It returns no files if the directory does not exist.
func configurationFiles(dir string) ([]string, error) {
	lists, err := libcni.ConfFiles(dir, []string{".conflist"})
	if err != nil {
		return nil, err
	}
	single, err := libcni.ConfFiles(dir, []string{".conf", ".json"})
	slices.Sort(lists)
	slices.Sort(single)
	return append(lists, single...), err
}

// ReadConfiguration reads one file as libcni does.
func ReadConfiguration(file string) (*libcni.NetworkConfigList, error) {
	text, err := ReadFile(file)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(file) == ".conflist" {
		return libcni.NetworkConfFromFile(file) // NetworkConfFromFile also reads the directory with the name of the network
	}
	return listOf(text)
}

// listOf returns a list that contains only the plugin with this configuration.
func listOf(text []byte) (*libcni.NetworkConfigList, error) {
	conf, err := libcni.NetworkPluginConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	list, err := json.Marshal(map[string]any{
		"cniVersion": conf.Network.CNIVersion, "name": conf.Network.Name, "plugins": []json.RawMessage{text},
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(list)
}

// Keys are the keys of a plugin's configuration that determine its files, addresses and interfaces.
type Keys struct {
	Type             string          `json:"type"`
	DataDir          string          `json:"dataDir"`
	IPAM             json.RawMessage `json:"ipam"`
	IPAMType         string          `json:"-"`
	Bridge           string          `json:"bridge"`
	IsGateway        bool            `json:"isGateway"`
	IsDefaultGateway bool            `json:"isDefaultGateway"`
	ForceAddress     bool            `json:"forceAddress"`
	VLAN             int             `json:"vlan"`
	Master           string          `json:"master"`
	LinkInContainer  bool            `json:"linkInContainer"`
	IPMasq           bool            `json:"ipMasq"`
	IPMasqBackend    string          `json:"ipMasqBackend"`
	IPMasqExcept     []string        `json:"ipMasqExcept"`
	VLANID           int             `json:"vlanId"`
}

// KeysOf returns the keys of a configuration. A key whose value has a wrong type, which the plugin rejects, is zero.
func KeysOf(p *libcni.PluginConfig) (k Keys) {
	_ = json.Unmarshal(p.Bytes, &k)
	k.Type, k.IPAMType = p.Network.Type, p.Network.IPAM.Type
	return k
}

// BridgeName returns the name of the bridge, or "" if the plugin is not bridge.
func (k Keys) BridgeName() string {
	if k.Type != "bridge" {
		return ""
	}
	return cmp.Or(k.Bridge, "cni0")
}

// HasMaster reports whether the plugin creates the interface on a master on the host.
func (k Keys) HasMaster() bool {
	return slices.Contains([]string{"macvlan", "ipvlan", "vlan"}, k.Type) && !k.LinkInContainer
}

// InterfaceKeys returns the keys of the plugin that created the interface, which is the first one except loopback. It
// returns zero Keys if libcni's cache does not contain the configuration of the ADD.
func (a *Attachment) InterfaceKeys() Keys {
	list, _ := a.Added()
	for _, k := range keysOf(list) {
		if k.Type != "loopback" {
			return k
		}
	}
	return Keys{}
}

// RoutesIPv6 reports whether the host forwards IPv6 packets of the attachment.
func (a *Attachment) RoutesIPv6() bool {
	k := a.InterfaceKeys()
	isRouted := k.Type == "ptp" || k.Type == "bridge" && (k.IsGateway || k.IsDefaultGateway)
	return isRouted && slices.ContainsFunc(a.Addresses, func(addr string) bool { return strings.Contains(addr, ":") })
}

// Uplink returns the attachment's bridge or master, which is on its L2 segment, or "".
func (a *Attachment) Uplink() string {
	k := a.InterfaceKeys()
	if k.HasMaster() {
		return k.Master
	}
	return k.BridgeName()
}

// keysOf returns the keys of each plugin of a list, which may be nil.
func keysOf(list *libcni.NetworkConfigList) (all []Keys) {
	if list == nil {
		return nil
	}
	for _, p := range list.Plugins {
		all = append(all, KeysOf(p))
	}
	return all
}

// allKeys returns the keys of each plugin of each configuration, in the directory and in libcni's cache.
func (inv *Inventory) allKeys() (all []Keys) {
	for _, n := range inv.Networks {
		all = append(all, keysOf(n.list)...)
	}
	for _, a := range inv.Attachments {
		list, _ := a.Added()
		all = append(all, keysOf(list)...)
	}
	return all
}
