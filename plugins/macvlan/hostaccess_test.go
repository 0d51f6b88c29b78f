package main

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("hostAccess", func() {
	var b *nstest.Bed
	BeforeEach(func() { b = newBed() })

	withKeys := func(keys string) string {
		if keys != "" {
			keys = "," + keys
		}
		return conf("1.1.0", onUplink+keys, nstest.StaticDual)
	}

	// Without hostAccess, the spec waits for answers that must not arrive.
	It("connects the host and the container, and nothing else", func() { b.RequireHostAccess(withKeys) })

	It("works in each mode", func() {
		for _, mode := range []string{"private", "vepa", "passthru"} {
			b.RequireHostAccessDial(withKeys(`"hostAccess":true,"mode":"` + mode + `"`))
		}
	})

	It("connects the container before the master has a carrier", func() {
		b.Outside.IP("link set uplink0 down")
		container := nstest.New(GinkgoTB()) // with duplicate address detection
		c := b.Attach(b.Call("one", container, withKeys(`"hostAccess":true`)))
		b.OK("CHECK", c)
		nstest.MustDial(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), container, nstest.ContainerV4+":0").String(), nstest.HostV4)
		b.Outside.IP("link set uplink0 up")
		server := nstest.ServeTCP(GinkgoTB(), b.Host, "["+nstest.HostV6+"]:0").String()
		Eventually(func() error { _, err := nstest.Dial(container, server); return err }).Should(Succeed())
	})

	It("serves two interfaces of one container, one of them with a long name, and keeps a third one reachable", func() {
		container := b.NewContainer()
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "cni0", Addrs: []string{"10.9.0.1/24"}}, nstest.End{In: container, Name: "net0", Addrs: []string{"10.9.0.2/24"}})
		b.Host.IP("route change 10.9.0.0/24 dev cni0 src " + nstest.HostV4)
		container.IP("route add default via 10.9.0.1")
		for _, n := range []*nstest.NS{b.Host, container} {
			n.SetSysctl(GinkgoTB(), "net/ipv4/conf/default/rp_filter", "2")
		}
		restored := b.Restored(container)
		addrs := map[string]string{"eth0": "198.18.0.50", "pod6270ef7e9bb": "198.18.0.51"}
		var calls []nstest.Call
		for ifName, addr := range addrs {
			c := b.Call("one", container, conf("1.1.0", onUplink+`,"hostAccess":true`, nstest.Static(addr+"/24")))
			c.IfName = ifName
			calls = append(calls, b.Attach(c))
		}
		for i, c := range calls {
			// Without hostAccess, the answers from this address would be lost on the macvlan.
			nstest.MustDial(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), container, "10.9.0.2:0").String(), nstest.HostV4)
			for _, left := range calls[i:] {
				addr := addrs[left.IfName]
				nstest.MustDial(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), container, addr+":0").String(), nstest.HostV4)
				b.OK("CHECK", left)
			}
			b.OK("DEL", c)
		}
		restored()
	})

	It("follows the address of a lease", func() {
		dir, _ := nstest.NewIPAMScript(GinkgoTB(), "dhcp", `[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"198.18.0.60/24"}]}'`)
		c := b.NewCall(conf("1.0.0", onUplink+`,"hostAccess":true`, `{"type":"dhcp"}`))
		c.Path = dir
		c = b.Attach(c)
		c.Container.Batch(GinkgoTB(), "addr del 198.18.0.60/24 dev eth0", "addr add 198.18.0.61/24 dev eth0")
		b.Run("REPAIR", c.OnContainerSide()) // fails, because prevResult contains the old address
		nstest.MustDial(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), c.Container, "198.18.0.61:0").String(), nstest.HostV4)
		nstest.MustDial(GinkgoTB(), c.Container, nstest.ServeTCP(GinkgoTB(), b.Host, nstest.HostV4+":0").String(), "198.18.0.61")
	})

	It("is checked, repaired and deleted with the attachment", func() { b.RequireHostAccessVerbs(withKeys) })

	It("costs no request in a DEL whose prevResult lists no host end", func() {
		c := b.Attach(b.NewCall(withKeys("")))
		b.OK("DEL", c.FailAt("find link veth", errors.New("not now")))
	})

	It("rejects what it cannot serve", func() {
		b.RequireHostAccessRefusals(func(keys, ipam string) string { return conf("1.1.0", onUplink+","+keys, ipam) })
	})
})
