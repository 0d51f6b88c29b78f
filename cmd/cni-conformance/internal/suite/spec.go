package suite

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"
	"golang.org/x/mod/semver"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

// specCases returns the cases of the specification. The sections are those of version 1.1.0.
func specCases() []Case {
	cases := slices.Concat(versionCases(), addCases(), errorCases(), delCases(), checkCases(), gcCases(), delegationCases())
	for i := range cases {
		cases[i].Profile = spec
	}
	return cases
}

func versionCases() []Case {
	return []Case{
		{ID: "VERSION-1", Section: "5, VERSION Success", Level: must, check: versionList,
			Requirement: "VERSION prints one JSON object whose supportedVersions lists semantic versions. It needs no variable except CNI_COMMAND."},
		{ID: "VERSION-2", Section: "5, VERSION Success", Level: must, check: versionEcho,
			Requirement: "The cniVersion of VERSION's result is the cniVersion on stdin."},
	}
}

func versionCall(b *lab.Bed, i int) lab.Call {
	return lab.Call{Plugin: b.Plugins[i].Executable, Env: []string{"CNI_COMMAND=VERSION"}, Stdin: `{"cniVersion": "` + known[len(known)-1] + `"}`}
}

// versionsOf returns the supportedVersions in the answer of VERSION, or nil.
func versionsOf(call *lab.Call) []string {
	var answer struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if json.Unmarshal([]byte(call.Stdout), &answer) != nil {
		return nil
	}
	return answer.SupportedVersions
}

func malformed(version string) bool {
	return !semver.IsValid("v"+version) || strings.Count(version, ".") < 2
}

func versionList(b *bench) error {
	for i := range b.Plugins {
		call := b.Run(versionCall(b.Bed, i))
		if err := call.Err(); err != nil {
			return asFailure("without other variables", err)
		}
		if _, err := lab.Object(call.Stdout); err != nil {
			return asFailure("VERSION", err)
		}
		versions := versionsOf(call)
		if len(versions) == 0 || slices.ContainsFunc(versions, malformed) {
			return failf("%s: supportedVersions: want semantic versions, got %.200q", b.Plugins[i].Type, call.Stdout)
		}
	}
	return nil
}

