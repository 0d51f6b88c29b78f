package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("ADD", func() {
	var node *testNode
	BeforeEach(func() { node = newTestNode() })

	It("allocates addresses in order, and released ones after all others", func() {
		Expect(node.add("c1", variant{})).To(Equal("10.1.2.2/24"))
		Expect(node.add("c2", variant{})).To(Equal("10.1.2.3/24"))
		node.ok("DEL", "c1", variant{})
		Expect(node.add("c3", variant{})).To(Equal("10.1.2.4/24"))

		small := variant{network: "small", ipam: `"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.4"`}
		for _, want := range []string{"10.1.2.2/24", "10.1.2.3/24", "10.1.2.4/24"} {
			Expect(node.add("c"+want[7:8], small)).To(Equal(want))
		}
		node.ok("DEL", "c3", small)
		Expect(node.add("c5", small)).To(Equal("10.1.2.3/24"))
	})

	DescribeTable("allocates every usable address, then returns code 11", func(ipam, want string) {
		for i, ip := range strings.Fields(want) {
			Expect(node.add(fmt.Sprint("c", i), variant{ipam: ipam})).To(Equal(ip))
		}
		Expect(node.fails("ADD", "more", variant{ipam: ipam}).Code).To(Equal(uint(types.CodeTryAgain)))
	},
		Entry("of a /30", `"subnet": "10.1.2.0/30"`, "10.1.2.2/30"),
		Entry("of a /126", `"subnet": "fd00::/126"`, "fd00::2/126 fd00::3/126"),
		Entry("of a range with the gateway inside", `"subnet": "10.1.2.0/29", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.5", "gateway": "10.1.2.4"`, "10.1.2.3/29 10.1.2.5/29"),
		Entry("of two ranges in one set", `"ranges": [[{"subnet": "10.1.2.0/30"}, {"subnet": "10.1.4.0/28", "rangeStart": "10.1.4.9", "rangeEnd": "10.1.4.10"}]]`,
			"10.1.2.2/30 10.1.4.9/28 10.1.4.10/28"),
		Entry("of a range that includes the network and the broadcast address", `"subnet": "10.1.2.0/30", "rangeStart": "10.1.2.0", "rangeEnd": "10.1.2.3"`, "10.1.2.0/30 10.1.2.2/30 10.1.2.3/30"),
		Entry("of a subnet with excluded addresses", `"subnet": "10.1.2.0/28", "exclude": ["10.1.2.2", "10.1.2.4/30", "10.1.2.8/29"]`, "10.1.2.3/28"),
		Entry("of the last IPv4 subnet", `"subnet": "255.255.255.252/30", "rangeEnd": "255.255.255.255"`, "255.255.255.254/30 255.255.255.255/30"),
	)

	It("allocates one address per range set: ipRanges, the keys of ipam, ranges", func() {
		Expect(node.add("c1", variant{
			ipam: `"subnet": "10.2.0.0/24", "ranges": [[{"subnet": "10.3.0.0/24"}], [{"subnet": "fd00::/64"}]]`,
			more: `"runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}`,
		})).To(Equal("10.9.0.2/24 10.2.0.2/24 10.3.0.2/24 fd00::2/64"))
		for n, want := range []string{"10.9.0.2", "10.2.0.2", "10.3.0.2", "fd00::2"} {
			Expect(os.ReadFile(node.net(fmt.Sprint("last_reserved_ip.", n)))).To(BeEquivalentTo(want))
		}
	})

	It("writes the same files as the reference plugin", func() {
		node.add("c1", variant{})
		Expect(nstest.SnapshotDir(GinkgoTB(), filepath.Join(node.dataDir, "net"))).To(Equal(`drwxr-xr-x .
-rw------- 10.1.2.2 "c1\r\neth0"
-rw------- last_reserved_ip.0 "10.1.2.2"
-rwxr-x--- lock ""`))
	})

	DescribeTable("returns a result in the format of the CNI version", func(version, want string) {
		dns := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		Expect(os.WriteFile(dns, []byte("nameserver 10.0.0.53\nsearch example.org\n"), 0o600)).To(Succeed())
		r := node.run("ADD", "c1", variant{version: version, ipam: fmt.Sprintf(
			`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]], "routes": [{"dst": "0.0.0.0/0", "mtu": 1400}, {"dst": "fd01::/16", "gw": "fd00::9"}], "resolvConf": %q`, dns)}).OK(GinkgoTB())
		Expect(strings.Join(strings.Fields(r.Stdout), " ")).To(Equal(want))
	},
		Entry(nil, "0.2.0", `{ "cniVersion": "0.2.0", "ip4": { "ip": "10.1.2.2/24", "gateway": "10.1.2.1", "routes": [ { "dst": "0.0.0.0/0" } ] }, `+
			`"ip6": { "ip": "fd00::2/64", "gateway": "fd00::1", "routes": [ { "dst": "fd01::/16", "gw": "fd00::9" } ] }, `+
			`"dns": { "nameservers": [ "10.0.0.53" ], "search": [ "example.org" ] } }`),
		Entry(nil, "0.3.1", `{ "cniVersion": "0.3.1", "ips": [ { "version": "4", "address": "10.1.2.2/24", "gateway": "10.1.2.1" }, `+
			`{ "version": "6", "address": "fd00::2/64", "gateway": "fd00::1" } ], "routes": [ { "dst": "0.0.0.0/0", "mtu": 1400 }, { "dst": "fd01::/16", "gw": "fd00::9" } ], `+
			`"dns": { "nameservers": [ "10.0.0.53" ], "search": [ "example.org" ] } }`),
		Entry(nil, "1.1.0", `{ "cniVersion": "1.1.0", "ips": [ { "address": "10.1.2.2/24", "gateway": "10.1.2.1" }, `+
			`{ "address": "fd00::2/64", "gateway": "fd00::1" } ], "routes": [ { "dst": "0.0.0.0/0", "mtu": 1400 }, { "dst": "fd01::/16", "gw": "fd00::9" } ], `+
			`"dns": { "nameservers": [ "10.0.0.53" ], "search": [ "example.org" ] } }`),
	)

	DescribeTable("allocates the requested addresses", func(t variant, want string) {
		Expect(node.add("c1", t)).To(Equal(want))
	},
		Entry("in CNI_ARGS", variant{args: "IP=10.1.2.77"}, "10.1.2.77/24"),
		Entry("in CNI_ARGS with unknown keys", variant{args: "IgnoreUnknown=1;K8S_POD_NAME=a;IP=10.1.2.77/16"}, "10.1.2.77/24"),
		Entry("in args", variant{more: `"args": {"cni": {"ips": ["10.1.2.78"]}}`}, "10.1.2.78/24"),
		Entry("in runtimeConfig", variant{more: `"RuntimeConfig": {"IPs": ["10.1.2.79/24"]}`}, "10.1.2.79/24"),
		Entry("the same address in all three places", variant{args: "IP=10.1.2.7", more: `"args": {"cni": {"ips": ["10.1.2.7"]}}, "runtimeConfig": {"ips": ["10.1.2.7/24"]}`}, "10.1.2.7/24"),
		Entry("any address if IP in CNI_ARGS is empty", variant{args: "IP="}, "10.1.2.2/24"),
		Entry("in one of two sets", variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`, args: "IP=fd00::77"}, "10.1.2.2/24 fd00::77/64"),
		Entry("in both sets", variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`,
			more: `"runtimeConfig": {"ips": ["fd00::77", "10.1.2.9"]}`}, "10.1.2.9/24 fd00::77/64"),
	)

	It("returns code 7 if the network name is too long for a folder, and DEL succeeds", func() {
		long := variant{network: strings.Repeat("n", 256)}
		for _, command := range []string{"ADD", "CHECK"} {
			f := node.fails(command, "c1", long)
			Expect(f.Code).To(Equal(uint(types.CodeConfig)), command)
			Expect(f.Msg).To(Equal("the network's name is longer than 255 bytes, and no folder can have it"))
		}
		node.ok("DEL", "c1", long)
		node.add("c1", variant{network: strings.Repeat("n", 255)})
	})

	It("returns a gateway outside of the subnet, and warns of it only in a strict configuration", func() {
		slice := variant{ipam: `"subnet": "10.1.2.64/26", "gateway": "10.1.2.1"`}
		Expect(node.run("ADD", "c1", slice).Result(GinkgoTB()).IPs[0].Gateway.String()).To(Equal("10.1.2.1"))
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
			r := node.run(verb, map[string]string{"ADD": "c2", "CHECK": "c1", "DEL": "c1"}[verb], slice).OK(GinkgoTB())
			Expect(r.Stderr).To(BeEmpty(), verb)
		}
		slice.more = `"strict": true`
		Expect(node.run("ADD", "c3", slice).OK(GinkgoTB()).Stderr).To(Equal("host-local: warning: gateway 10.1.2.1 is outside of the subnet 10.1.2.64/26\n"))
	})

	DescribeTable("returns an error if a request cannot be met, and reserves nothing", func(t variant, code uint, want string) {
		node.put("10.1.2.9", "other\r\neth0")
		before := node.reserved()
		f := node.fails("ADD", "c1", t)
		Expect(f.Msg).To(ContainSubstring(want))
		Expect(f.Code).To(Equal(code))
		Expect(node.reserved()).To(Equal(before))
		Expect(node.net("last_reserved_ip.0")).NotTo(BeAnExistingFile())
	},
		Entry("the gateway", variant{args: "IP=10.1.2.1"}, uint(7), "failed to allocate for range 0: requested ip 10.1.2.1 is subnet's gateway"),
		Entry("reserved by another attachment", variant{args: "IP=10.1.2.9"}, uint(11),
			"failed to allocate for range 0: requested IP address 10.1.2.9 is not available in range set 10.1.2.1-10.1.2.254: 10.1.2.9 is allocated to other"),
		Entry("reserved by another attachment, in the second set", variant{ipam: `"ranges": [[{"subnet": "10.1.3.0/24"}], [{"subnet": "10.1.2.0/24"}]]`, args: "IP=10.1.2.9"}, uint(11),
			"failed to allocate for range 1: requested IP address 10.1.2.9 is not available"),
		Entry("an excluded address", variant{ipam: subnet + `, "exclude": ["10.1.2.8/30"]`, args: "IP=10.1.2.10"}, uint(7), "10.1.2.10"),
		Entry("a range set whose addresses are all excluded", variant{ipam: subnet + `, "exclude": ["10.1.0.0/16"]`}, uint(7),
			`range set 1 (10.1.2.0/24) has no usable address: all are excluded (the gateway always is); make the range larger or "exclude" smaller`),
		Entry("a range set that has only the gateway", variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24", "rangeEnd": "10.1.3.1"}]]`}, uint(7),
			"range set 2 (10.1.3.0/24) has no usable address"),
		Entry("an address outside of the ranges", variant{args: "IP=10.1.9.9"}, uint(7), "failed to allocate all requested IPs: 10.1.9.9"),
		Entry("two addresses in one set", variant{more: `"runtimeConfig": {"ips": ["10.1.2.5", "10.1.2.6", "10.7.7.7"]}`}, uint(7), "failed to allocate all requested IPs: 10.1.2.6 10.7.7.7"),
		Entry("not an address", variant{args: "IP=x"}, uint(7), `CNI_ARGS: IP: invalid IP address: "x"`),
		Entry("an unknown key in CNI_ARGS", variant{args: "K8S_POD_NAME=a"}, uint(4), "unknown args"),
		Entry("null in runtimeConfig.ips", variant{more: `"runtimeConfig": {"ips": [null]}`}, uint(7), `runtimeConfig.ips[0]: invalid IP address: ""`),
	)

	DescribeTable("returns code 101 if the attachment already has an address, and changes nothing", func(again variant) {
		two := variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		node.add("c1", two)
		before := node.reserved()
		f := node.fails("ADD", "c1", again)
		Expect(f.Code).To(Equal(uint(codeDuplicate)))
		Expect(f.Msg).To(MatchRegexp("^failed to allocate for range 0: (10.1.2.2|fd00::2) has been allocated to c1, duplicate allocation is not allowed$"))
		Expect(node.reserved()).To(Equal(before))
	},
		Entry("with the same configuration", variant{}),
		Entry("with a requested address", variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`, args: "IP=10.1.2.50"}),
		Entry("with other ranges", variant{ipam: `"subnet": "10.99.0.0/16"`}),
	)

	It("allocates another address for another interface of the container", func() {
		node.add("c1", variant{})
		Expect(node.add("c1", variant{ifName: "eth1"})).To(Equal("10.1.2.3/24"))
		Expect(node.add("c1", variant{network: "other"})).To(Equal("10.1.2.2/24"))
	})

	It("returns code 101 if the container has a legacy reservation in the range", func() {
		node.put("10.1.2.40", "c1")
		Expect(node.fails("ADD", "c1", variant{}).Msg).To(ContainSubstring("10.1.2.40 has been allocated to c1, duplicate"))
		Expect(node.add("c1", variant{ipam: `"subnet": "10.9.0.0/24"`})).To(Equal("10.9.0.2/24"))
	})

	It("releases the first address if a later set is exhausted", func() {
		two := variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
		node.add("c1", two)
		before := nstest.SnapshotDir(GinkgoTB(), node.net(""))
		f := node.fails("ADD", "c2", two)
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("failed to allocate for range 1: no IP addresses available in range set: 10.1.3.1-10.1.3.2"))
		Expect(nstest.SnapshotDir(GinkgoTB(), node.net(""))).To(Equal(before))
	})

	It("does not release an address that another owner has reserved since", func() {
		two := variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
		node.add("c1", two)
		locks := 0
		c := node.call("c2", two).With("ADD")
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "lock ") {
				if locks++; locks == 2 {
					node.put("10.1.2.3", "other\r\neth0")
				}
			}
			return nil
		}
		nstest.Run(node.plugin(), c).Failure(GinkgoTB())
		Expect(locks).To(Equal(2))
		Expect(node.reserved()).To(ContainElement("10.1.2.3 other/eth0"))
	})

	DescribeTable("allocates the address of an incomplete reservation if no other is free", func(content string) {
		for i := range 254 - 1 {
			node.put(fmt.Sprint("10.1.2.", 2+i), fmt.Sprint("c", i, "\r\neth0"))
		}
		Expect(node.fails("ADD", "new", variant{}).Code).To(Equal(uint(types.CodeTryAgain)))
		node.ok("DEL", "c198", variant{})
		node.put("10.1.2.200", content)
		Expect(node.add("new", variant{})).To(Equal("10.1.2.200/24"))
		Expect(os.ReadFile(node.net("10.1.2.200"))).To(BeEquivalentTo("new\r\neth0"))
	},
		Entry("an empty file", ""), Entry("zeros", "\x00\x00\x00\x00"), Entry("white space", "\r\n"), Entry("zeros after the interface name", "c1\r\neth0\x00\x00"),
	)

	It("does not allocate an address whose file is a folder or a symbolic link", func() {
		Expect(os.MkdirAll(node.net("10.1.2.2"), 0o755)).To(Succeed())
		Expect(os.Symlink("/nowhere", node.net("10.1.2.3"))).To(Succeed())
		Expect(node.add("c1", variant{})).To(Equal("10.1.2.4/24"))
		Expect(node.fails("ADD", "c2", variant{args: "IP=10.1.2.2"}).Msg).To(ContainSubstring("allocated to an unknown owner"))
	})

	It("begins at the start of the range if last_reserved_ip.0 has no usable address", func() {
		for _, text := range []string{"", "x", "10.7.7.7", "10.1.2.254", "10.7.7.7 or another\n", strings.Repeat("10.1.2.7 ", 1000)} {
			node.put("last_reserved_ip.0", text)
			Expect(node.add("c1", variant{})).To(Equal("10.1.2.2/24"))
			Expect(os.ReadFile(node.net("last_reserved_ip.0"))).To(BeEquivalentTo("10.1.2.2"))
			node.ok("DEL", "c1", variant{})
		}
	})

	It("returns code 5 if resolvConf does not exist, and makes no folder", func() {
		f := node.fails("ADD", "c1", variant{ipam: subnet + `, "resolvConf": "/nowhere"`})
		Expect(f.Code).To(Equal(uint(types.CodeIO)))
		Expect(node.dataDir).NotTo(BeADirectory())
	})
})

var _ = Describe("DEL", func() {
	var node *testNode
	BeforeEach(func() { node = newTestNode() })

	It("releases the addresses of the interface in all sets, and no others", func() {
		two := variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		node.add("c1", two)
		node.add("c2", two)
		two.ifName = "eth1"
		node.add("c1", two)
		node.ok("DEL", "c1", variant{})
		Expect(node.reserved()).To(Equal([]string{"10.1.2.3 c2/eth0", "10.1.2.4 c1/eth1", "fd00::3 c2/eth0", "fd00::4 c1/eth1"}))
		node.ok("DEL", "c1", variant{})
	})

	It("succeeds for an unknown attachment, and makes no folder", func() {
		node.ok("DEL", "c1", variant{})
		Expect(node.dataDir).NotTo(BeADirectory())
		node.add("c2", variant{})
		node.ok("DEL", "c1", variant{})
		Expect(node.reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	})

	DescribeTable("succeeds with an invalid configuration", func(t variant) {
		node.add("c1", variant{})
		node.ok("DEL", "c1", t)
		Expect(node.reserved()).To(BeEmpty())
	},
		Entry("without ranges", variant{ipam: `"ranges": []`}),
		Entry("with values of the wrong type", variant{ipam: `"ranges": "none", "cooldown": "long", "routes": 7`}),
		Entry("with null in lists", variant{ipam: `"ranges": [[null]]`, more: `"runtimeConfig": {"ips": [null]}`}),
		Entry("with malformed CNI_ARGS", variant{args: "nonsense"}),
		Entry("with an unknown key and strict", variant{ipam: subnet + `, "isGateway": true`, more: `"strict": true`}),
	)

	DescribeTable("releases reservations in every format", func(content string) {
		node.add("c2", variant{})
		node.put("10.1.2.40", content)
		node.ok("DEL", "c1", variant{})
		Expect(node.reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	},
		Entry("that of the reference plugin", "c1\r\neth0"),
		Entry("with a newline at the end", "c1\r\neth0\n"),
		Entry("the legacy format", "c1"),
	)

	It("releases legacy reservations only if the attachment has no others", func() {
		node.put("10.1.2.40", "c1")
		node.put("10.1.2.41", "c1\r\neth0")
		node.put("10.1.2.42", "c1\r\neth1")
		node.ok("DEL", "c1", variant{})
		Expect(node.reserved()).To(Equal([]string{"10.1.2.40 c1", "10.1.2.42 c1/eth1"}))
		node.ok("DEL", "c1", variant{})
		Expect(node.reserved()).To(Equal([]string{"10.1.2.42 c1/eth1"}))
	})

	It("does not release a reservation whose owner was changed in the file", func() {
		node.add("c1", variant{})
		node.put("10.1.2.2", "other\r\neth0")
		node.ok("DEL", "c1", variant{})
		Expect(node.reserved()).To(Equal([]string{"10.1.2.2 other/eth0"}))
		node.ok("DEL", "other", variant{})
		Expect(node.reserved()).To(BeEmpty())
	})
})

var _ = Describe("CHECK", func() {
	var node *testNode
	BeforeEach(func() { node = newTestNode() })

	prev := func(ips ...string) string {
		var list []string
		for _, ip := range ips {
			list = append(list, fmt.Sprintf(`{"address": %q}`, ip))
		}
		return fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "ips": [%s]}`, strings.Join(list, ", "))
	}

	It("succeeds after ADD, and for a legacy reservation", func() {
		node.add("c1", variant{})
		node.ok("CHECK", "c1", variant{})
		node.ok("CHECK", "c1", variant{more: prev("10.1.2.2/24")})
		node.ok("CHECK", "c1", variant{more: prev("10.1.2.2/24", "192.168.0.7/24")})
		node.put("10.1.2.40", "old")
		node.ok("CHECK", "old", variant{more: prev("10.1.2.40/24")})
	})

	DescribeTable("returns code 100 if the reservations differ from prevResult", func(id, more, want string) {
		node.add("c1", variant{})
		node.put("10.1.2.9", "c2\r\neth0")
		node.put("10.1.2.10", "c2\r\neth0")
		f := node.fails("CHECK", id, variant{more: more})
		Expect(f.Code).To(Equal(uint(codeNotReserved)))
		Expect(f.Msg).To(ContainSubstring(want))
	},
		Entry("no reservation", "c3", "", "no address is reserved for net/c3/eth0"),
		Entry("a reservation for another address", "c1", prev("10.1.2.9/24"), "address 10.1.2.9 is not reserved for net/c1/eth0"),
		Entry("a reservation that prevResult does not have", "c2", prev("10.1.2.9/24"), "address 10.1.2.10 is reserved for net/c2/eth0 but not in its result"),
	)

	It("succeeds if the address is now excluded", func() {
		node.add("c1", variant{})
		node.ok("CHECK", "c1", variant{ipam: subnet + `, "exclude": ["10.1.2.0/24"]`})
	})

	It("returns code 100 if there is no folder, and makes none", func() {
		Expect(node.fails("CHECK", "c1", variant{}).Code).To(Equal(uint(codeNotReserved)))
		Expect(node.dataDir).NotTo(BeADirectory())
	})
})

