package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", func() {
	var host *nstest.PoolHost
	BeforeEach(func() { host = newTestHost() })

	It("allocates addresses in order, and released addresses after all others", func() {
		Expect(host.Add("c1", variant{})).To(Equal("10.1.2.2/24"))
		Expect(host.Add("c2", variant{})).To(Equal("10.1.2.3/24"))
		host.OK("DEL", "c1", variant{})
		Expect(host.Add("c3", variant{})).To(Equal("10.1.2.4/24"))

		small := variant{Network: "small", IPAM: `"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.4"`}
		for _, want := range []string{"10.1.2.2/24", "10.1.2.3/24", "10.1.2.4/24"} {
			Expect(host.Add("c"+want[7:8], small)).To(Equal(want))
		}
		host.OK("DEL", "c3", small)
		Expect(host.Add("c5", small)).To(Equal("10.1.2.3/24"))
	})

	DescribeTable("allocates every usable address, then returns code 11", func(ipam, want string) {
		for i, ip := range strings.Fields(want) {
			Expect(host.Add(fmt.Sprint("c", i), variant{IPAM: ipam})).To(Equal(ip))
		}
		Expect(host.Fails("ADD", "more", variant{IPAM: ipam}).Code).To(Equal(uint(types.CodeTryAgain)))
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

	It("allocates one address per range set, first from ipRanges, then from the keys in ipam, and then from ranges", func() {
		Expect(host.Add("c1", variant{
			IPAM: `"subnet": "10.2.0.0/24", "ranges": [[{"subnet": "10.3.0.0/24"}], [{"subnet": "fd00::/64"}]]`,
			More: `"runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}`,
		})).To(Equal("10.9.0.2/24 10.2.0.2/24 10.3.0.2/24 fd00::2/64"))
		for n, want := range []string{"10.9.0.2", "10.2.0.2", "10.3.0.2", "fd00::2"} {
			Expect(os.ReadFile(host.Net(fmt.Sprint("last_reserved_ip.", n)))).To(BeEquivalentTo(want))
		}
	})

	It("writes the same files as the reference plugin", func() {
		host.Add("c1", variant{})
		Expect(nstest.SnapshotDir(GinkgoTB(), filepath.Join(host.DataDir, "net"))).To(Equal(`drwxr-xr-x .
-rw------- 10.1.2.2 "c1\r\neth0"
-rw------- last_reserved_ip.0 "10.1.2.2"
-rwxr-x--- lock ""`))
	})

	It("returns the result in the form of each version", func() {
		dns := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		Expect(os.WriteFile(dns, []byte("nameserver 10.0.0.53\nsearch example.org\n"), 0o600)).To(Succeed())
		for _, version := range types.VersionsSince(types.V010) {
			nstest.Golden(GinkgoTB(), "add-"+version, host.Run("ADD", "c1", variant{Version: version, Network: version, IPAM: fmt.Sprintf(
				`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]], "routes": [{"dst": "0.0.0.0/0", "mtu": 1400}, {"dst": "fd01::/16", "gw": "fd00::9"}], "resolvConf": %q`, dns)}).OK(GinkgoTB()).Stdout)
		}
	})

	DescribeTable("allocates the requested addresses", func(t variant, want string) {
		Expect(host.Add("c1", t)).To(Equal(want))
	},
		Entry("in CNI_ARGS", variant{Args: "IP=10.1.2.77"}, "10.1.2.77/24"),
		Entry("in CNI_ARGS with unknown keys", variant{Args: "IgnoreUnknown=1;K8S_POD_NAME=a;IP=10.1.2.77/16"}, "10.1.2.77/24"),
		Entry("in args", variant{More: `"args": {"cni": {"ips": ["10.1.2.78"]}}`}, "10.1.2.78/24"),
		Entry("in runtimeConfig", variant{More: `"RuntimeConfig": {"IPs": ["10.1.2.79/24"]}`}, "10.1.2.79/24"),
		Entry("the same address in all three places", variant{Args: "IP=10.1.2.7", More: `"args": {"cni": {"ips": ["10.1.2.7"]}}, "runtimeConfig": {"ips": ["10.1.2.7/24"]}`}, "10.1.2.7/24"),
		Entry("any address if IP in CNI_ARGS is empty", variant{Args: "IP="}, "10.1.2.2/24"),
		Entry("in one of two sets", variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`, Args: "IP=fd00::77"}, "10.1.2.2/24 fd00::77/64"),
		Entry("in both sets", variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`,
			More: `"runtimeConfig": {"ips": ["fd00::77", "10.1.2.9"]}`}, "10.1.2.9/24 fd00::77/64"),
	)

	It("returns code 7 if the network name is too long for a directory, and DEL succeeds", func() {
		long := variant{Network: strings.Repeat("n", 256)}
		for _, command := range []string{"ADD", "CHECK"} {
			f := host.Fails(command, "c1", long)
			Expect(f.Code).To(Equal(uint(types.CodeConfig)), command)
			Expect(f.Msg).To(Equal("name must be at most 255 bytes long, the limit of directory names"))
		}
		host.OK("DEL", "c1", long)
		host.Add("c1", variant{Network: strings.Repeat("n", 255)})
	})

	It("returns a gateway outside the subnet, and warns of it only in a strict configuration", func() {
		outside := variant{IPAM: `"subnet": "10.1.2.64/26", "gateway": "10.1.2.1"`}
		Expect(host.Run("ADD", "c1", outside).Result(GinkgoTB()).IPs[0].Gateway.String()).To(Equal("10.1.2.1"))
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
			r := host.Run(verb, map[string]string{"ADD": "c2", "CHECK": "c1", "DEL": "c1"}[verb], outside).OK(GinkgoTB())
			Expect(r.Stderr).To(BeEmpty(), verb)
		}
		outside.More = `"strict": true`
		Expect(host.Run("ADD", "c3", outside).OK(GinkgoTB()).Stderr).To(Equal("host-local: warning: gateway 10.1.2.1 is outside of the subnet 10.1.2.64/26\n"))
	})

	DescribeTable("returns an error if it cannot satisfy a request, and reserves nothing", func(t variant, code int, want string) {
		host.Put("10.1.2.9", "other\r\neth0")
		before := host.Reserved()
		host.Run("ADD", "c1", t).RequireFailure(GinkgoTB(), code, want)
		Expect(host.Reserved()).To(Equal(before))
		Expect(host.Net("last_reserved_ip.0")).NotTo(BeAnExistingFile())
	},
		Entry("the gateway", variant{Args: "IP=10.1.2.1"}, 7, "failed to allocate for range 0: requested ip 10.1.2.1 is subnet's gateway"),
		Entry("reserved by another attachment", variant{Args: "IP=10.1.2.9"}, 11,
			"failed to allocate for range 0: requested IP address 10.1.2.9 is not available in range set 10.1.2.1-10.1.2.254: 10.1.2.9 is allocated to other"),
		Entry("reserved by another attachment, in the second set", variant{IPAM: `"ranges": [[{"subnet": "10.1.3.0/24"}], [{"subnet": "10.1.2.0/24"}]]`, Args: "IP=10.1.2.9"}, 11,
			"failed to allocate for range 1: requested IP address 10.1.2.9 is not available"),
		Entry("an excluded address", variant{IPAM: subnet + `, "exclude": ["10.1.2.8/30"]`, Args: "IP=10.1.2.10"}, 7, "10.1.2.10"),
		Entry("a range set whose addresses are all excluded", variant{IPAM: subnet + `, "exclude": ["10.1.0.0/16"]`}, 7,
			`ipam.subnet has no usable address: all are excluded (the gateway always is); make the range larger or "exclude" smaller`),
		Entry("a range set that contains only the gateway", variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24", "rangeEnd": "10.1.3.1"}]]`}, 7,
			"ipam.ranges[1] has no usable address"),
		Entry("an address outside the ranges", variant{Args: "IP=10.1.9.9"}, 7, "failed to allocate all requested IPs: 10.1.9.9 is in no range"),
		Entry("two addresses in one set", variant{More: `"runtimeConfig": {"ips": ["10.1.2.5", "10.1.2.6", "10.7.7.7"]}`}, 7, "failed to allocate all requested IPs: 10.1.2.6 is in the same range set as 10.1.2.5, and ADD allocates one address from each; 10.7.7.7 is in no range"),
		Entry("not an address", variant{Args: "IP=x"}, 7, `CNI_ARGS: IP: invalid IP address: "x"`),
		Entry("an unknown key in CNI_ARGS", variant{Args: "K8S_POD_NAME=a"}, 4, "unknown args"),
		Entry("null in runtimeConfig.ips", variant{More: `"runtimeConfig": {"ips": [null]}`}, 7, `runtimeConfig.ips[0]: invalid IP address: ""`),
	)

	DescribeTable("returns code 101 if the attachment already has an address, and changes nothing", func(again variant) {
		two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		host.Add("c1", two)
		before := host.Reserved()
		f := host.Fails("ADD", "c1", again)
		Expect(f.Code).To(Equal(uint(pool.CodeDuplicate)))
		Expect(f.Msg).To(MatchRegexp("^failed to allocate for range 0: (10.1.2.2|fd00::2) has been allocated to c1, duplicate allocation is not allowed$"))
		Expect(host.Reserved()).To(Equal(before))
	},
		Entry("with the same configuration", variant{}),
		Entry("with a requested address", variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`, Args: "IP=10.1.2.50"}),
		Entry("with other ranges", variant{IPAM: `"subnet": "10.99.0.0/16"`}),
	)

	It("allocates another address for another interface of the container", func() {
		host.Add("c1", variant{})
		Expect(host.Add("c1", variant{IfName: "eth1"})).To(Equal("10.1.2.3/24"))
		Expect(host.Add("c1", variant{Network: "other"})).To(Equal("10.1.2.2/24"))
	})

	It("releases the first address if a later set is exhausted", func() {
		two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
		host.Add("c1", two)
		before := nstest.SnapshotDir(GinkgoTB(), host.Net(""))
		f := host.Fails("ADD", "c2", two)
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("failed to allocate for range 1: no IP addresses available in range set: 10.1.3.1-10.1.3.2"))
		Expect(nstest.SnapshotDir(GinkgoTB(), host.Net(""))).To(Equal(before))
	})

	It("does not release an address that another owner has reserved since", func() {
		two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
		host.Add("c1", two)
		locks := 0
		c := host.Call("c2", two).With("ADD")
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "lock ") {
				if locks++; locks == 2 {
					host.Put("10.1.2.3", "other\r\neth0")
				}
			}
			return nil
		}
		nstest.Run(host.Plugin(), c).Failure(GinkgoTB())
		Expect(locks).To(Equal(2))
		Expect(host.Reserved()).To(ContainElement("10.1.2.3 other/eth0"))
	})

	DescribeTable("allocates the address of an incomplete reservation if no other is free", func(content string) {
		for i := range 254 - 1 {
			host.Put(fmt.Sprint("10.1.2.", 2+i), fmt.Sprint("c", i, "\r\neth0"))
		}
		Expect(host.Fails("ADD", "new", variant{}).Code).To(Equal(uint(types.CodeTryAgain)))
		host.OK("DEL", "c198", variant{})
		host.Put("10.1.2.200", content)
		Expect(host.Add("new", variant{})).To(Equal("10.1.2.200/24"))
		Expect(os.ReadFile(host.Net("10.1.2.200"))).To(BeEquivalentTo("new\r\neth0"))
	},
		Entry("an empty file", ""), Entry("zeros", "\x00\x00\x00\x00"), Entry("white space", "\r\n"), Entry("zeros after the interface name", "c1\r\neth0\x00\x00"),
	)

	It("begins at the start of the range if last_reserved_ip.0 contains no usable address", func() {
		for _, text := range []string{"", "x", "10.7.7.7", "10.1.2.254", "10.7.7.7 or another\n", strings.Repeat("10.1.2.7 ", 1000)} {
			host.Put("last_reserved_ip.0", text)
			Expect(host.Add("c1", variant{})).To(Equal("10.1.2.2/24"))
			Expect(os.ReadFile(host.Net("last_reserved_ip.0"))).To(BeEquivalentTo("10.1.2.2"))
			host.OK("DEL", "c1", variant{})
		}
	})

	It("returns code 5 if resolvConf does not exist, and creates no directory", func() {
		f := host.Fails("ADD", "c1", variant{IPAM: subnet + `, "resolvConf": "/nowhere"`})
		Expect(f.Code).To(Equal(uint(types.CodeIO)))
		Expect(host.DataDir).NotTo(BeADirectory())
	})
})

var _ = Describe("DEL", func() {
	var host *nstest.PoolHost
	BeforeEach(func() { host = newTestHost() })

	It("releases the addresses of the interface in all sets, and no others", func() {
		two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		host.Add("c1", two)
		host.Add("c2", two)
		two.IfName = "eth1"
		host.Add("c1", two)
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.3 c2/eth0", "10.1.2.4 c1/eth1", "fd00::3 c2/eth0", "fd00::4 c1/eth1"}))
		host.OK("DEL", "c1", variant{})
	})

	It("succeeds for an unknown attachment", func() {
		host.Add("c2", variant{})
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	})

	DescribeTable("succeeds with an invalid configuration", func(t variant) {
		host.Add("c1", variant{})
		host.OK("DEL", "c1", t)
		Expect(host.Reserved()).To(BeEmpty())
	},
		Entry("without ranges", variant{IPAM: `"ranges": []`}),
		Entry("with values of the wrong type", variant{IPAM: `"ranges": "none", "cooldown": "long", "routes": 7`}),
		Entry("with null in lists", variant{IPAM: `"ranges": [[null]]`, More: `"runtimeConfig": {"ips": [null]}`}),
		Entry("with malformed CNI_ARGS", variant{Args: "nonsense"}),
		Entry("with an unknown key and strict", variant{IPAM: subnet + `, "isGateway": true`, More: `"strict": true`}),
	)

	DescribeTable("releases reservations in every format", func(content string) {
		host.Add("c2", variant{})
		host.Put("10.1.2.40", content)
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	},
		Entry("the reference plugin's format", "c1\r\neth0"),
		Entry("with a newline at the end", "c1\r\neth0\n"),
		Entry("the legacy format", "c1"),
	)

	It("releases legacy reservations only if the attachment has no others", func() {
		host.Put("10.1.2.40", "c1")
		host.Put("10.1.2.41", "c1\r\neth0")
		host.Put("10.1.2.42", "c1\r\neth1")
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.40 c1", "10.1.2.42 c1/eth1"}))
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.42 c1/eth1"}))
	})

	It("does not release a reservation whose owner was changed in the file", func() {
		host.Add("c1", variant{})
		host.Put("10.1.2.2", "other\r\neth0")
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 other/eth0"}))
		host.OK("DEL", "other", variant{})
		Expect(host.Reserved()).To(BeEmpty())
	})
})

var _ = Describe("CHECK", func() {
	var host *nstest.PoolHost
	BeforeEach(func() { host = newTestHost() })

	prev := func(ips ...string) string {
		var list []string
		for _, ip := range ips {
			list = append(list, fmt.Sprintf(`{"address": %q}`, ip))
		}
		return fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "ips": [%s]}`, strings.Join(list, ", "))
	}

	It("succeeds after ADD, and for a legacy reservation", func() {
		host.Add("c1", variant{})
		host.OK("CHECK", "c1", variant{})
		host.OK("CHECK", "c1", variant{More: prev("10.1.2.2/24")})
		host.OK("CHECK", "c1", variant{More: prev("10.1.2.2/24", "192.168.0.7/24")})
		host.Put("10.1.2.40", "old")
		host.OK("CHECK", "old", variant{More: prev("10.1.2.40/24")})
	})

	DescribeTable("returns code 100 if the reservations differ from prevResult", func(id, more, want string) {
		host.Add("c1", variant{})
		host.Put("10.1.2.9", "c2\r\neth0")
		host.Put("10.1.2.10", "c2\r\neth0")
		host.Run("CHECK", id, variant{More: more}).RequireFailure(GinkgoTB(), types.CodeChanged, want)
	},
		Entry("no reservation", "c3", "", "no address is reserved for net/c3/eth0"),
		Entry("a reservation for another address", "c1", prev("10.1.2.9/24"), "address 10.1.2.9 is not reserved for net/c1/eth0"),
		Entry("a reservation that prevResult lacks", "c2", prev("10.1.2.9/24"), "address 10.1.2.10 is reserved for net/c2/eth0 but not in its result"),
	)

	DescribeTable("REPAIR reserves the addresses of prevResult that are free", func(lose func()) {
		two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		host.Add("c1", two)
		two.More = prev("10.1.2.2/24", "fd00::2/64", "192.168.0.7/24")
		before := host.Reserved()
		lose()
		Expect(host.Fails("CHECK", "c1", two).Code).To(BeEquivalentTo(types.CodeChanged))
		host.OK("REPAIR", "c1", two)
		Expect(host.Reserved()).To(Equal(before))
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(BeEmpty())
	},
		Entry("one of two", func() { Expect(os.Remove(host.Net("10.1.2.2"))).To(Succeed()) }),
		Entry("an incomplete one", func() { host.Put("10.1.2.2", "") }),
		Entry("all, with the data directory", func() { Expect(os.RemoveAll(host.DataDir)).To(Succeed()) }),
	)

	It("REPAIR takes no address from another attachment, and needs prevResult", func() {
		host.Put("10.1.2.2", "c2\r\neth0")
		host.Put("10.1.2.9", "c3\r\neth0")
		before := host.Reserved()
		for id, want := range map[string]string{"c1": "no address is reserved for net/c1/eth0", "c3": "address 10.1.2.2 is not reserved for net/c3/eth0"} {
			host.Run("REPAIR", id, variant{More: prev("10.1.2.2/24")}).RequireFailure(GinkgoTB(), types.CodeChanged, "address 10.1.2.2 is allocated to c2; ", want)
		}
		Expect(host.Fails("REPAIR", "c4", variant{}).Msg).To(ContainSubstring("prevResult"))
		Expect(host.Reserved()).To(Equal(before))
	})

	It("succeeds if the address is now excluded", func() {
		host.Add("c1", variant{})
		host.OK("CHECK", "c1", variant{IPAM: subnet + `, "exclude": ["10.1.2.0/24"]`})
	})
})

