package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/types"
)

// linkKinds are the kinds of links that each plugin makes.
var linkKinds = map[string][]string{
	"bridge": {"bridge", "veth"}, "ptp": {"veth"}, "macvlan": {"macvlan"}, "ipvlan": {"ipvlan"}, "vlan": {"vlan"},
	"dummy": {"dummy"}, "vrf": {"vrf"}, "bandwidth": {"ifb"},
}

// findLinkKinds finds plugins that make links of a kind that the kernel lacks.
func findLinkKinds(e *examination) (found []Finding) {
	users := map[string]string{} // from a kind to the first user
	for _, f := range e.parsed() {
		for _, p := range f.plugins {
			for _, kind := range linkKinds[p.typ] {
				if users[kind] == "" {
					users[kind] = fmt.Sprintf("%s needs it (%s)", p.typ, f.at(p.Value))
				}
			}
		}
	}
	kinds := slices.Sorted(maps.Keys(users))
	lacking, err := lackingKinds(kinds)
	e.unread("kinds of links", err)
	for _, kind := range lacking {
		found = append(found, Finding{Where: "kernel", What: fmt.Sprintf("no links of kind %s: %s", kind, users[kind]), Mend: "modprobe " + kind})
	}
	return found
}

// lackingKinds returns the kinds that the kernel does not know. It tries to make links without what they need.
func lackingKinds(kinds []string) (lacking []string, err error) {
	err = inNewNamespace(func() {
		for _, kind := range kinds {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "probe-" + kind
			if errors.Is(netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}), unix.EOPNOTSUPP) {
				lacking = append(lacking, kind)
			}
		}
	})
	return lacking, err
}

// inNewNamespace calls f in a new network namespace, which ends with the thread.
func inNewNamespace(f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			f()
		}
	}()
	<-done
	return err
}

// findSysctls finds sysctls of the plugin tuning that a network namespace does not have. ADD fails with them.
func (e *examination) findSysctls(f *file) (found []Finding) {
	for _, p := range f.plugins {
		keys := p.Get("sysctl").Members()
		if p.typ != "tuning" || len(keys) == 0 {
			continue
		}
		e.unread("sysctls", inNewNamespace(func() {
			for _, key := range keys {
				found = append(found, f.checkSysctl(key)...)
			}
		}))
	}
	return found
}

// checkSysctl returns the finding for a sysctl that the network namespace of the thread does not have. In place of the
// interface that the key names, it looks at lo.
func (f *file) checkSysctl(key *schema.Value) []Finding {
	parts := strings.FieldsFunc(key.Key, func(r rune) bool { return r == '.' || r == '/' })
	last := len(parts) - 1
	if last > 3 && (parts[2] == "conf" || parts[2] == "neigh") && parts[3] != "all" && parts[3] != "default" {
		parts = []string{parts[0], parts[1], parts[2], "lo", parts[last]}
	}
	file := filepath.Join(append([]string{"/proc/sys"}, parts...)...)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) || last < 0 {
		return nil
	}
	p := schema.Problem{Kind: schema.UnknownKey, Path: key.Path, Line: key.Line, Key: key.Key}
	what := key.Path + ": a container has no such sysctl"
	var names []string
	entries, _ := os.ReadDir(filepath.Dir(file)) // without a folder there are no similar names
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	name := filepath.Base(file)
	if likely := types.Nearest(name, names); likely != "" {
		meant := strings.TrimSuffix(key.Key, name) + likely
		what += "; " + meant + " was probably meant"
		p.Have, p.Want = strconv.Quote(key.Key), strconv.Quote(meant)
	}
	return []Finding{{Where: f.at(key), What: what, Mend: f.mend(p)}}
}

// findIPv6 finds IPv6 ranges on a node that has IPv6 disabled.
func findIPv6(e *examination) (found []Finding) {
	for _, f := range e.parsed() {
		for _, s := range f.spans() {
			if s.subnet.Addr().Is4() {
				continue
			}
			at := f.at(s.value.Get("subnet"))
			value, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
			switch {
			case err != nil:
				return []Finding{{Where: "kernel", What: fmt.Sprintf("no IPv6, and %s has an IPv6 subnet", at),
					Mend: edit + "boot without ipv6.disable=1, or remove the subnet"}}
			case strings.TrimSpace(string(value)) == "1":
				return []Finding{{Where: "kernel", What: fmt.Sprintf("IPv6 is disabled (net.ipv6.conf.all.disable_ipv6), and %s has an IPv6 subnet", at),
					Mend: "sysctl -w net.ipv6.conf.all.disable_ipv6=0"}}
			}
		}
	}
	return nil
}

// findStatus calls STATUS of each plugin, by libcni.
func findStatus(e *examination) (found []Finding) {
	if os.Geteuid() != 0 {
		e.unread("STATUS of the plugins", errors.New("run plumb as root"))
		return nil
	}
	for _, f := range e.good() {
		text, err := node.ReadFile(f.path)
		if err != nil {
			e.unread(f.path, err)
			continue
		}
		list, err := listOf(f, text)
		if err != nil {
			found = append(found, Finding{Where: f.path, What: "libcni refuses it: " + err.Error(), Mend: edit + "correct what the text says"})
			continue
		}
		for _, p := range list.Plugins {
			found = append(found, e.status(f, list, p)...)
		}
	}
	return found
}

// listOf returns the configuration of a network as libcni has it.
func listOf(f *file, text []byte) (*libcni.NetworkConfigList, error) {
	if f.isList() {
		return libcni.NetworkConfFromBytes(text)
	}
	return node.ListOf(text)
}

// status calls STATUS of one plugin. libcni calls it from version 1.1.0 on, so the version of an older network is
// set to that, if the plugin supports it.
func (e *examination) status(f *file, list *libcni.NetworkConfigList, p *libcni.PluginConfig) []Finding {
	one := *list
	one.Plugins = []*libcni.PluginConfig{p}
	if serves := e.executables[p.Network.Type].serves; slices.Contains(serves, "1.1.0") {
		one.CNIVersion = "1.1.0"
	}
	err := libcni.NewCNIConfig(e.PluginPath, e.caller()).GetStatusNetworkList(e.ctx, &one)
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("STATUS of %s in network %q: %v", p.Network.Type, list.Name, err)
	var coded *cnitypes.Error
	if errors.As(err, &coded) {
		what = fmt.Sprintf("STATUS of %s in network %q: code %d: %s", p.Network.Type, list.Name, coded.Code, strings.TrimSpace(coded.Msg+" "+coded.Details))
	}
	return []Finding{{Where: f.path, What: what, Mend: edit + "correct the cause in the text; the table \"Errors\" of the page of " + p.Network.Type + " says more"}}
}