var _ = Describe("GC", func() {
	var node *testNode
	BeforeEach(func() { node = newTestNode() })

	DescribeTable("releases the reservations of attachments that are not valid, and no others", func(valid string, want ...string) {
		node.add("c1", variant{})
		node.add("c1", variant{ifName: "eth1"})
		node.add("c2", variant{})
		node.add("c2", variant{network: "other"})
		node.put("10.1.2.40", "c1")
		node.put("10.1.2.41", "c3")
		node.put("10.1.2.42", "")
		node.put("notes", "c9")
		node.ok("GC", "", variant{more: `"cni.dev/valid-attachments": ` + valid, ipam: `"ranges": "broken"`})
		Expect(node.reserved()).To(HaveExactElements(want))
		for _, name := range []string{"lock", "last_reserved_ip.0", "notes", "../other/10.1.2.2"} {
			Expect(node.net(name)).To(BeAnExistingFile())
		}
		Expect(node.add("new", variant{})).To(Equal("10.1.2.5/24"))
		node.ok("DEL", "c1", variant{})
	},
		Entry("one valid attachment", `[{"containerID": "c1", "ifname": "eth0"}]`, "10.1.2.2 c1/eth0", "10.1.2.40 c1"),
		Entry("another interface of the container with a legacy reservation is valid", `[{"containerID": "c1", "ifname": "eth7"}, {"containerID": "c2", "ifname": "eth0"}]`, "10.1.2.4 c2/eth0", "10.1.2.40 c1"),
		Entry("no valid attachment", `[]`),
	)

	It("succeeds without a folder, and makes none", func() {
		node.ok("GC", "", variant{more: `"cni.dev/valid-attachments": []`})
		Expect(node.dataDir).NotTo(BeADirectory())
	})
})