var _ = Describe("GC", func() {
	var host *nstest.PoolHost
	BeforeEach(func() { host = newTestHost() })

	DescribeTable("releases the reservations of attachments that are not valid, and no others", func(valid string, want ...string) {
		host.Add("c1", variant{})
		host.Add("c1", variant{IfName: "eth1"})
		host.Add("c2", variant{})
		host.Add("c2", variant{Network: "other"})
		host.Put("10.1.2.40", "c1")
		host.Put("10.1.2.41", "c3")
		host.Put("10.1.2.42", "")
		host.Put("notes", "c9")
		host.OK("GC", "", variant{More: `"cni.dev/valid-attachments": ` + valid, IPAM: `"ranges": "broken"`})
		Expect(host.Reserved()).To(HaveExactElements(want))
		for _, name := range []string{"lock", "last_reserved_ip.0", "notes", "../other/10.1.2.2"} {
			Expect(host.Net(name)).To(BeAnExistingFile())
		}
		Expect(host.Add("new", variant{})).To(Equal("10.1.2.5/24"))
		host.OK("DEL", "c1", variant{})
	},
		Entry("one valid attachment", `[{"containerID": "c1", "ifname": "eth0"}]`, "10.1.2.2 c1/eth0", "10.1.2.40 c1"),
		Entry("another interface of the container with a legacy reservation is valid", `[{"containerID": "c1", "ifname": "eth7"}, {"containerID": "c2", "ifname": "eth0"}]`, "10.1.2.4 c2/eth0", "10.1.2.40 c1"),
		Entry("no valid attachment", `[]`),
	)
})

