// Package ipam calls the datastore of a network with cluster-local, as an operator does, and compares its answer with the
// files of this node.
package ipam

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	cniinvoke "github.com/containernetworking/cni/pkg/invoke"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/kubeconfig"
)

const clusterLocal = "cluster-local"

// ErrNetwork means that the host has no network that the command can use, or more than one.
var ErrNetwork = errors.New("the command needs a network with cluster-local")

// A Network is a network that uses cluster-local.
type Network struct {
	Name    string
	Segment string
	Node    string // the name of this node in the datastore, or "" before the first ADD
	Owned   []netip.Addr
	// Reserved contains the addresses that are reserved in cluster-local's own directory, with the names of their attachments.
	Reserved map[netip.Addr]string
	// Importable contains the addresses of attachments whose namespaces exist, from libcni's cache, that are not reserved for
	// them.
	Importable []Importable

	// Warn prints a warning of the datastore.
	Warn func(text string)

	dataDir string
	caller  *plugins.Caller
	program string // the name of the datastore's executable
	config  []byte // the configuration of the plugin, with the network's name and version
	request datastore.Request
}

// Find returns the network with this name or, if name is "", the only network with cluster-local.
func Find(inv *node.Inventory, caller *plugins.Caller, name string) (*Network, error) {
	var found []*Network
	var names []string
	for _, n := range inv.Networks {
		if n.List() == nil || name != "" && n.Name != name {
			continue
		}
		for _, p := range n.List().Plugins {
			if p.Network.IPAM.Type != clusterLocal {
				continue
			}
			one, err := newNetwork(inv, n.List(), p)
			if err != nil {
				return nil, fmt.Errorf("network %s: %w", n.Name, err)
			}
			one.caller = caller
			found, names = append(found, one), append(names, n.Name)
			break
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case name != "":
		if _, err := inv.Network(name); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("network %q: %w", name, ErrNetwork)
	case len(found) == 0:
		return nil, fmt.Errorf("%w, and the network configurations of this host contain none", ErrNetwork)
	}
	return nil, fmt.Errorf("%w; choose one with --network: %s", ErrNetwork, strings.Join(names, ", "))
}

// Read returns the network with cluster-local in a configuration file, which the runtime need not read yet.
func Read(inv *node.Inventory, caller *plugins.Caller, file string) (*Network, error) {
	list, err := node.ReadConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, p := range list.Plugins {
		if p.Network.IPAM.Type == clusterLocal {
			n, err := newNetwork(inv, list, p)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			n.caller = caller
			return n, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", file, ErrNetwork)
}

func newNetwork(inv *node.Inventory, n *libcni.NetworkConfigList, p *libcni.PluginConfig) (*Network, error) {
	var keys struct {
		IPAM struct {
			Segment   string          `json:"segment"`
			Datastore json.RawMessage `json:"datastore"`
		} `json:"ipam"`
	}
	var program struct {
		Type string `json:"type"`
	}
	config := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal(p.Bytes, &keys), json.Unmarshal(p.Bytes, &config)); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(keys.IPAM.Datastore, &program); err != nil || !datastore.IsName(program.Type) {
		return nil, errors.New("ipam.datastore.type must be the name of a datastore's executable")
	}
	dataDir, sets, err := pool.ParseIPAM(node.KeysOf(p).IPAM)
	if err != nil {
		return nil, err
	}
	one := &Network{Name: n.Name, Segment: keys.IPAM.Segment, Reserved: map[netip.Addr]string{}, dataDir: dataDir, program: program.Type}
	if one.Segment == "" {
		one.Segment = n.Name
	}
	state := node.ReadOwned(dataDir, n.Name)
	one.Node, one.Owned = state.Node(), state.Addresses()
	if err := one.readReserved(inv); err != nil {
		return nil, err
	}
	one.Importable = one.importable(inv)
	one.request = datastore.Request{Segment: one.Segment, Datastore: keys.IPAM.Datastore}
	for _, set := range sets {
		for _, r := range set.Usable() {
			one.request.Ranges = append(one.request.Ranges, datastore.Range{First: r.First, Last: r.Last})
		}
	}
	config["name"], _ = json.Marshal(n.Name)
	config["cniVersion"], _ = json.Marshal(n.CNIVersion)
	one.config, err = json.Marshal(config)
	return one, err
}

// readReserved reads the reservations in the directory of the network's configuration, which the runtime need not read yet.
// Another IPAM plugin may have used another directory for the same network.
func (n *Network) readReserved(inv *node.Inventory) error {
	all, err := pool.Reservations(n.dataDir, n.Name)
	for _, r := range all {
		id := types.Attachment{Network: n.Name, ContainerID: r.ContainerID, IfName: r.IfName}
		for _, a := range inv.Attachments {
			if r.IfName == "" && a.Network == n.Name && a.ContainerID == r.ContainerID {
				id.IfName = a.IfName // a former host-local has not recorded the interface
			}
		}
		n.Reserved[r.Addr] = id.String()
	}
	return err
}

// UseKubeconfig replaces the datastore's key kubeconfig with the absolute path of file.
func (n *Network) UseKubeconfig(file string) error {
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	config := map[string]any{}
	if err := json.Unmarshal(n.request.Datastore, &config); err != nil {
		return err
	}
	config["kubeconfig"] = path
	n.request.Datastore, err = json.Marshal(config)
	return err
}

// NeedsOperator reports whether the credentials of a node are not sufficient to remove a registration.
func (n *Network) NeedsOperator() bool { return n.program == "cluster-local-kubernetes" }

// Call calls the datastore with a verb and the fields that change sets. If the answer contains an error, Call returns it
// as a *datastore.Error.
func (n *Network) Call(ctx context.Context, verb string, change func(*datastore.Request)) (datastore.Answer, error) {
	var answer datastore.Answer
	path, err := cniinvoke.FindInPath(n.program, n.caller.Path)
	if err != nil {
		return answer, err
	}
	request := n.request
	request.Verb = verb
	change(&request)
	text, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	out, stderr, err := n.caller.Run(ctx, path, text, nil)
	if parseErr := json.Unmarshal(out, &answer); parseErr != nil {
		return answer, errors.Join(fmt.Errorf("%s: %w: %.200s", n.program, parseErr, string(out)+string(stderr)), err)
	}
	for _, text := range answer.Warnings {
		n.Warn(text)
	}
	if answer.Error != nil {
		return answer, fmt.Errorf("%s: code %d: %w", n.program, answer.Error.Code, answer.Error)
	}
	return answer, err
}

// NodeIsReady reports whether Kubernetes has a Node with this name that is ready, for a datastore with the key kubeconfig. For
// other datastores, and if the Node does not exist, it returns false.
func (n *Network) NodeIsReady(ctx context.Context, name string) (bool, error) {
	var config struct{ Kubeconfig string }
	if json.Unmarshal(n.request.Datastore, &config) != nil || config.Kubeconfig == "" {
		return false, nil
	}
	client, err := kubeconfig.Load(config.Kubeconfig)
	if err != nil {
		return false, err
	}
	name, _, _ = strings.Cut(name, ":") // without the network
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, client.Server+"/api/v1/nodes/"+url.PathEscape(name), nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+client.Token)
	resp, err := client.HTTP.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return false, nil
	}
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("read Node %s: %s; pass an operator's credentials with --kubeconfig, or use --force", name, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&node); err != nil {
		return false, fmt.Errorf("read Node %s: %w", name, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return true, nil
		}
	}
	return false, nil
}