var _ = Describe("STATUS", func() {
	var node *testNode
	BeforeEach(func() { node = newTestNode() })

	It("succeeds before the first ADD, and makes no folder", func() {
		node.ok("STATUS", "", variant{})
		Expect(node.dataDir).NotTo(BeADirectory())
	})

	It("succeeds without ranges, because the runtime can pass them to ADD", func() {
		node.ok("STATUS", "", variant{ipam: `"routes": []`})
	})

	It("succeeds if the pool is exhausted", func() {
		t := variant{ipam: `"subnet": "10.1.2.0/30"`}
		node.add("c1", t)
		node.ok("STATUS", "", t)
		Expect(node.fails("ADD", "c2", t).Code).To(Equal(uint(types.CodeTryAgain)))
	})

	It("with failStatusWhenFull, returns code 50 and names each exhausted range set", func() {
		t := variant{ipam: `"failStatusWhenFull": true, "ranges": [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/24"}]]`}
		node.add("c1", t)
		f := node.fails("STATUS", "", t)
		Expect(f.Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(f.Msg).To(Equal("range set 1 (10.1.2.0/30): no IP addresses available in range set: 10.1.2.1-10.1.2.2"))
		node.ok("DEL", "c1", t)
		node.ok("STATUS", "", t)
	})

	It("returns code 50 if all addresses are excluded", func() {
		f := node.fails("STATUS", "", variant{ipam: subnet + `, "exclude": ["10.1.0.0/16"]`})
		Expect(f.Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(f.Msg).To(ContainSubstring("has no usable address"))
	})
})

var _ = Describe("cooldown", func() {
	var node *testNode
	BeforeEach(func() { node = newTestNode() })
	cool := variant{ipam: `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3", "cooldown": 30, "failStatusWhenFull": true`}

	It("ends after the configured time, and until then ADD does not allocate the address", func() {
		node.add("c1", cool)
		node.add("c2", cool)
		node.ok("DEL", "c1", cool)
		node.clock += 10 * time.Second
		node.ok("DEL", "c2", cool)
		f := node.fails("ADD", "c3", cool)
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.3 (released addresses that cool down: 2; the first is free in 20s)"))
		Expect(node.fails("STATUS", "", cool).Code).To(Equal(uint(types.CodeNotAvailable)))
		node.clock += 20 * time.Second
		Expect(node.add("c3", cool)).To(Equal("10.1.2.2/29"))
		node.fails("ADD", "c4", cool)
		node.clock += 10 * time.Second
		Expect(node.add("c4", cool)).To(Equal("10.1.2.3/29"))
	})

	It("begins also if the private folder was removed", func() {
		node.add("c1", cool)
		node.add("c2", cool)
		Expect(os.RemoveAll(filepath.Join(node.dataDir, ".plumb"))).To(Succeed())
		node.ok("DEL", "c1", cool)
		Expect(node.fails("ADD", "c3", cool).Msg).To(ContainSubstring("(released addresses that cool down: 1;"))
	})

	It("does not apply to a requested address, nor to a configuration without cooldown", func() {
		node.add("c1", cool)
		node.add("c2", cool)
		node.ok("DEL", "c1", cool)
		node.ok("DEL", "c2", cool)
		asks := cool
		asks.args = "IP=10.1.2.3"
		Expect(node.add("c3", asks)).To(Equal("10.1.2.3/29"))
		Expect(node.add("c4", variant{ipam: `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3"`})).To(Equal("10.1.2.2/29"))
	})

	It("ends at a reboot", func() {
		node.add("c1", cool)
		node.add("c2", cool)
		node.ok("DEL", "c1", cool)
		node.boot("another")
		node.clock += 5 * time.Second
		Expect(node.add("c3", cool)).To(Equal("10.1.2.2/29"))
	})

	It("does not begin when a failed ADD releases its address", func() {
		two := variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/30"}]], "cooldown": 30`}
		node.put("10.1.3.2", "other\r\neth0")
		node.fails("ADD", "c1", two)
		node.ok("DEL", "other", variant{})
		Expect(node.add("c1", two)).To(Equal("10.1.2.2/30 10.1.3.2/30"))
	})

	It("drops old releases from a large file of releases", func() {
		t := variant{ipam: `"subnet": "10.1.0.0/16", "cooldown": 3`}
		path := filepath.Join(node.dataDir, ".plumb", "net", "releases")
		for i := range 20 {
			node.add("c1", t)
			node.ok("DEL", "c1", t)
			node.clock += time.Second
			if i == 10 {
				text, err := os.ReadFile(path)
				Expect(err).NotTo(HaveOccurred())
				old := strings.Repeat(releaseText(ip("10.1.200.1"), time.Minute), 5000)
				Expect(os.WriteFile(path, append(text, old...), 0o600)).To(Succeed())
			}
		}
		text, err := os.ReadFile(path)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(text)).NotTo(ContainSubstring("10.1.200.1"))
		Expect(strings.Split(string(text), "\n")).To(HaveLen(1 + 2 + 9))
	})
})
