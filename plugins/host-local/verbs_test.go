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
	var b *bed
	BeforeEach(func() { b = newBed() })

	It("allocates addresses in order, and released ones after all others", func() {
		Expect(b.add("c1", try{})).To(Equal("10.1.2.2/24"))
		Expect(b.add("c2", try{})).To(Equal("10.1.2.3/24"))
		b.ok("DEL", "c1", try{})
		Expect(b.add("c3", try{})).To(Equal("10.1.2.4/24"))

		small := try{network: "small", ipam: `"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.4"`}
		for _, want := range []string{"10.1.2.2/24", "10.1.2.3/24", "10.1.2.4/24"} {
			Expect(b.add("c"+want[7:8], small)).To(Equal(want))
		}
		b.ok("DEL", "c3", small)
		Expect(b.add("c5", small)).To(Equal("10.1.2.3/24"))
	})

	DescribeTable("allocates every usable address, then returns code 11", func(ipam, want string) {
		for i, ip := range strings.Fields(want) {
			Expect(b.add(fmt.Sprint("c", i), try{ipam: ipam})).To(Equal(ip))
		}
		Expect(b.fails("ADD", "more", try{ipam: ipam}).Code).To(Equal(uint(types.CodeTryAgain)))
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
		Expect(b.add("c1", try{
			ipam: `"subnet": "10.2.0.0/24", "ranges": [[{"subnet": "10.3.0.0/24"}], [{"subnet": "fd00::/64"}]]`,
			more: `"runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}`,
		})).To(Equal("10.9.0.2/24 10.2.0.2/24 10.3.0.2/24 fd00::2/64"))
		for n, want := range []string{"10.9.0.2", "10.2.0.2", "10.3.0.2", "fd00::2"} {
			Expect(os.ReadFile(b.net(fmt.Sprint("last_reserved_ip.", n)))).To(BeEquivalentTo(want))
		}
	})

	It("writes the same files as the reference plugin", func() {
		b.add("c1", try{})
		Expect(nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.dataDir, "net"))).To(Equal(`drwxr-xr-x .
-rw------- 10.1.2.2 "c1\r\neth0"
-rw------- last_reserved_ip.0 "10.1.2.2"
-rwxr-x--- lock ""`))
	})

	DescribeTable("returns a result in the format of the CNI version", func(version, want string) {
		dns := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		Expect(os.WriteFile(dns, []byte("nameserver 10.0.0.53\nsearch example.org\n"), 0o600)).To(Succeed())
		r := b.run("ADD", "c1", try{version: version, ipam: fmt.Sprintf(
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

	DescribeTable("allocates the requested addresses", func(t try, want string) {
		Expect(b.add("c1", t)).To(Equal(want))
	},
		Entry("in CNI_ARGS", try{args: "IP=10.1.2.77"}, "10.1.2.77/24"),
		Entry("in CNI_ARGS with unknown keys", try{args: "IgnoreUnknown=1;K8S_POD_NAME=a;IP=10.1.2.77/16"}, "10.1.2.77/24"),
		Entry("in args", try{more: `"args": {"cni": {"ips": ["10.1.2.78"]}}`}, "10.1.2.78/24"),
		Entry("in runtimeConfig", try{more: `"RuntimeConfig": {"IPs": ["10.1.2.79/24"]}`}, "10.1.2.79/24"),
		Entry("the same address in all three places", try{args: "IP=10.1.2.7", more: `"args": {"cni": {"ips": ["10.1.2.7"]}}, "runtimeConfig": {"ips": ["10.1.2.7/24"]}`}, "10.1.2.7/24"),
		Entry("any address if IP in CNI_ARGS is empty", try{args: "IP="}, "10.1.2.2/24"),
		Entry("in one of two sets", try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`, args: "IP=fd00::77"}, "10.1.2.2/24 fd00::77/64"),
		Entry("in both sets", try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`,
			more: `"runtimeConfig": {"ips": ["fd00::77", "10.1.2.9"]}`}, "10.1.2.9/24 fd00::77/64"),
	)

	It("returns code 7 if the network name is too long for a folder, and DEL succeeds", func() {
		long := try{network: strings.Repeat("n", 256)}
		for _, command := range []string{"ADD", "CHECK"} {
			f := b.fails(command, "c1", long)
			Expect(f.Code).To(Equal(uint(types.CodeConfig)), command)
			Expect(f.Msg).To(Equal("the network's name is longer than 255 bytes, and no folder can have it"))
		}
		b.ok("DEL", "c1", long)
		b.add("c1", try{network: strings.Repeat("n", 255)})
	})

	It("returns a gateway outside of the subnet, and warns of it only in a strict configuration", func() {
		slice := try{ipam: `"subnet": "10.1.2.64/26", "gateway": "10.1.2.1"`}
		Expect(b.run("ADD", "c1", slice).Result(GinkgoTB()).IPs[0].Gateway.String()).To(Equal("10.1.2.1"))
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
			r := b.run(verb, map[string]string{"ADD": "c2", "CHECK": "c1", "DEL": "c1"}[verb], slice).OK(GinkgoTB())
			Expect(r.Stderr).To(BeEmpty(), verb)
		}
		slice.more = `"strict": true`
		Expect(b.run("ADD", "c3", slice).OK(GinkgoTB()).Stderr).To(Equal("host-local: warning: gateway 10.1.2.1 is outside of the subnet 10.1.2.64/26\n"))
	})

	DescribeTable("returns an error if a request cannot be met, and reserves nothing", func(t try, code uint, want string) {
		b.put("10.1.2.9", "other\r\neth0")
		before := b.reserved()
		f := b.fails("ADD", "c1", t)
		Expect(f.Msg).To(ContainSubstring(want))
		Expect(f.Code).To(Equal(code))
		Expect(b.reserved()).To(Equal(before))
		Expect(b.net("last_reserved_ip.0")).NotTo(BeAnExistingFile())
	},
		Entry("the gateway", try{args: "IP=10.1.2.1"}, uint(7), "failed to allocate for range 0: requested ip 10.1.2.1 is subnet's gateway"),
		Entry("reserved by another attachment", try{args: "IP=10.1.2.9"}, uint(11),
			"failed to allocate for range 0: requested IP address 10.1.2.9 is not available in range set 10.1.2.1-10.1.2.254: 10.1.2.9 is allocated to other"),
		Entry("reserved by another attachment, in the second set", try{ipam: `"ranges": [[{"subnet": "10.1.3.0/24"}], [{"subnet": "10.1.2.0/24"}]]`, args: "IP=10.1.2.9"}, uint(11),
			"failed to allocate for range 1: requested IP address 10.1.2.9 is not available"),
		Entry("an excluded address", try{ipam: subnet + `, "exclude": ["10.1.2.8/30"]`, args: "IP=10.1.2.10"}, uint(7), "10.1.2.10"),
		Entry("a range set whose addresses are all excluded", try{ipam: subnet + `, "exclude": ["10.1.0.0/16"]`}, uint(7),
			`range set 1 (10.1.2.0/24) has no usable address: all are excluded (the gateway always is); make the range larger or "exclude" smaller`),
		Entry("a range set that has only the gateway", try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24", "rangeEnd": "10.1.3.1"}]]`}, uint(7),
			"range set 2 (10.1.3.0/24) has no usable address"),
		Entry("an address outside of the ranges", try{args: "IP=10.1.9.9"}, uint(7), "failed to allocate all requested IPs: 10.1.9.9"),
		Entry("two addresses in one set", try{more: `"runtimeConfig": {"ips": ["10.1.2.5", "10.1.2.6", "10.7.7.7"]}`}, uint(7), "failed to allocate all requested IPs: 10.1.2.6 10.7.7.7"),
		Entry("not an address", try{args: "IP=x"}, uint(7), "CNI_ARGS: IP: invalid IP address: x"),
		Entry("an unknown key in CNI_ARGS", try{args: "K8S_POD_NAME=a"}, uint(4), "unknown args"),
		Entry("null in runtimeConfig.ips", try{more: `"runtimeConfig": {"ips": [null]}`}, uint(7), "runtimeConfig.ips[0] is null"),
	)

	DescribeTable("returns code 101 if the attachment already has an address, and changes nothing", func(again try) {
		two := try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		b.add("c1", two)
		before := b.reserved()
		f := b.fails("ADD", "c1", again)
		Expect(f.Code).To(Equal(uint(codeDuplicate)))
		Expect(f.Msg).To(MatchRegexp("^failed to allocate for range 0: (10.1.2.2|fd00::2) has been allocated to c1, duplicate allocation is not allowed$"))
		Expect(b.reserved()).To(Equal(before))
	},
		Entry("with the same configuration", try{}),
		Entry("with a requested address", try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`, args: "IP=10.1.2.50"}),
		Entry("with other ranges", try{ipam: `"subnet": "10.99.0.0/16"`}),
	)

	It("allocates another address for another interface of the container", func() {
		b.add("c1", try{})
		Expect(b.add("c1", try{ifName: "eth1"})).To(Equal("10.1.2.3/24"))
		Expect(b.add("c1", try{network: "other"})).To(Equal("10.1.2.2/24"))
	})

	It("returns code 101 if the container has a legacy reservation in the range", func() {
		b.put("10.1.2.40", "c1")
		Expect(b.fails("ADD", "c1", try{}).Msg).To(ContainSubstring("10.1.2.40 has been allocated to c1, duplicate"))
		Expect(b.add("c1", try{ipam: `"subnet": "10.9.0.0/24"`})).To(Equal("10.9.0.2/24"))
	})

	It("releases the first address if a later set is exhausted", func() {
		two := try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
		b.add("c1", two)
		before := nstest.SnapshotDir(GinkgoTB(), b.net(""))
		f := b.fails("ADD", "c2", two)
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("failed to allocate for range 1: no IP addresses available in range set: 10.1.3.1-10.1.3.2"))
		Expect(nstest.SnapshotDir(GinkgoTB(), b.net(""))).To(Equal(before))
	})

	It("does not release an address that another owner has reserved since", func() {
		two := try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
		b.add("c1", two)
		locks := 0
		c := b.call("c2", two).With("ADD")
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "lock ") {
				if locks++; locks == 2 {
					b.put("10.1.2.3", "other\r\neth0")
				}
			}
			return nil
		}
		nstest.Run(b.plugin(), c).Failure(GinkgoTB())
		Expect(locks).To(Equal(2))
		Expect(b.reserved()).To(ContainElement("10.1.2.3 other/eth0"))
	})

	DescribeTable("allocates the address of an incomplete reservation if no other is free", func(content string) {
		for i := range 254 - 1 {
			b.put(fmt.Sprint("10.1.2.", 2+i), fmt.Sprint("c", i, "\r\neth0"))
		}
		Expect(b.fails("ADD", "new", try{}).Code).To(Equal(uint(types.CodeTryAgain)))
		b.put("10.1.2.200", content)
		Expect(b.add("new", try{})).To(Equal("10.1.2.200/24"))
		Expect(os.ReadFile(b.net("10.1.2.200"))).To(BeEquivalentTo("new\r\neth0"))
	},
		Entry("an empty file", ""), Entry("zeros", "\x00\x00\x00\x00"), Entry("white space", "\r\n"), Entry("zeros after the interface name", "c1\r\neth0\x00\x00"),
	)

	It("does not allocate an address whose file is a folder or a symbolic link", func() {
		Expect(os.MkdirAll(b.net("10.1.2.2"), 0o755)).To(Succeed())
		Expect(os.Symlink("/nowhere", b.net("10.1.2.3"))).To(Succeed())
		Expect(b.add("c1", try{})).To(Equal("10.1.2.4/24"))
		Expect(b.fails("ADD", "c2", try{args: "IP=10.1.2.2"}).Msg).To(ContainSubstring("allocated to an unknown owner"))
	})

	It("begins at the start of the range if last_reserved_ip.0 has no usable address", func() {
		for _, text := range []string{"", "x", "10.7.7.7", "10.1.2.254", "10.7.7.7 or another\n", strings.Repeat("10.1.2.7 ", 1000)} {
			b.put("last_reserved_ip.0", text)
			Expect(b.add("c1", try{})).To(Equal("10.1.2.2/24"))
			Expect(os.ReadFile(b.net("last_reserved_ip.0"))).To(BeEquivalentTo("10.1.2.2"))
			b.ok("DEL", "c1", try{})
		}
	})

	It("returns code 5 if resolvConf does not exist, and makes no folder", func() {
		f := b.fails("ADD", "c1", try{ipam: subnet + `, "resolvConf": "/nowhere"`})
		Expect(f.Code).To(Equal(uint(types.CodeIO)))
		Expect(b.dataDir).NotTo(BeADirectory())
	})
})

var _ = Describe("DEL", func() {
	var b *bed
	BeforeEach(func() { b = newBed() })

	It("releases the addresses of the interface in all sets, and no others", func() {
		two := try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		b.add("c1", two)
		b.add("c2", two)
		two.ifName = "eth1"
		b.add("c1", two)
		b.ok("DEL", "c1", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.3 c2/eth0", "10.1.2.4 c1/eth1", "fd00::3 c2/eth0", "fd00::4 c1/eth1"}))
		b.ok("DEL", "c1", try{})
	})

	It("succeeds for an unknown attachment, and makes no folder", func() {
		b.ok("DEL", "c1", try{})
		Expect(b.dataDir).NotTo(BeADirectory())
		b.add("c2", try{})
		b.ok("DEL", "c1", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	})

	DescribeTable("succeeds with an invalid configuration", func(t try) {
		b.add("c1", try{})
		b.ok("DEL", "c1", t)
		Expect(b.reserved()).To(BeEmpty())
	},
		Entry("without ranges", try{ipam: `"ranges": []`}),
		Entry("with values of the wrong type", try{ipam: `"ranges": "none", "cooldown": "long", "routes": 7`}),
		Entry("with null in lists", try{ipam: `"ranges": [[null]]`, more: `"runtimeConfig": {"ips": [null]}`}),
		Entry("with malformed CNI_ARGS", try{args: "nonsense"}),
		Entry("with an unknown key and strict", try{ipam: subnet + `, "isGateway": true`, more: `"strict": true`}),
	)

	DescribeTable("releases reservations in every format", func(content string) {
		b.add("c2", try{})
		b.put("10.1.2.40", content)
		b.ok("DEL", "c1", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	},
		Entry("that of the reference plugin", "c1\r\neth0"),
		Entry("with a newline at the end", "c1\r\neth0\n"),
		Entry("the legacy format", "c1"),
	)

	It("releases legacy reservations only if the attachment has no others", func() {
		b.put("10.1.2.40", "c1")
		b.put("10.1.2.41", "c1\r\neth0")
		b.put("10.1.2.42", "c1\r\neth1")
		b.ok("DEL", "c1", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.40 c1", "10.1.2.42 c1/eth1"}))
		b.ok("DEL", "c1", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.42 c1/eth1"}))
	})

	It("does not release a reservation whose owner was changed in the file", func() {
		b.add("c1", try{})
		b.put("10.1.2.2", "other\r\neth0")
		b.ok("DEL", "c1", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 other/eth0"}))
		b.ok("DEL", "other", try{})
		Expect(b.reserved()).To(BeEmpty())
	})
})

var _ = Describe("CHECK", func() {
	var b *bed
	BeforeEach(func() { b = newBed() })

	prev := func(ips ...string) string {
		var list []string
		for _, ip := range ips {
			list = append(list, fmt.Sprintf(`{"address": %q}`, ip))
		}
		return fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "ips": [%s]}`, strings.Join(list, ", "))
	}

	It("succeeds after ADD, and for a legacy reservation", func() {
		b.add("c1", try{})
		b.ok("CHECK", "c1", try{})
		b.ok("CHECK", "c1", try{more: prev("10.1.2.2/24")})
		b.ok("CHECK", "c1", try{more: prev("10.1.2.2/24", "192.168.0.7/24")})
		b.put("10.1.2.40", "old")
		b.ok("CHECK", "old", try{more: prev("10.1.2.40/24")})
	})

	DescribeTable("returns code 100 if the reservations differ from prevResult", func(id, more, want string) {
		b.add("c1", try{})
		b.put("10.1.2.9", "c2\r\neth0")
		b.put("10.1.2.10", "c2\r\neth0")
		f := b.fails("CHECK", id, try{more: more})
		Expect(f.Code).To(Equal(uint(codeNotReserved)))
		Expect(f.Msg).To(ContainSubstring(want))
	},
		Entry("no reservation", "c3", "", "no address is reserved for net/c3/eth0"),
		Entry("a reservation for another address", "c1", prev("10.1.2.9/24"), "address 10.1.2.9 is not reserved for net/c1/eth0"),
		Entry("a reservation that prevResult does not have", "c2", prev("10.1.2.9/24"), "address 10.1.2.10 is reserved for net/c2/eth0 but not in its result"),
	)

	It("succeeds if the address is now excluded", func() {
		b.add("c1", try{})
		b.ok("CHECK", "c1", try{ipam: subnet + `, "exclude": ["10.1.2.0/24"]`})
	})

	It("returns code 100 if there is no folder, and makes none", func() {
		Expect(b.fails("CHECK", "c1", try{}).Code).To(Equal(uint(codeNotReserved)))
		Expect(b.dataDir).NotTo(BeADirectory())
	})
})

var _ = Describe("GC", func() {
	var b *bed
	BeforeEach(func() { b = newBed() })

	DescribeTable("releases the reservations of attachments that are not valid, and no others", func(valid string, want ...string) {
		b.add("c1", try{})
		b.add("c1", try{ifName: "eth1"})
		b.add("c2", try{})
		b.add("c2", try{network: "other"})
		b.put("10.1.2.40", "c1")
		b.put("10.1.2.41", "c3")
		b.put("10.1.2.42", "")
		b.put("notes", "c9")
		b.ok("GC", "", try{more: `"cni.dev/valid-attachments": ` + valid, ipam: `"ranges": "broken"`})
		Expect(b.reserved()).To(HaveExactElements(want))
		for _, name := range []string{"lock", "last_reserved_ip.0", "notes", "../other/10.1.2.2"} {
			Expect(b.net(name)).To(BeAnExistingFile())
		}
		Expect(b.add("new", try{})).To(Equal("10.1.2.5/24"))
		b.ok("DEL", "c1", try{})
	},
		Entry("one valid attachment", `[{"containerID": "c1", "ifname": "eth0"}]`, "10.1.2.2 c1/eth0", "10.1.2.40 c1"),
		Entry("another interface of the container with a legacy reservation is valid", `[{"containerID": "c1", "ifname": "eth7"}, {"containerID": "c2", "ifname": "eth0"}]`, "10.1.2.4 c2/eth0", "10.1.2.40 c1"),
		Entry("no valid attachment", `[]`),
	)

	It("succeeds without a folder, and makes none", func() {
		b.ok("GC", "", try{more: `"cni.dev/valid-attachments": []`})
		Expect(b.dataDir).NotTo(BeADirectory())
	})
})

var _ = Describe("STATUS", func() {
	var b *bed
	BeforeEach(func() { b = newBed() })

	It("succeeds before the first ADD, and makes no folder", func() {
		b.ok("STATUS", "", try{})
		Expect(b.dataDir).NotTo(BeADirectory())
	})

	It("succeeds without ranges, because the runtime can pass them to ADD", func() {
		b.ok("STATUS", "", try{ipam: `"routes": []`})
	})

	It("succeeds if the pool is exhausted", func() {
		t := try{ipam: `"subnet": "10.1.2.0/30"`}
		b.add("c1", t)
		b.ok("STATUS", "", t)
		Expect(b.fails("ADD", "c2", t).Code).To(Equal(uint(types.CodeTryAgain)))
	})

	It("with failStatusWhenFull, returns code 50 and names each exhausted range set", func() {
		t := try{ipam: `"failStatusWhenFull": true, "ranges": [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/24"}]]`}
		b.add("c1", t)
		f := b.fails("STATUS", "", t)
		Expect(f.Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(f.Msg).To(Equal("range set 1 (10.1.2.0/30): no IP addresses available in range set: 10.1.2.1-10.1.2.2"))
		b.ok("DEL", "c1", t)
		b.ok("STATUS", "", t)
	})

	It("returns code 50 if all addresses are excluded", func() {
		f := b.fails("STATUS", "", try{ipam: subnet + `, "exclude": ["10.1.0.0/16"]`})
		Expect(f.Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(f.Msg).To(ContainSubstring("has no usable address"))
	})
})

var _ = Describe("cooldown", func() {
	var b *bed
	BeforeEach(func() { b = newBed() })
	cool := try{ipam: `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3", "cooldown": 30, "failStatusWhenFull": true`}

	It("ends after the configured time, and until then ADD does not allocate the address", func() {
		b.add("c1", cool)
		b.add("c2", cool)
		b.ok("DEL", "c1", cool)
		b.clock += 10 * time.Second
		b.ok("DEL", "c2", cool)
		f := b.fails("ADD", "c3", cool)
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.3 (released addresses that cool down: 2; the first is free in 20s)"))
		Expect(b.fails("STATUS", "", cool).Code).To(Equal(uint(types.CodeNotAvailable)))
		b.clock += 20 * time.Second
		Expect(b.add("c3", cool)).To(Equal("10.1.2.2/29"))
		b.fails("ADD", "c4", cool)
		b.clock += 10 * time.Second
		Expect(b.add("c4", cool)).To(Equal("10.1.2.3/29"))
	})

	It("begins also if the private folder was removed", func() {
		b.add("c1", cool)
		b.add("c2", cool)
		Expect(os.RemoveAll(filepath.Join(b.dataDir, ".plumb"))).To(Succeed())
		b.ok("DEL", "c1", cool)
		Expect(b.fails("ADD", "c3", cool).Msg).To(ContainSubstring("(released addresses that cool down: 1;"))
	})

	It("does not apply to a requested address, nor to a configuration without cooldown", func() {
		b.add("c1", cool)
		b.add("c2", cool)
		b.ok("DEL", "c1", cool)
		b.ok("DEL", "c2", cool)
		asks := cool
		asks.args = "IP=10.1.2.3"
		Expect(b.add("c3", asks)).To(Equal("10.1.2.3/29"))
		Expect(b.add("c4", try{ipam: `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3"`})).To(Equal("10.1.2.2/29"))
	})

	It("ends at a reboot", func() {
		b.add("c1", cool)
		b.add("c2", cool)
		b.ok("DEL", "c1", cool)
		b.boot("another")
		b.clock += 5 * time.Second
		Expect(b.add("c3", cool)).To(Equal("10.1.2.2/29"))
	})

	It("does not begin when a failed ADD releases its address", func() {
		two := try{ipam: `"ranges": [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/30"}]], "cooldown": 30`}
		b.put("10.1.3.2", "other\r\neth0")
		b.fails("ADD", "c1", two)
		b.ok("DEL", "other", try{})
		Expect(b.add("c1", two)).To(Equal("10.1.2.2/30 10.1.3.2/30"))
	})

	It("drops old records from the file of releases", func() {
		t := try{ipam: `"subnet": "10.1.0.0/16", "cooldown": 1`}
		for i := range 40 {
			path := filepath.Join(b.dataDir, ".plumb", "net", "releases")
			if text, err := os.ReadFile(path); err == nil && i == 20 {
				Expect(os.WriteFile(path, append(text, make([]byte, releaseSize*4000)...), 0o600)).To(Succeed())
			}
			b.add("c1", t)
			b.ok("DEL", "c1", t)
			b.clock += time.Second
		}
		info, err := os.Stat(filepath.Join(b.dataDir, ".plumb", "net", "releases"))
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeNumerically("<", releaseSize*30))
	})
})
