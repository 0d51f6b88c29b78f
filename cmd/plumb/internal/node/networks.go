package node

import (
	"encoding/json"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// A Network is a network that has a configuration, or for which the node holds something.
type Network struct {
	Name       string   `json:"name"`
	File       string   `json:"file,omitempty"`       // of the configuration; empty: libcni's cache has it, or there is none
	CNIVersion string   `json:"cniVersion,omitempty"` // of the configuration
	Plugins    []string `json:"plugins"`              // the types of the plugins, in their order
	DisableGC  bool     `json:"disableGC,omitempty"`  // the configuration forbids GC, because others share the network

	list *libcni.NetworkConfigList // nil: no configuration
}

// List returns the configuration of the file, or else of libcni's cache. It is nil if there is none.
func (n *Network) List() *libcni.NetworkConfigList { return n.list }

// readNetworks reads the configurations. If several have one name, the first counts, as for libcni.
func (inv *Inventory) readNetworks(p Places) {
	files, err := configurationFiles(p.ConfDir)
	inv.unreadFile(p.ConfDir, err)
	for _, file := range append(files, ListsBelow(p.ConfDir)...) {
		list, err := readConfiguration(file)
		if err != nil {
			inv.unreadFile(file, err)
			continue
		}
		if n := inv.network(list.Name); n.list == nil {
			n.File = file
			n.setList(list)
		}
	}
}

// setCachedLists gives each network without a file the configuration of its youngest attachment in libcni's cache.
func (inv *Inventory) setCachedLists() {
	youngest := map[*Network]*Attachment{}
	for _, a := range inv.Attachments {
		n := inv.network(a.Network)
		list, _ := a.Added()
		if list != nil && n.File == "" && (youngest[n] == nil || a.youngest.After(youngest[n].youngest)) {
			youngest[n] = a
		}
	}
	for n, a := range youngest {
		n.setList(a.cached.list)
	}
}

// ListsBelow returns the lists in the directories below a directory of configurations, as nerdctl has one for each of its
// namespaces. libcni itself reads files without a list there, which belong to lists.
func ListsBelow(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.conflist")) // it fails for a wrong pattern only
	return files
}

// setList sets what the configuration says.
func (n *Network) setList(list *libcni.NetworkConfigList) {
	n.list, n.CNIVersion, n.DisableGC = list, list.CNIVersion, list.DisableGC
	for _, p := range list.Plugins {
		n.Plugins = append(n.Plugins, p.Network.Type)
	}
}

// configurationFiles returns the files that libcni reads, in the order in which it looks for a network: lists
// first, then single configurations. There are none if the folder does not exist.
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

// readConfiguration reads one file.
func readConfiguration(file string) (*libcni.NetworkConfigList, error) {
	text, err := ReadFile(file)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(file) == ".conflist" {
		return libcni.NetworkConfFromFile(file) // it reads the folder with the name of the network, too
	}
	return ListOf(text)
}

// ListOf returns a list with the configuration of a single plugin.
func ListOf(text []byte) (*libcni.NetworkConfigList, error) {
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

// listFromBytes decodes a list, or creates one from the configuration of a single plugin.
func listFromBytes(text []byte) (*libcni.NetworkConfigList, error) {
	if list, err := libcni.NetworkConfFromBytes(text); err == nil && len(list.Plugins) > 0 {
		return list, nil
	}
	return ListOf(text)
}

// pluginKeys are the keys of a plugin's configuration that say where it keeps files.
type pluginKeys struct {
	DataDir string          `json:"dataDir"`
	IPAM    json.RawMessage `json:"ipam"`
}

// ipamKeys are the keys of ipam that say where an IPAM plugin keeps files.
type ipamKeys struct {
	Type             string `json:"type"`
	DataDir          string `json:"dataDir"`
	DaemonSocketPath string `json:"daemonSocketPath"`
}

// eachPlugin calls f with the keys of each plugin of each configuration: those in the folder, and those that
// libcni's cache has.
func (inv *Inventory) eachPlugin(f func(network, plugin string, keys pluginKeys, ipam ipamKeys)) {
	each := func(list *libcni.NetworkConfigList) {
		for _, p := range list.Plugins {
			var keys pluginKeys
			var ipam ipamKeys
			_ = json.Unmarshal(p.Bytes, &keys) // what is no text names no folder
			_ = json.Unmarshal(keys.IPAM, &ipam)
			f(list.Name, p.Network.Type, keys, ipam)
		}
	}
	for _, n := range inv.Networks {
		if n.list != nil {
			each(n.list)
		}
	}
	for _, a := range inv.Attachments {
		if a.cached != nil && a.cached.list != nil {
			each(a.cached.list)
		}
	}
}
