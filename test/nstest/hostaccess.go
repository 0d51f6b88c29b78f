package nstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// RequireHostAccess checks the key hostAccess of a plugin whose container is isolated from its master. conf returns a
// configuration with the keys and StaticDual. The bed's host must be that of a Site.
func (b *Bed) RequireHostAccess(conf func(keys string) string) {
	b.tb.Helper()
	b.Host.SetForwarding(b.tb, "1")
	for _, dev := range []string{"all", "default", Uplink} {
		b.Host.SetSysctl(b.tb, "net/ipv4/conf/"+dev+"/rp_filter", "1")
		b.Host.SetSysctl(b.tb, "net/ipv4/conf/"+dev+"/arp_ignore", "1")
		b.Host.SetSysctl(b.tb, "net/ipv4/conf/"+dev+"/arp_announce", "2")
	}
	without := b.NewCall(conf(""))
	b.OK("ADD", without)
	MustNotAnswer(b.tb, b.Host, ServeTCP(b.tb, without.Container, ContainerV4+":0").String())
	b.OK("DEL", without)

	restored := b.Restored(without.Container)
	c := b.Call("one", without.Container, conf(`"hostAccess":true`))
	reply := b.OK("ADD", c)
	c.Config = WithPrevResult(c.Config, reply.Stdout)
	b.dialBoth(c.Container)
	b.requireNoForwarding(c.Container)
	b.OK("CHECK", c)
	result := reply.Result(b.tb)
	if len(result.Interfaces) != 2 || result.Interfaces[0].Name != "eth0" || result.Interfaces[1].Sandbox != "" {
		b.tb.Errorf("want the interface and the host end in the result, got %+v", result.Interfaces)
	}
	if link := b.Host.IP("link show " + result.Interfaces[1].Name); !strings.Contains(link, "alias plumb:net1/one/eth0") {
		b.tb.Errorf("want an alias of the attachment, got %s", link)
	}
	b.OK("DEL", c)
	restored()
	b.requireNoHostEnd()

	b.tb.Logf("with a list of prefixes")
	b.Host.Batch(b.tb, "addr add 203.0.113.77/32 dev lo", "addr add 2001:db8:77::77/128 dev lo")
	c.Config = conf(`"hostAccess":["203.0.113.77/32","2001:db8:77::77/128"]`)
	c = b.Attach(c)
	for addr, peer := range map[string]string{"203.0.113.77": ContainerV4, "2001:db8:77::77": ContainerV6} {
		MustDial(b.tb, c.Container, ServeTCP(b.tb, b.Host, net.JoinHostPort(addr, "0")).String(), peer)
		MustDial(b.tb, b.Host, ServeTCP(b.tb, c.Container, net.JoinHostPort(peer, "0")).String(), addr)
	}
	if route := c.Container.IP("route get " + HostV4); !strings.Contains(route, "dev eth0") {
		b.tb.Errorf("want packets to addresses that are not listed to leave through eth0, got %s", route)
	}
	b.OK("CHECK", c)
	b.OK("DEL", c)
}

// RequireHostAccessDial checks that the host and a container with StaticDual reach each other.
func (b *Bed) RequireHostAccessDial(conf string) {
	b.tb.Helper()
	c := b.Attach(b.NewCall(conf))
	b.dialBoth(c.Container)
	b.OK("CHECK", c)
	b.OK("DEL", c)
}

func (b *Bed) dialBoth(container *NS) {
	b.tb.Helper()
	for _, pair := range [][2]string{{HostV4, ContainerV4}, {HostV6, ContainerV6}} {
		MustDial(b.tb, b.Host, ServeTCP(b.tb, container, net.JoinHostPort(pair[1], "0")).String(), pair[0])
		MustDial(b.tb, container, ServeTCP(b.tb, b.Host, net.JoinHostPort(pair[0], "0")).String(), pair[1])
	}
}

// requireNoForwarding checks that the host forwards no packets from the pair and into the pair.
func (b *Bed) requireNoForwarding(container *NS) {
	b.tb.Helper()
	third := NewHost(b.tb).Named("third")
	Join(b.tb, End{b.Host, "third0", []string{"203.0.113.1/24", "2001:db8:113::1/64"}}, End{third, "third0", []string{"203.0.113.2/24", "2001:db8:113::2/64"}})
	container.Batch(b.tb, "route add 203.0.113.0/24 via 169.254.113.1 dev h-eth0 onlink", "route add 2001:db8:113::/64 via fe80::1 dev h-eth0")
	for addr, want := range map[string]error{"203.0.113.2": syscall.EHOSTUNREACH, "2001:db8:113::2": syscall.EACCES} {
		if _, err := Dial(container, net.JoinHostPort(addr, "80")); !errors.Is(err, want) {
			b.tb.Errorf("dial %s through the pair: want %v, got %v", addr, want, err)
		}
	}
	for to, from := range map[string]string{ContainerV4: "203.0.113.2", ContainerV6: "2001:db8:113::2"} {
		if route := b.Host.IP("route get " + to + " from " + from + " iif third0"); !strings.Contains(route, "dev "+Uplink) {
			b.tb.Errorf("want forwarded packets to leave through the master, got %s", route)
		}
		if route := b.Host.IP("route get " + to); !strings.Contains(route, "dev veth") {
			b.tb.Errorf("want the host's packets to leave through the pair, got %s", route)
		}
	}
	b.Host.IP("link del third0")
	container.Batch(b.tb, "route del 203.0.113.0/24 dev h-eth0", "route del 2001:db8:113::/64 dev h-eth0")
}