var _ = Describe("STATUS", func() {
	var host *nstest.PoolHost
	BeforeEach(func() { host = newTestHost() })

	It("succeeds without ranges only if the configuration lets the runtime pass them to ADD", func() {
		host.OK("STATUS", "", variant{IPAM: `"routes": []`, More: `"capabilities": {"ipRanges": true}`})
		for _, more := range []string{"", `"capabilities": {"ipRanges": false, "ips": true}`} {
			f := host.Fails("STATUS", "", variant{IPAM: `"routes": []`, More: more})
			Expect(f.Code).To(Equal(uint(types.CodeNotAvailable)))
			Expect(f.Msg).To(Equal("ipam: no IP ranges specified; set ranges"))
		}
	})

	It("fails if a misspelled key leaves no ranges, and the error of ADD suggests the right key", func() {
		t := variant{IPAM: `"subnt": "10.1.2.0/30"`}
		Expect(host.Fails("STATUS", "", t).Msg).To(Equal("ipam: no IP ranges specified; set ranges"))
		f := host.Fails("ADD", "c1", t)
		Expect(f.Code).To(Equal(uint(types.CodeConfig)))
		Expect(f.Msg).To(Equal(`ipam: no IP ranges specified; set ranges; ipam.subnt: unknown key with value "10.1.2.0/30"; did you mean "subnet"?`))
	})

	It("succeeds if the pool is exhausted", func() {
		t := variant{IPAM: `"subnet": "10.1.2.0/30"`}
		host.Add("c1", t)
		host.OK("STATUS", "", t)
		Expect(host.Fails("ADD", "c2", t).Code).To(Equal(uint(types.CodeTryAgain)))
	})

	It("with failStatusWhenFull, returns code 50 and names each exhausted range set", func() {
		t := variant{IPAM: `"failStatusWhenFull": true, "ranges": [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/24"}]]`}
		host.Add("c1", t)
		f := host.Fails("STATUS", "", t)
		Expect(f.Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(f.Msg).To(Equal("ipam.ranges[0]: no IP addresses available in range set: 10.1.2.1-10.1.2.2"))
		host.OK("DEL", "c1", t)
		host.OK("STATUS", "", t)
	})

	It("with failStatusWhenFull, counts an incomplete reservation as reserved, and reads and changes none", func() {
		t := variant{IPAM: `"failStatusWhenFull": true, "subnet": "10.1.2.0/30"`}
		host.Put("10.1.2.2", "")
		Expect(host.Fails("STATUS", "", t).Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(host.ReadAll()).To(BeFalse())
		Expect(host.Add("c1", t)).To(Equal("10.1.2.2/30"))
	})

	It("returns code 50 if all addresses are excluded", func() {
		host.Run("STATUS", "", variant{IPAM: subnet + `, "exclude": ["10.1.0.0/16"]`}).RequireFailure(GinkgoTB(), types.CodeNotAvailable,
			"has no usable address")
	})
})

var _ = It("before the first ADD, only CHECK fails, and no call creates a directory", func() {
	host := newTestHost()
	for _, command := range []string{"DEL", "GC", "STATUS"} {
		host.OK(command, "c1", variant{More: `"cni.dev/valid-attachments": []`})
	}
	Expect(host.Fails("CHECK", "c1", variant{}).Code).To(Equal(uint(types.CodeChanged)))
	Expect(host.DataDir).NotTo(BeADirectory())
})

var _ = Describe("cooldown", func() {
	var host *nstest.PoolHost
	BeforeEach(func() { host = newTestHost() })
	cool := variant{IPAM: `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3", "cooldown": 30, "failStatusWhenFull": true`}

	It("ends after the configured time, and until then ADD does not allocate the address", func() {
		host.Add("c1", cool)
		host.Add("c2", cool)
		host.OK("DEL", "c1", cool)
		host.Clock += 10 * time.Second
		host.OK("DEL", "c2", cool)
		f := host.Fails("ADD", "c3", cool)
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.3 (released addresses that cool down: 2; the first is free in 20s)"))
		Expect(host.Fails("STATUS", "", cool).Code).To(Equal(uint(types.CodeNotAvailable)))
		host.Clock += 20 * time.Second
		Expect(host.Add("c3", cool)).To(Equal("10.1.2.2/29"))
		host.Fails("ADD", "c4", cool)
		host.Clock += 10 * time.Second
		Expect(host.Add("c4", cool)).To(Equal("10.1.2.3/29"))
	})

	It("begins even if the private directory was removed", func() {
		host.Add("c1", cool)
		host.Add("c2", cool)
		Expect(os.RemoveAll(filepath.Join(host.DataDir, ".plumb"))).To(Succeed())
		host.OK("DEL", "c1", cool)
		Expect(host.Fails("ADD", "c3", cool).Msg).To(ContainSubstring("(released addresses that cool down: 1;"))
	})

	It("applies neither to a requested address nor to a configuration without cooldown", func() {
		host.Add("c1", cool)
		host.Add("c2", cool)
		host.OK("DEL", "c1", cool)
		host.OK("DEL", "c2", cool)
		request := cool
		request.Args = "IP=10.1.2.3"
		Expect(host.Add("c3", request)).To(Equal("10.1.2.3/29"))
		Expect(host.Add("c4", variant{IPAM: `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3"`})).To(Equal("10.1.2.2/29"))
	})

	It("ends with a reboot", func() {
		host.Add("c1", cool)
		host.Add("c2", cool)
		host.OK("DEL", "c1", cool)
		host.Boot("another")
		host.Clock += 5 * time.Second
		Expect(host.Add("c3", cool)).To(Equal("10.1.2.2/29"))
	})

	It("does not begin when a failed ADD releases its address", func() {
		two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/30"}]], "cooldown": 30`}
		host.Put("10.1.3.2", "other\r\neth0")
		host.Fails("ADD", "c1", two)
		host.OK("DEL", "other", variant{})
		Expect(host.Add("c1", two)).To(Equal("10.1.2.2/30 10.1.3.2/30"))
	})

	It("drops old releases from a large file of releases", func() {
		t := variant{IPAM: `"subnet": "10.1.0.0/16", "cooldown": 3`}
		path := filepath.Join(host.DataDir, ".plumb", "net", "releases")
		for i := range 20 {
			host.Add("c1", t)
			host.OK("DEL", "c1", t)
			host.Clock += time.Second
			if i == 10 {
				text, err := os.ReadFile(path)
				Expect(err).NotTo(HaveOccurred())
				old := strings.Repeat("\n10.1.200.1 1m0s", 5000)
				Expect(os.WriteFile(path, append(text, old...), 0o600)).To(Succeed())
			}
		}
		text := nstest.ReadFile(GinkgoTB(), path)
		Expect(text).NotTo(ContainSubstring("10.1.200.1"))
		Expect(strings.Split(text, "\n")).To(HaveLen(1 + 2 + 9))
	})
})

var _ = Describe("an ADD in which a step fails", func() {
	It("leaves no reservation", func() {
		host := newTestHost()
		nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
			Plugin: host.Plugin(),
			Config: host.Config(variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}),
			Dirs:   []string{host.Net("")},
			// Each run begins on a new host.
			Prepare: func(_, _ *nstest.NS) { Expect(os.RemoveAll(host.DataDir)).To(Succeed()) },
			// The cursor belongs to the network, not to the attachment.
			Ignore: func(line string) bool { return strings.Contains(line, "last_reserved_ip.") },
		})
	})
})
