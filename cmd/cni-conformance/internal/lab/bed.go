package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Network is a network configuration list, and where and how to call its plugins.
type Network struct {
	Name     string
	Version  string // the version of the protocol that calls use
	Plugins  []Plugin
	Path     []string      // CNI_PATH
	StateDir []string      // directories that hold the plugins' files
	Timeout  time.Duration // for one call
	Settle   time.Duration // how long to wait for the kernel to remove what a plugin removed
	Kills    int           // at how many system calls of each call a plugin is killed
	Setup    string        // a command for sh that prepares each host, or ""
}

// A Plugin is an entry of the list.
type Plugin struct {
	Type       string
	Executable string
	Delegate   string // the type of its IPAM plugin, or ""
	Config     map[string]any
}

// Load reads a network configuration list, and finds its plugins in the directories of path.
func Load(file string, path []string) (*Network, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	list, err := libcni.ConfListFromBytes(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	n := &Network{Name: list.Name, Version: list.CNIVersion, Path: path}
	for i, conf := range list.Plugins {
		p := Plugin{Type: conf.Network.Type}
		if conf.Network.IPAM.Type != p.Type { // an IPAM plugin reads the same key
			p.Delegate = conf.Network.IPAM.Type
		}
		if p.Executable, err = invoke.FindInPath(p.Type, path); err != nil {
			return nil, fmt.Errorf("plugins[%d]: %w; name its directory with --cni-path", i, err)
		}
		if p.Config, err = Object(string(conf.Bytes)); err != nil {
			return nil, fmt.Errorf("plugins[%d]: %w", i, err)
		}
		n.Plugins = append(n.Plugins, p)
	}
	return n, nil
}

// Object parses a JSON object, and keeps numbers as they are.
func Object(text string) (object map[string]any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		return nil, fmt.Errorf("want a JSON object, got %.200q: %w", text, err)
	}
	if rest := strings.TrimSpace(text[d.InputOffset():]); rest != "" || object == nil {
		return nil, fmt.Errorf("want one JSON object and nothing else, got %.200q", text)
	}
	return object, nil
}

// JSON returns the text of a value.
func JSON(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // v consists of parsed JSON
	}
	return strings.TrimSpace(b.String())
}

// A Bed is a new host with an uplink, on which nothing was called yet.
type Bed struct {
	*Network
	Host       *NS
	wire       *NS // with the other ends of the host's uplinks
	daemons    *daemons
	Containers []*Container
	Calls      []*Call // all calls, in the order in which they ended
	mu         sync.Mutex
}

// A Container is a container and its attachment to the network.
type Container struct {
	*NS
	ID, IfName, Args string
	Results          []string       // the result of each plugin's ADD, in the order of the list
	Capabilities     map[string]any // the values for runtimeConfig
}

// Result returns the result of the last plugin that succeeded.
func (c *Container) Result() string {
	if len(c.Results) == 0 {
		return ""
	}
	return c.Results[len(c.Results)-1]
}

// NewBed returns a host with the interfaces that the list names, for example as the master of a macvlan, and with an
// uplink and a default route. The caller must close it.
func (n *Network) NewBed() (b *Bed, err error) {
	own := *n // a case may change it
	b = &Bed{Network: &own}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.Host, err = newNS("host"); err != nil {
		return b, err
	}
	if b.wire, err = newNS("wire"); err != nil {
		return b, err
	}
	err = b.Host.Do(func() error {
		names := []string{"uplink0"}
		for _, p := range n.Plugins {
			for _, key := range []string{"master", "device", "uplinkInterface"} {
				if name, ok := p.Config[key].(string); ok && !slices.Contains(names, name) && p.Config["linkInContainer"] != true {
					names = append(names, name)
				}
			}
		}
		return createUplinks(names, b.wire)
	})
	if err == nil && n.Setup != "" {
		b.daemons, err = b.setUp(n.Setup)
	}
	return b, err
}

// createUplinks creates veth interfaces whose other ends are in the namespace wire, because some kernels lack dummy
// interfaces. The first one has an address and the default route.
func createUplinks(names []string, wire *NS) error {
	if err := SetUp("lo"); err != nil {
		return err
	}
	for _, name := range names {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(wire.fd)}); err != nil {
			return fmt.Errorf("create %s on the host: %w", name, err)
		}
		up := func() error { return SetUp(name) }
		if err := errors.Join(up(), wire.Do(up)); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(names[0])
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr("198.18.255.2/24")
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.IPv4(198, 18, 255, 1)}
	if err := errors.Join(netlink.AddrAdd(link, addr), netlink.RouteAdd(route)); err != nil {
		return fmt.Errorf("add default route on the host: %w", err)
	}
	return nil
}

// Close ends the daemons, and removes the namespaces and the plugins' files.
func (b *Bed) Close() {
	b.daemons.end()
	_ = b.RestoreState() // a case may have made the directories read-only
	all := []*NS{b.Host, b.wire}
	for _, c := range b.Containers {
		all = append(all, c.NS)
	}
	for _, n := range all {
		if n != nil && n.fd >= 0 {
			n.Close()
		}
	}
	mounts, _ := filepath.Glob(netnsDir + "/*")
	for _, path := range mounts {
		_ = unix.Unmount(path, unix.MNT_DETACH)
	}
	for _, dir := range b.StateDir {
		files, _ := filepath.Glob(dir + "/*")
		for _, file := range files {
			_ = os.RemoveAll(file)
		}
	}
}