func versionEcho(b *bench) error {
	for i := range b.Plugins {
		for _, v := range b.supported[i] {
			call := versionCall(b.Bed, i)
			call.Stdin = lab.JSON(map[string]any{"cniVersion": v})
			answer := b.Run(call)
			if err := wantVersion(answer.Stdout, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantVersion returns a failure unless an object contains this cniVersion.
func wantVersion(text, version string) error {
	object, err := lab.Object(text)
	if err != nil {
		return failure{err}
	}
	if object["cniVersion"] != version {
		return failf("cniVersion: want %q as on stdin, got %v", version, object["cniVersion"])
	}
	return nil
}

func addCases() []Case {
	return []Case{
		{ID: "ADD-1", Section: "5, ADD Success", Level: must, check: addVersions,
			Requirement: "In each version that all plugins list, ADD prints one JSON object in the form of that version, whose cniVersion is the version on stdin."},
		{ID: "ADD-2", Section: "2, ADD", Level: must, applies: []condition{interfacePlugin}, check: withResult(addCreates),
			Requirement: "ADD creates the interface CNI_IFNAME in the namespace CNI_NETNS, and its result contains the interface."},
		{ID: "ADD-3", Section: "5, ADD Success", Level: must, check: eachInterface(nil),
			Requirement: "Each interface of the result exists: on the host if it has no sandbox, otherwise in the namespace CNI_NETNS."},
		{ID: "ADD-4", Section: "5, ADD Success", Level: must, check: eachInterface(sameMAC),
			Requirement: "The MAC address of each interface in the result is the MAC address of the interface."},
		{ID: "ADD-5", Section: "5, ADD Success", Level: must, applies: []condition{since("1.1.0")}, check: eachInterface(sameMTU),
			Requirement: "If the result contains the MTU of an interface, it is the MTU of the interface."},
		{ID: "ADD-6", Section: "5, ADD Success", Level: must, check: withResult(addAddresses),
			Requirement: "Each address in the result is assigned to the interface that its index names."},
		{ID: "ADD-7", Section: "5, ADD Success", Level: must, applies: []condition{interfacePlugin}, check: withResult(addRoutes),
			Requirement: "Each route in the result exists in the container."},
		{ID: "ADD-8", Section: "2, ADD", Level: must, applies: []condition{interfacePlugin}, check: addTaken,
			Requirement: "If the container already has an interface CNI_IFNAME, ADD fails and does not change that interface."},
		{ID: "ADD-9", Section: "3, Lifecycle & Ordering", Level: must, applies: []condition{twoAttachments}, check: addConcurrent(8),
			Requirement: "Eight ADDs for different containers at the same time succeed with different addresses, and so do their DELs."},
		{ID: "ADD-10", Section: "2, Parameters", Level: should, check: addForeignArgs,
			Requirement: "With IgnoreUnknown=1 in CNI_ARGS, ADD accepts keys that the plugin does not know, because a runtime passes CNI_ARGS to every plugin."},
		{ID: "CHAIN-1", Section: "2, ADD", Level: must, applies: []condition{chain}, check: attached(chainPasses),
			Requirement: "The result of a chained plugin contains the interfaces, addresses and DNS of prevResult, and the routes that still exist."},
		{ID: "CAPABILITY-1", Section: "3, Deriving runtimeConfig", Level: should, applies: []condition{interfacePlugin, capability("mac")}, check: capabilityMAC,
			Requirement: "With the capability mac, the interface gets the MAC address in runtimeConfig."},
		{ID: "CAPABILITY-2", Section: "3, Deriving runtimeConfig", Level: should, applies: []condition{capability("ips")}, check: withResult(capabilityIPs),
			Requirement: "With the capability ips, the result contains the addresses in runtimeConfig."},
	}
}

func addVersions(b *bench) error {
	for _, v := range append([]string{"0.2.0"}, known...) {
		if slices.ContainsFunc(b.supported, func(list []string) bool { return !slices.Contains(list, v) }) || v == "0.2.0" && b.creator < 0 {
			continue
		}
		b.Version = v
		c, err := b.NewContainer()
		if err == nil {
			err = asFailure("version "+v, b.Add(c))
		}
		if err != nil {
			return err
		}
		for _, text := range c.Results {
			if err := wantForm(text, v); err != nil {
				return failf("version %s: %w", v, err)
			}
		}
		if err := b.Del(c); err != nil {
			return err
		}
	}
	return nil
}

// wantForm returns a failure unless the text is a result in the form of the version.
func wantForm(text, version string) error {
	if err := wantVersion(text, version); err != nil {
		return err
	}
	if _, err := create.Create(version, []byte(text)); err != nil {
		return failure{err}
	}
	object, _ := lab.Object(text)
	if version == "0.2.0" {
		if object["ips"] != nil || object["interfaces"] != nil {
			return failf("want ip4 and ip6, got ips or interfaces")
		}
		return nil
	}
	r, err := parseResult(text)
	if err != nil {
		return err
	}
	for i, ip := range r.IPs {
		addr, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return failf("ips[%d].address: %w", i, err)
		}
		want := map[bool]string{true: "4", false: "6"}[addr.Addr().Is4()]
		if version < "1.0.0" && ip.Version != want {
			return failf("ips[%d].version: want %q, got %q", i, want, ip.Version)
		}
	}
	return nil
}

func addCreates(_ *bench, c *lab.Container, r *result) error {
	if !hasLink(c.NS, c.IfName) {
		return failf("there is no %s in %s", c.IfName, c.Path)
	}
	for i := range r.Interfaces {
		if r.Interfaces[i].Name == c.IfName && r.Interfaces[i].Sandbox == c.Path {
			return nil
		}
	}
	return failf("interfaces: want an entry with the name %s and the sandbox %s, got %s", c.IfName, c.Path, c.Result())
}

func sameMAC(want iface, got *netlink.LinkAttrs) error {
	if want.MAC == "" || got.Flags&net.FlagLoopback != 0 {
		return nil
	}
	if mac, err := net.ParseMAC(want.MAC); err != nil || mac.String() != got.HardwareAddr.String() {
		return failf("the result says that the MAC address is %q, the kernel says %s", want.MAC, got.HardwareAddr)
	}
	return nil
}

func sameMTU(want iface, got *netlink.LinkAttrs) error {
	if want.MTU != 0 && want.MTU != got.MTU {
		return failf("the result says that the MTU is %d, the kernel says %d", want.MTU, got.MTU)
	}
	return nil
}

func addAddresses(b *bench, c *lab.Container, r *result) error {
	for i := range r.IPs {
		addr, dev, inContainer, err := b.addressOf(r, i, c)
		if err != nil {
			return err
		}
		if !inContainer {
			if b.creator >= 0 && r.IPs[i].Interface == nil {
				return failf("ips[%d]: want the index of the interface, got none", i)
			}
			continue
		}
		if found, err := hasAddress(c.NS, dev, addr); err != nil || !found {
			return failf("ips[%d]: %s does not have the address %s: %v", i, dev, addr, err)
		}
	}
	return nil
}

func addRoutes(_ *bench, c *lab.Container, r *result) error {
	for i, route := range r.Routes {
		if found, err := findRoutes(c.NS, route.Dst, route.GW); err != nil || len(found) == 0 {
			return failf("routes[%d]: the container has no route to %s via %q: %v", i, route.Dst, route.GW, err)
		}
	}
	return nil
}

func addTaken(b *bench) error {
	c, err := b.AddBefore(b.creator)
	if err == nil {
		err = takeName(c)
	}
	if err != nil {
		return err
	}
	if b.AddOne(b.creator, c) == nil {
		return failf("ADD succeeds, although the container already has an interface %s", c.IfName)
	}
	return wantMAC(c, takenMAC)
}

const takenMAC = "02:00:00:00:cf:01"

// takeName creates an interface with the name CNI_IFNAME in a container.
func takeName(c *lab.Container) error {
	return c.Do(func() error {
		mac, err := net.ParseMAC(takenMAC)
		return errors.Join(err, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.IfName, HardwareAddr: mac}, PeerName: "peer0"}))
	})
}

