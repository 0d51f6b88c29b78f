package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A cachedAttachment is what libcni's cache contains about an attachment.
type cachedAttachment struct {
	runtime    *libcni.RuntimeConf
	list       *libcni.NetworkConfigList // the configuration of the ADD, or nil if it cannot be read
	addresses  []string
	interfaces []cachedInterface
}

// Added returns the configuration and the arguments of the ADD from libcni's cache. Both are nil if the cache does not
// contain the configuration.
func (a *Attachment) Added() (*libcni.NetworkConfigList, *libcni.RuntimeConf) {
	if a.cached == nil || a.cached.list == nil {
		return nil, nil
	}
	return a.cached.list, a.cached.runtime
}

// Chain returns the same as Added, except that the delegate's configuration replaces each plugin flannel. flannel saves
// this configuration in the file <dataDir>/<container ID>. The error contains advice.
func (a *Attachment) Chain() (*libcni.NetworkConfigList, *libcni.RuntimeConf, error) {
	list, runtime := a.Added()
	switch {
	case a.ResultPath() == "":
		return nil, nil, errors.New("libcni's cache contains no result of its ADD; delete the pod or the container, and let the runtime create it again")
	case list == nil:
		return nil, nil, fmt.Errorf("%s contains no valid configuration; delete the pod or the container, and let the runtime create it again", a.ResultPath())
	}
	chain := *list
	chain.Plugins = slices.Clone(list.Plugins)
	for i, p := range chain.Plugins {
		if p.Network.Type != "flannel" {
			continue
		}
		var keys struct{ DataDir string }
		_ = json.Unmarshal(p.Bytes, &keys) // libcni has parsed the configuration
		text, err := ReadFile(filepath.Join(cmp.Or(keys.DataDir, "/var/lib/cni/flannel"), a.ContainerID))
		if err == nil {
			chain.Plugins[i], err = libcni.NetworkPluginConfFromBytes(text)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read the configuration of flannel's delegate: %w; delete the pod or the container, and let the runtime create it again", err)
		}
	}
	return &chain, runtime, nil
}

// IsDeleted reports whether the attachment's file in libcni's cache is gone, because a runtime has called DEL.
func (a *Attachment) IsDeleted() bool {
	_, err := os.Stat(a.ResultPath())
	return err != nil
}

// ResultPath returns the path of the attachment's file in libcni's cache, or "".
func (a *Attachment) ResultPath() string {
	for _, r := range a.ResourcesOf(Result) {
		return r.Where
	}
	return ""
}

// ResultTime returns when libcni wrote the result, which is the end of ADD, or the zero time without a result.
func (a *Attachment) ResultTime() (t time.Time) {
	for _, r := range a.ResourcesOf(Result) {
		if r.Since != nil {
			t = *r.Since
		}
	}
	return t
}

// A cachedInterface is an interface of a result. Sandbox is empty for an interface of the host.
type cachedInterface struct {
	Name    string `json:"name"`
	Sandbox string `json:"sandbox"`
}

func (i cachedInterface) isHostEnd() bool { return i.Sandbox == "" && attach.IsHostEndName(i.Name) }

// cachedFile contains the fields of a libcni cache file that this package reads.
type cachedFile struct {
	Kind           string          `json:"kind"`
	ContainerID    string          `json:"containerId"`
	Config         []byte          `json:"config"`
	IfName         string          `json:"ifName"`
	NetworkName    string          `json:"networkName"`
	NetNS          string          `json:"netns"`
	CniArgs        [][2]string     `json:"cniArgs"`
	CapabilityArgs map[string]any  `json:"capabilityArgs"`
	Result         json.RawMessage `json:"result"`
}

// readResults reads libcni's caches and the caches below them, such as /var/lib/cni/multus. It does not use
// libcni.CNIConfig.GetCachedAttachments, which returns neither the results nor the paths of the files.
func (inv *Inventory) readResults(p Places, host *ns.Handle) {
	var dirs pathSet
	for _, cache := range p.CacheDirs {
		dirs.add(filepath.Join(cache, "results"))
		below, _ := filepath.Glob(filepath.Join(cache, "*", "results")) // Glob fails only for a wrong pattern
		for _, dir := range below {
			dirs.add(dir)
		}
	}
	for _, dir := range dirs {
		inv.readCache(dir, host)
	}
}