// Resync runs cluster-local resync, which records in the store exactly the addresses that this node uses.
func (n *Network) Resync(ctx context.Context) error { return n.run(ctx, "resync", n.config) }

// RegisterNewName runs cluster-local resync after the name of this node was changed, and returns the registrations of the
// new name and of the former one. The error is nil only if both belong to this boot of this machine, so that the former one
// can be removed. The resync itself fails if containers use addresses that the former name owns.
func (n *Network) RegisterNewName(ctx context.Context, former string) (answer datastore.Answer, err error) {
	resyncErr := n.Resync(ctx)
	state := node.ReadOwned(n.dataDir, n.Name)
	n.Node, n.Owned = state.Node(), state.Addresses()
	if n.Node == former {
		return answer, errors.Join(resyncErr, fmt.Errorf("this node still has the name %s; change the key node or the host name before", former))
	}
	renamed, err := n.Call(ctx, datastore.List, func(r *datastore.Request) { r.Target = n.Node })
	if err == nil {
		answer, err = n.Call(ctx, datastore.List, func(r *datastore.Request) { r.Target = former })
	}
	if err != nil {
		return answer, err
	}
	next, registered := renamed.Nodes[n.Node]
	last, known := answer.Nodes[former]
	owns := slices.ContainsFunc(slices.Collect(maps.Values(answer.Owners)), func(o datastore.Owner) bool { return o.Node == former })
	boot := func(o datastore.Node) string { first, _, _ := strings.Cut(o.Boot, "/"); return first }
	switch {
	case !registered:
		err = errors.Join(resyncErr, fmt.Errorf("node %s is not registered in segment %s; correct the error, and repeat the command", n.Node, n.Segment))
	case !known && (answer.Frozen != "" || owns):
		// An earlier call has ended after it had begun to remove the former name of this machine.
		answer.Nodes = map[string]datastore.Node{former: next}
	case !known:
		err = fmt.Errorf("node %s is not registered in segment %s, and owns no address; plumb ipam list shows the nodes", former, n.Segment)
	case last.Machine != next.Machine || boot(last) != boot(next):
		err = fmt.Errorf("node %s was registered by machine %s and boot %s, and node %s by machine %s and boot %s; if %[1]s is off, run plumb ipam remove-node %[1]s",
			former, last.Machine, last.Boot, n.Node, next.Machine, next.Boot)
	}
	return answer, err
}