// wantMAC returns a failure unless the container has an interface CNI_IFNAME with this MAC address.
func wantMAC(c *lab.Container, mac string) error {
	return c.Do(func() error {
		link, err := netlink.LinkByName(c.IfName)
		if err != nil || link.Attrs().HardwareAddr.String() != mac {
			return failf("%s with the MAC address %s does not exist: %v", c.IfName, mac, err)
		}
		return nil
	})
}

// addConcurrent attaches and detaches n containers at the same time.
func addConcurrent(n int) func(*bench) error {
	return func(b *bench) error {
		var all []*lab.Container
		for range n {
			c, err := b.NewContainer()
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		if err := together(all, func(c *lab.Container) error { return b.Add(c) }); err != nil {
			return asFailure("at the same time", err)
		}
		owner := map[string]string{}
		for _, c := range all {
			r, err := parseResult(c.Result())
			if err != nil {
				return err
			}
			for i, ip := range r.IPs {
				_, dev, inContainer, err := b.addressOf(r, i, c)
				if other := owner[ip.Address]; other != "" && err == nil && inContainer && dev != "lo" {
					return failf("%s and %s both got the address %s", other, c.ID, ip.Address)
				}
				owner[ip.Address] = c.ID
			}
		}
		return asFailure("at the same time", together(all, func(c *lab.Container) error { return b.Del(c) }))
	}
}

// together calls f for all containers at the same time, and joins the errors.
func together(all []*lab.Container, f func(*lab.Container) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { errs[i] = f(c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func addForeignArgs(b *bench) error {
	c, err := b.NewContainer()
	if err != nil {
		return err
	}
	c.Args += ";FOO=BAR;ABC=123"
	return asFailure("with CNI_ARGS="+c.Args, b.Add(c))
}

func chainPasses(b *bench, c *lab.Container) error {
	for i := 1; i < len(c.Results); i++ {
		prev, err := parseResult(c.Results[i-1])
		if err != nil {
			return err
		}
		r, err := parseResult(c.Results[i])
		if err != nil {
			return err
		}
		if err := passes(prev, r, c); err != nil {
			return failf("%s: %w", b.Plugins[i].Type, err)
		}
	}
	return nil
}

// passes compares a result with the prevResult of the plugin.
func passes(prev, r *result, c *lab.Container) error {
	for _, want := range prev.Interfaces {
		if !slices.ContainsFunc(r.Interfaces, func(got iface) bool { return got.Name == want.Name && got.Sandbox == want.Sandbox }) {
			return failf("interfaces: the result lacks %s, which prevResult contains", want.Name)
		}
	}
	var addresses, routes []string
	for _, ip := range r.IPs {
		addresses = append(addresses, ip.Address)
	}
	for _, route := range r.Routes {
		routes = append(routes, route.Dst)
	}
	for _, want := range prev.IPs {
		if !slices.Contains(addresses, want.Address) {
			return failf("ips: the result lacks %s, which prevResult contains", want.Address)
		}
	}
	for _, want := range prev.Routes {
		if found, _ := findRoutes(c.NS, want.Dst, want.GW); len(found) > 0 && !slices.Contains(routes, want.Dst) {
			return failf("routes: the result lacks %s, which prevResult contains and which exists", want.Dst)
		}
	}
	if before, _ := lab.Object(string(prev.DNS)); len(before) > 0 {
		if after, _ := lab.Object(string(r.DNS)); !reflect.DeepEqual(before, after) {
			return failf("dns: want %s as in prevResult, got %s", prev.DNS, r.DNS)
		}
	}
	return nil
}

// capability applies to lists in which a plugin declares a capability.
func capability(name string) condition {
	return func(b *bench) string {
		for _, p := range b.Plugins {
			if declared, _ := p.Config["capabilities"].(map[string]any); declared[name] == true {
				return ""
			}
		}
		return "no plugin of the list declares the capability " + name
	}
}

func capabilityMAC(b *bench) error {
	c, err := b.NewContainer()
	if err != nil {
		return err
	}
	const mac = "02:00:00:00:cf:02"
	c.Capabilities["mac"] = mac
	if err := b.Add(c); err != nil {
		return asFailure("with runtimeConfig.mac", err)
	}
	return wantMAC(c, mac)
}

func capabilityIPs(b *bench, first *lab.Container, r *result) error {
	if err := b.Del(first); err != nil {
		return err
	}
	var ips []any
	for _, ip := range r.IPs {
		ips = append(ips, ip.Address)
	}
	// An IPAM plugin usually assigns the next address of its range. Only the capability makes it assign the same one.
	c, err := b.NewContainer()
	if err != nil {
		return err
	}
	c.Capabilities["ips"] = ips
	if err := b.Add(c); err != nil {
		return asFailure("with runtimeConfig.ips", err)
	}
	for _, ip := range ips {
		if !strings.Contains(c.Result(), `"`+ip.(string)+`"`) {
			return failf("ips: want %s as in runtimeConfig, got %s", ip, c.Result())
		}
	}
	return nil
}