func (inv *Inventory) readCache(dir string, host *ns.Handle) {
	entries, err := os.ReadDir(dir)
	inv.unread(dir, types.IgnoreNotExist(err))
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		text, err := ReadFile(path)
		if err != nil {
			inv.unread(path, types.IgnoreNotExist(err))
			continue
		}
		var f cachedFile
		if err := json.Unmarshal(text, &f); err != nil {
			inv.unread(path, fmt.Errorf("the runtime's result of an attachment is damaged, so that the attachment cannot be judged; delete the pod or the container, and let the runtime create it again: %w", err))
			continue
		}
		if f.Kind != libcni.CNICacheV1 || e.Name() != CacheName(f.id()) {
			continue // libcni does not use such a file
		}
		a := inv.attachment(f.id())
		a.cached = f.attachment()
		a.NetNS = a.cached.runtime.NetNS
		a.cached.runtime.CacheDir = filepath.Dir(dir)
		a.add(fileResource(Result, "libcni", path))
		a.namespaces = stateOf(a.NetNS, a.youngest, host)
	}
}

func (f cachedFile) id() types.Attachment {
	return types.Attachment{Network: f.NetworkName, ContainerID: f.ContainerID, IfName: f.IfName}
}

// CacheName returns the name of an attachment's file in libcni's cache. libcni opens the file by this name, so that a file
// with another name is a copy.
func CacheName(a types.Attachment) string { return a.Network + "-" + a.ContainerID + "-" + a.IfName }

// attachment returns the content of the file.
func (f cachedFile) attachment() *cachedAttachment {
	c := &cachedAttachment{runtime: &libcni.RuntimeConf{
		ContainerID: f.ContainerID, NetNS: f.NetNS, IfName: f.IfName, Args: f.CniArgs, CapabilityArgs: f.CapabilityArgs,
	}}
	list, err := libcni.NetworkConfFromBytes(f.Config)
	if err != nil || len(list.Plugins) == 0 {
		list, err = listOf(f.Config)
	}
	if err == nil {
		c.list = list
	}
	var result struct {
		Interfaces []cachedInterface `json:"interfaces"`
		IPs        []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	_ = json.Unmarshal(f.Result, &result) // results before 0.3.0 use another format, without interfaces
	c.interfaces = result.Interfaces
	// Older versions of libcni, for example in containerd 1.6, do not write netns.
	for _, i := range result.Interfaces {
		if f.NetNS == "" && i.Name == f.IfName && filepath.IsAbs(i.Sandbox) {
			c.runtime.NetNS = i.Sandbox
		}
	}
	for _, ip := range result.IPs {
		// The list may contain loopback addresses from a plugin earlier in the chain, and the same address twice if a
		// later plugin returned it again for a virtual machine.
		prefix, err := netip.ParsePrefix(ip.Address)
		if text := prefix.Addr().Unmap().String(); err == nil && !prefix.Addr().IsLoopback() && !slices.Contains(c.addresses, text) {
			c.addresses = append(c.addresses, text)
		}
	}
	return c
}

func fileResource(k Kind, name, path string) Resource {
	t := Resource{Kind: k, Name: name, Where: path, Remove: types.Command("rm", path)}
	if info, err := os.Lstat(path); err == nil {
		since := info.ModTime()
		t.Since = &since
	}
	return t
}

// DelArguments returns the configuration and the arguments of a DEL. It takes them from the ADD in libcni's cache, if
// possible. The configuration is nil if no configuration is known.
func (a *Attachment) DelArguments(n *Network) (*libcni.NetworkConfigList, *libcni.RuntimeConf) {
	if a.cached != nil {
		list, _ := a.Added()
		runtime := *a.cached.runtime
		if a.namespaces != life.Exists && pidIn(runtime.NetNS) != 0 {
			runtime.NetNS = "" // the path may be the namespace of another container now
		}
		return cmp.Or(list, n.list), &runtime
	}
	return n.list, &libcni.RuntimeConf{ContainerID: a.ContainerID, IfName: cmp.Or(a.IfName, "eth0")} // see CanDelete
}