// requireNoHostEnd checks that the host contains no host end, and no rule of one.
func (b *Bed) requireNoHostEnd() {
	b.tb.Helper()
	state := b.Host.IP("-br link show group default type veth") + b.Host.IP("-4 rule") + b.Host.IP("-6 rule")
	if strings.Contains(state, "veth") && strings.Contains(strings.ReplaceAll(state, "uplink0", ""), "veth") {
		b.tb.Errorf("want no host end and no rule, got\n%s", state)
	}
}

// RequireHostAccessVerbs checks CHECK, REPAIR, DEL and GC of a plugin with the key hostAccess.
func (b *Bed) RequireHostAccessVerbs(conf func(keys string) string) {
	b.tb.Helper()
	c := b.Attach(b.NewCall(conf(`"hostAccess":true`)))
	prev := struct {
		PrevResult struct{ Interfaces []struct{ Name string } }
	}{}
	must(b.tb, json.Unmarshal([]byte(c.Config), &prev))
	hostEnd := prev.PrevResult.Interfaces[1].Name
	b.Omit = append(b.Omit, "/conf/") // no test of the sysctls' order
	for line, text := range map[string]string{
		"link set " + hostEnd + " down":                                               "hostAccess: interface " + hostEnd + " is down",
		"route flush table 11300 dev " + hostEnd:                                      "hostAccess: interface " + hostEnd + " has no route 198.18.0.50/32 via 169.254.113.1 table 11300",
		"-6 route flush table 11300":                                                  "has no route 2001:db8:18::50/128",
		"rule del iif lo lookup 11300":                                                "hostAccess: no rule -4 iif lo lookup 11300",
		"rule del iif " + hostEnd + " prohibit":                                       "hostAccess: no rule -4 iif " + hostEnd + " prohibit",
		"-6 rule del iif " + hostEnd + " prohibit":                                    "hostAccess: no rule -6 iif " + hostEnd + " prohibit",
		"neigh del 169.254.113.1 dev " + hostEnd:                                      "hostAccess: interface " + hostEnd + " has no permanent neighbor entry 169.254.113.1",
		"neigh replace fe80::1 lladdr 02:00:00:00:00:01 nud permanent dev " + hostEnd: "has no permanent neighbor entry fe80::1",
	} {
		b.tb.Logf("REPAIR after %s", line)
		b.RequireRepair(c, func() { b.Host.IP(line) }, text)
	}
	for line, text := range map[string]string{
		"link set h-eth0 down":               "hostAccess: interface h-eth0 is down",
		"rule del from 198.18.0.50":          "hostAccess: no rule -4 from 198.18.0.50 iif lo lookup ",
		"neigh del 169.254.113.1 dev h-eth0": "hostAccess: interface h-eth0 has no permanent neighbor entry",
	} {
		b.tb.Logf("REPAIR of the container's side after %s", line)
		b.RequireContainerRepair(c, func() { c.Container.IP(line) }, text)
	}
	b.tb.Logf("REPAIR after the address of the master has changed")
	b.Host.Batch(b.tb, "addr del 198.18.0.1/24 dev "+Uplink, "addr add 198.18.0.3/24 dev "+Uplink)
	b.Fails("CHECK", c, types.CodeChanged, "hostAccess: interface h-eth0 has no route 198.18.0.3/32")
	b.OK("REPAIR", c.OnContainerSide())
	MustDial(b.tb, b.Host, ServeTCP(b.tb, c.Container, ContainerV4+":0").String(), "198.18.0.3")
	if routes := c.Container.IP("route show table all"); strings.Contains(routes, "198.18.0.1 ") || !strings.Contains(routes, "198.18.0.3 ") {
		b.tb.Errorf("want the route to the new address only, got\n%s", routes)
	}
	b.Host.Batch(b.tb, "addr flush dev "+Uplink)
	b.Fails("CHECK", c, types.CodeChanged, "hostAccess: master uplink0 has no address")
	b.RequireNoRepair(c, func() { c.Container.IP("link del h-eth0") }, "hostAccess: the host lacks the other end of the veth pair")
	b.OK("DEL", c)
	b.requireNoHostEnd()

	b.Host.Batch(b.tb, "addr add "+HostV4+"/24 dev "+Uplink)
	for _, del := range []func(Call) Call{
		func(c Call) Call { c.Container = nil; return c },
		func(c Call) Call { c.Config = conf(""); return c },
		func(c Call) Call { c.Config = conf(`"hostAccess":[5]`); c.Container = nil; return c },
		func(c Call) Call { c.Container.Remove(b.tb); return c },
	} {
		c := b.NewCall(conf(`"hostAccess":true`))
		b.OK("ADD", c)
		b.OK("DEL", del(c))
		b.requireNoHostEnd()
		if c.Container.FD() >= 0 {
			b.OK("DEL", c) // an ipvlan that is left uses the address
		}
	}
	b.OK("ADD", b.NewCall(conf(`"hostAccess":true`)))
	gc := func(valid string) {
		b.OK("GC", b.Call("", nil, conf(`"cni.dev/valid-attachments":[`+valid+`]`)))
	}
	gc(`{"containerID":"one","ifname":"eth0"}`)
	if rules := b.Host.IP("-6 rule"); !strings.Contains(rules, "iif veth") {
		b.tb.Errorf("want GC to keep a valid attachment, got %s", rules)
	}
	gc("")
	b.requireNoHostEnd()
}