// Import runs cluster-local import, which reserves and claims addresses that containers already use.
func (n *Network) Import(ctx context.Context, all []pool.Imported) error {
	config := map[string]json.RawMessage{}
	err := json.Unmarshal(n.config, &config)
	if err == nil {
		config["import"], err = json.Marshal(all)
	}
	text, jsonErr := json.Marshal(config)
	if err = errors.Join(err, jsonErr); err != nil {
		return err
	}
	return n.run(ctx, "import", text)
}

// run runs a command of cluster-local.
func (n *Network) run(ctx context.Context, command string, config []byte) error {
	path, err := cniinvoke.FindInPath(clusterLocal, n.caller.Path)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, command)
	cmd.Env = []string{"CNI_PATH=" + strings.Join(n.caller.Path, ":")}
	cmd.Stdin = bytes.NewReader(config)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if text := strings.TrimSpace(string(out)); text != "" {
		return errors.New(text) // it begins with the name of the command
	}
	return fmt.Errorf("cluster-local %s: %w", command, err)
}

// An Importable address is used by a living container whose ADD used another IPAM plugin, or an earlier configuration.
type Importable struct {
	pool.Imported
	IPAM string `json:"ipam"` // the type of the IPAM plugin in libcni's cache, or ""
}

func (n *Network) importable(inv *node.Inventory) (all []Importable) {
	for _, a := range inv.Attachments {
		if a.Network != n.Name || !a.HasNamespace() || a.ResultPath() == "" {
			continue
		}
		former := ""
		if list, _ := a.Added(); list != nil {
			for _, p := range list.Plugins {
				former = cmp.Or(former, p.Network.IPAM.Type)
			}
		}
		for _, text := range a.Addresses {
			if ip, err := netip.ParseAddr(text); err == nil && n.Reserved[ip] != a.ID().String() {
				all = append(all, Importable{pool.Imported{ContainerID: a.ContainerID, IfName: a.IfName, Address: ip}, former})
			}
		}
	}
	return all
}

// A Problem is an address about which this node and the store disagree.
type Problem struct {
	Address netip.Addr `json:"address"`
	What    string     `json:"what"`
	plugins.Solution

	used bool // a container of this node uses the address
}

// Check compares the owners in the store with the files of this node.
func (n *Network) Check(owners map[netip.Addr]datastore.Owner) (problems []Problem) {
	resync, importThem := plugins.Solution{Fix: "plumb ipam resync"}, plugins.Solution{Fix: "plumb ipam import"}
	all, importable := map[netip.Addr]bool{}, map[netip.Addr]string{}
	for a, o := range owners {
		all[a] = o.Node == n.Node
	}
	for _, i := range n.Importable {
		all[i.Address], importable[i.Address] = true, i.ContainerID+"/"+i.IfName
	}
	for _, a := range n.Owned {
		all[a] = true
	}
	for a := range n.Reserved {
		all[a] = true
	}
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		owner, container, known := owners[a].Node, n.Reserved[a], slices.Contains(n.Owned, a)
		add := func(p Problem, format string, args ...any) {
			p.Address, p.What, p.Solution = a, fmt.Sprintf(format, args...), cmp.Or(p.Solution, resync)
			problems = append(problems, p)
		}
		switch {
		case !all[a]:
		case container != "" && owner != n.Node && owner != "":
			add(Problem{used: true, Solution: plugins.Solution{Advice: "Delete the container here or on node " + owner + "."}}, "container %s uses it, but node %s owns it", container, owner)
		case importable[a] != "":
			add(Problem{used: true, Solution: importThem}, "container %s uses it, but cluster-local has not reserved it", importable[a])
		case container != "" && owner == "":
			add(Problem{used: true}, "container %s uses it, but no node owns it", container)
		case owner == n.Node && !known:
			add(Problem{}, "the store says that this node owns it, but the node's files do not")
		case known && owner != n.Node:
			add(Problem{}, "the node's files say that this node owns it, but the store does not")
		}
	}
	return problems
}

// CheckThaw returns an error if a container of this node uses an address of the ranges that this node does not own. After
// a thaw, a node could assign it to another container.
func (n *Network) CheckThaw(owners map[netip.Addr]datastore.Owner) error {
	var texts []string
	for _, p := range n.Check(owners) {
		inRange := slices.ContainsFunc(n.request.Ranges, func(r datastore.Range) bool { return !p.Address.Less(r.First) && !r.Last.Less(p.Address) })
		if p.used && inRange {
			texts = append(texts, fmt.Sprintf("%v: %s: %s", p.Address, p.What, strings.Join(p.Lines(), " ")))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was changed, because other nodes could assign addresses that containers of this node use: %s", strings.Join(texts, "; "))
}