// NewContainer returns a new container that is not attached.
func (b *Bed) NewContainer() (*Container, error) {
	number := len(b.Containers) + 1
	id := fmt.Sprintf("cnf%06d-1f0c2a9b", number)
	n, err := newNS(id)
	if err != nil {
		return nil, err
	}
	args := fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod%d", number) // as in Kubernetes
	c := &Container{NS: n, ID: id, IfName: "eth0", Args: args, Capabilities: map[string]any{
		"portMappings": []any{map[string]any{"hostPort": 18000 + number, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 400000},
	}}
	b.Containers = append(b.Containers, c)
	return c, n.Do(func() error { return SetUp("lo") })
}

// SetUp sets a link of the thread's namespace up.
func SetUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// Prepare returns the call of plugin i of the list for a container. After ADD of the plugins before it, or of all
// plugins, the call contains prevResult (section 3, "Deriving request configuration").
func (b *Bed) Prepare(command string, i int, c *Container) Call {
	p := b.Plugins[i]
	conf := maps.Clone(p.Config)
	delete(conf, "capabilities")
	conf["cniVersion"], conf["name"] = b.Version, b.Name
	call := Call{Plugin: p.Executable, Env: []string{"CNI_COMMAND=" + command, "CNI_PATH=" + strings.Join(b.Path, ":")}}
	if c != nil {
		call.Env = append(call.Env, "CNI_CONTAINERID="+c.ID, "CNI_NETNS="+c.Path, "CNI_IFNAME="+c.IfName, "CNI_ARGS="+c.Args)
		declared, _ := p.Config["capabilities"].(map[string]any)
		runtimeConfig := map[string]any{}
		for name, value := range c.Capabilities {
			if declared[name] == true {
				runtimeConfig[name] = value
			}
		}
		if len(runtimeConfig) > 0 {
			conf["runtimeConfig"] = runtimeConfig
		}
		prev := c.Result()
		if command == "ADD" && i < len(c.Results) {
			prev = ""
			if i > 0 {
				prev = c.Results[i-1]
			}
		}
		if prev != "" {
			conf["prevResult"] = json.RawMessage(prev)
		}
	}
	call.Stdin = JSON(conf)
	return call
}

// Add calls ADD of the plugins, and stops at the first one that fails.
func (b *Bed) Add(c *Container) error { return b.AddFirst(len(b.Plugins), c) }

// AddFirst calls ADD of the first n plugins.
func (b *Bed) AddFirst(n int, c *Container) error {
	c.Results = nil
	for i := range n {
		if err := b.AddOne(i, c); err != nil {
			return err
		}
	}
	return nil
}

// AddBefore attaches a new container by the plugins before plugin i.
func (b *Bed) AddBefore(i int) (*Container, error) {
	c, err := b.NewContainer()
	if err != nil {
		return nil, err
	}
	return c, b.AddFirst(i, c)
}

// AddOne calls ADD of plugin i, after the plugins before it, and appends its result.
func (b *Bed) AddOne(i int, c *Container) error {
	call := b.Run(b.Prepare("ADD", i, c))
	if err := call.Err(); err != nil {
		return err
	}
	if _, err := Object(call.Stdout); err != nil {
		return fmt.Errorf("result of ADD of %s: %w", b.Plugins[i].Type, err)
	}
	c.Results = append(c.Results, strings.TrimSpace(call.Stdout))
	return nil
}

// AddNew attaches a new container.
func (b *Bed) AddNew() (*Container, error) { return b.AddBefore(len(b.Plugins)) }

// Del calls DEL of all plugins in reverse order. Unlike a runtime, it continues after an error, and joins the errors.
// change may modify each call.
func (b *Bed) Del(c *Container, change ...func(*Call)) error { return b.all("DEL", c, change...) }

// Check calls CHECK of all plugins.
func (b *Bed) Check(c *Container) error { return b.all("CHECK", c) }

// GC calls GC of all plugins, for which only the attachments of these containers are valid.
func (b *Bed) GC(valid ...*Container) error {
	attachments := []any{}
	for _, c := range valid {
		attachments = append(attachments, map[string]any{"containerID": c.ID, "ifname": c.IfName})
	}
	return b.all("GC", nil, func(c *Call) {
		c.EditConfig(func(conf map[string]any) { conf["cni.dev/valid-attachments"] = attachments })
	})
}

func (b *Bed) all(command string, c *Container, change ...func(*Call)) error {
	var errs []error
	for i := range b.Plugins {
		if command == "DEL" {
			i = len(b.Plugins) - 1 - i
		}
		call := b.Prepare(command, i, c)
		for _, f := range change {
			f(&call)
		}
		errs = append(errs, b.Run(call).Err())
	}
	return errors.Join(errs...)
}

// EditConfig changes the configuration on stdin.
func (c *Call) EditConfig(f func(map[string]any)) {
	conf, err := Object(c.Stdin)
	if err != nil {
		panic(err) // Prepare wrote it
	}
	f(conf)
	c.Stdin = JSON(conf)
}

// WithoutPrevResult removes prevResult from a call.
func WithoutPrevResult(c *Call) {
	c.EditConfig(func(conf map[string]any) { delete(conf, "prevResult") })
}

// WithoutNetns removes CNI_NETNS from a call.
func WithoutNetns(c *Call) { c.Set("CNI_NETNS", Unset) }

func (b *Bed) record(c *Call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Calls = append(b.Calls, c)
}