// RequireHostAccessRefusals checks the errors of the key hostAccess. conf returns a configuration with the keys and an IPAM
// configuration.
func (b *Bed) RequireHostAccessRefusals(conf func(keys, ipam string) string) {
	b.tb.Helper()
	b.Watch = append(b.Watch, b.Host)
	for value, text := range map[string]string{
		`"yes"`:                         `hostAccess "yes" must be true, false or a list of addresses`,
		`[]`:                            "hostAccess must not be an empty list",
		`["10.0.0.1"]`:                  `hostAccess[0] "10.0.0.1" must be an address of the host with /32 or /128`,
		`["198.18.0.0/26"]`:             `hostAccess[0] "198.18.0.0/26" must be a single address`,
		`["127.0.0.1/32"]`:              `hostAccess[0] "127.0.0.1/32" must not be a loopback`,
		`["fe80::1/128"]`:               `hostAccess[0] "fe80::1/128" must not be a loopback, link-local`,
		`["fd00::1/128",5]`:             "hostAccess[1] 5 must be an address",
		`["::/0"]`:                      `hostAccess[0] "::/0" must be a single address`,
		`["fd00::1/128","fd00::1/128"]`: `hostAccess[1] "fd00::1/128" is listed twice`,
		`["192.0.2.1/32"]`:              "hostAccess[0] 192.0.2.1 is not an address of the host",
	} {
		b.Refuse(b.NewCall(conf(`"hostAccess":`+value, StaticDual)), types.CodeConfig, text)
	}
	b.Refuse(b.NewCall(conf(`"hostAccess":true`, "")), types.CodeConfig, `hostAccess needs addresses of the container; set "ipam"`)
	b.Refuse(b.NewCall(conf(`"hostAccess":true,"linkInContainer":true`, StaticDual)), types.CodeConfig, "hostAccess needs a master on the host; remove linkInContainer")
	b.Refuse(b.NewCall(conf(`"hostAccess":true`, Static(HostV4+"/24"))), types.CodeConfig, "hostAccess: "+HostV4+", the container's address, is also an address of the host")
	b.RequireStatus(conf(`"hostAccess":["192.0.2.1/32"]`, StaticDual), "hostAccess[0] 192.0.2.1 is not an address of the host")
	b.Host.IP("addr add " + ContainerV4 + "/32 dev lo")
	b.Refuse(b.NewCall(conf(`"hostAccess":true`, StaticDual)), types.CodeConfig, "hostAccess: "+ContainerV4+", the container's address, is also an address of the host")
	b.Host.Batch(b.tb, "addr del "+ContainerV4+"/32 dev lo", "addr add "+HostV4+"/16 dev "+Uplink)
	twice := b.Attach(b.NewCall(conf(`"hostAccess":true`, StaticDual)))
	b.OK("DEL", twice)
	b.Host.IP("addr del " + HostV4 + "/16 dev " + Uplink)
	c := b.NewCall(conf(`"hostAccess":true`, StaticDual))
	c.Container.IP("link add h-eth0 type veth peer name other0")
	b.Refuse(c, types.CodeConfig, `interface "h-eth0" already exists in container`)
	b.Host.IP("-4 addr flush dev " + Uplink)
	b.Refuse(b.NewCall(conf(`"hostAccess":true`, StaticV4)), types.CodeConfig, fmt.Sprintf("hostAccess: master %s has no address with the family of an address of the container", Uplink))
}
