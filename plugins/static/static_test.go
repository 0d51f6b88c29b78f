package main

import (
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	two    = `,"addresses":[{"address":"10.10.0.5/24","gateway":"10.10.0.254"},{"address":"3ffe:ffff:0:1ff::1/64","gateway":"3ffe:ffff:0::1"}]`
	routes = `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.7/16","gw":"10.10.5.1","mtu":1400,"advmss":1200,"priority":7,"table":9,"scope":0},{"dst":"3ffe:ffff:0:1ff::/64"}]`
	dns    = `,"dns":{"nameservers":["10.10.0.1"],"domain":"example.org","search":["a.example.org"],"options":["ndots:2"]}`
)

// addedIPs returns "address gateway" for each IP of an ADD. The gateway is "-" if there is none.
func addedIPs(c nstest.Call) string {
	GinkgoHelper()
	var ips []string
	for _, ip := range run(c, "ADD").Result(GinkgoTB()).IPs {
		Expect(ip.Interface).To(Equal(types.NoInterface))
		gateway := "-"
		if ip.Gateway.IsValid() {
			gateway = ip.Gateway.String()
		}
		ips = append(ips, ip.Address.String()+" "+gateway)
	}
	return strings.Join(ips, ", ")
}

var _ = Describe("static", func() {
	BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

	It("returns addresses, routes and DNS of the configuration in the form of each version", func() {
		for _, version := range types.VersionsSince(types.V010) {
			nstest.Golden(GinkgoTB(), "add-"+version, run(call(conf(version, two+routes+dns, ""), ""), "ADD").OK(GinkgoTB()).Stdout)
		}
	})

	DescribeTable("uses the addresses of each source",
		func(ipam, rest, args, want string) {
			Expect(addedIPs(call(conf("1.1.0", ipam, rest), args))).To(Equal(want))
		},
		Entry("the addresses of the configuration", two, "", "", "10.10.0.5/24 10.10.0.254, 3ffe:ffff:0:1ff::1/64 3ffe:ffff::1"),
		Entry("a gateway outside the subnet, which ptp accepts", `,"addresses":[{"address":"10.0.0.5/32","gateway":"169.254.1.1"}]`, "", "",
			"10.0.0.5/32 169.254.1.1"),
		Entry("the old key version", `,"addresses":[{"version":"4","address":"10.0.0.5/24"},{"version":6,"address":"fd00::5/64"}]`, "", "",
			"10.0.0.5/24 -, fd00::5/64 -"),
		Entry("keys in any case", `,"Addresses":[{"ADDRESS":"10.0.0.5/24","Gateway":""}]`, "", "", "10.0.0.5/24 -"),
		Entry("IPv4 written as IPv6", `,"addresses":[{"address":"::ffff:10.0.0.5/120","gateway":"::ffff:10.0.0.1"}]`, "", "", "10.0.0.5/24 10.0.0.1"),
		Entry("CNI_ARGS after the configuration", `,"addresses":[{"address":"10.0.0.5/24"}]`, "", "IP=10.1.0.5/24,fd00::5/64",
			"10.0.0.5/24 -, 10.1.0.5/24 -, fd00::5/64 -"),
		Entry("an address in both is returned once", `,"addresses":[{"address":"10.0.0.5/24","gateway":"10.0.0.1"}]`, "", "IP=10.0.0.5/24",
			"10.0.0.5/24 10.0.0.1"),
		Entry("GATEWAY for each address whose subnet contains it", "", "", "IP=10.1.0.5/24,10.2.0.5/24,10.1.0.6/24;GATEWAY=10.1.0.1,10.2.0.1",
			"10.1.0.5/24 10.1.0.1, 10.2.0.5/24 10.2.0.1, 10.1.0.6/24 10.1.0.1"),
		Entry("GATEWAY does not replace a configured gateway", `,"addresses":[{"address":"10.0.0.5/24","gateway":"10.0.0.1"},{"address":"10.0.0.6/24"}]`, "",
			"IP=10.0.0.7/24;GATEWAY=10.0.0.254", "10.0.0.5/24 10.0.0.1, 10.0.0.6/24 10.0.0.254, 10.0.0.7/24 10.0.0.254"),
		Entry("empty CNI_ARGS", two, "", "IP=;GATEWAY=;IgnoreUnknown=1;K8S_POD_NAME=x", "10.10.0.5/24 10.10.0.254, 3ffe:ffff:0:1ff::1/64 3ffe:ffff::1"),
		Entry("args.cni.ips instead of all others", two, `,"args":{"cni":{"ips":["10.2.0.5/24"],"labels":[{"key":"a"}]}}`, "IP=10.1.0.5/24", "10.2.0.5/24 -"),
		Entry("runtimeConfig.ips instead of all others", two,
			`,"args":{"cni":{"ips":["10.2.0.5/24"]}},"runtimeConfig":{"ips":["10.3.0.5/24","fd00:3::5/64"]}`, "IP=10.1.0.5/24",
			"10.3.0.5/24 -, fd00:3::5/64 -"),
		Entry("empty lists of ips", two, `,"args":{"cni":{"ips":[]}},"runtimeConfig":{"ips":null}`, "", "10.10.0.5/24 10.10.0.254, 3ffe:ffff:0:1ff::1/64 3ffe:ffff::1"),
		Entry("null for everything", `,"addresses":null,"routes":null,"dns":null`, `,"args":null,"runtimeConfig":null`, "IP=10.0.0.5/24", "10.0.0.5/24 -"),
	)

	It("ADD succeeds with a warning without any address", func() {
		r := run(call(conf("1.0.0", "", ""), ""), "ADD").OK(GinkgoTB())
		Expect(r.Stdout).To(MatchJSON(`{"cniVersion":"1.0.0"}`))
		Expect(r.Stderr).To(ContainSubstring("static: warning: the result contains no address"))
		run(call(conf("0.2.0", "", ""), ""), "ADD").RequireFailure(GinkgoTB(), types.CodeConfig, "cannot convert: no valid IP addresses")
	})

	It("ADD warns about a gateway of CNI_ARGS that no address can use", func() {
		r := run(call(conf("1.0.0", two, ""), "GATEWAY=10.77.0.1"), "ADD").OK(GinkgoTB())
		Expect(r.Stderr).To(ContainSubstring("GATEWAY 10.77.0.1 is not used"))
	})

	DescribeTable("ADD returns an error for an invalid configuration:",
		func(c nstest.Call, code int, texts ...string) {
			f := run(c, "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(code), f.String())
			for _, text := range texts {
				Expect(f.Msg).To(ContainSubstring(text))
			}
		},
		Entry("no ipam", call(`{"cniVersion":"1.0.0","name":"n","type":"x"}`, ""), types.CodeConfig, "IPAM config missing 'ipam' key"),
		Entry("ipam null", call(`{"cniVersion":"1.0.0","name":"n","type":"x","ipam":null}`, ""), types.CodeConfig, "IPAM config missing 'ipam' key"),
		Entry("an address without a prefix length", call(conf("1.0.0", `,"addresses":[{"address":"10.0.0.5"}]`, ""), ""), types.CodeConfig,
			"the 'address' field is expected to be in CIDR notation, got: '10.0.0.5'"),
		Entry("no address in an entry", call(conf("1.0.0", `,"addresses":[{}]`, ""), ""), types.CodeConfig,
			"the 'address' field is expected to be in CIDR notation, got: ''"),
		Entry("null in addresses and routes", call(conf("1.0.0", `,"addresses":[null],"routes":[null]`, ""), ""), types.CodeConfig,
			"the 'address' field is expected to be in CIDR notation, got: ''", `ipam.routes[0].dst: invalid CIDR address: ""`),
		Entry("no CIDR in CNI_ARGS", call(conf("1.0.0", "", ""), "IP=10.0.0.5/24,10.0.0.6"), types.CodeConfig,
			"the 'ip' field is expected to be in CIDR notation, got: '10.0.0.6'; IP in CNI_ARGS needs a prefix length, for example 10.0.0.6/24"),
		Entry("no CIDR in args", call(conf("1.0.0", "", `,"args":{"cni":{"ips":["10.0.0.5"]}}`), ""), types.CodeConfig,
			"an entry in the 'ips' field is NOT in CIDR notation, got: '10.0.0.5'"),
		Entry("no CIDR in runtimeConfig", call(conf("1.0.0", "", `,"runtimeConfig":{"ips":["x"]}`), ""), types.CodeConfig,
			"an entry in the 'ips' field is NOT in CIDR notation, got: 'x'"),
		Entry("null in ips", call(conf("1.0.0", "", `,"runtimeConfig":{"ips":[null]}`), ""), types.CodeConfig,
			"an entry in the 'ips' field is NOT in CIDR notation, got: ''"),
		Entry("bad gateways", call(conf("1.0.0", `,"addresses":[{"address":"10.0.0.5/24","gateway":"x"}]`, ""), "GATEWAY=10.0.0.256"), types.CodeConfig,
			"ipam.addresses[0].gateway: invalid gateway address: x", "invalid gateway address: 10.0.0.256"),
		Entry("a gateway with a zone", call(conf("1.0.0", `,"addresses":[{"address":"fd00::5/64","gateway":"fe80::1%eth0"}]`, ""), ""), types.CodeConfig,
			"invalid gateway address: fe80::1%eth0"),
		Entry("a gateway of the other family", call(conf("1.0.0", `,"addresses":[{"address":"10.0.0.5/24","gateway":"fd00::1"}]`, ""), ""), types.CodeConfig,
			"ipam.addresses[0].gateway fd00::1 must be of the same family as address 10.0.0.5/24"),
		Entry("addresses that no interface can have", call(conf("1.0.0", `,"addresses":[{"address":"0.0.0.0/0"},{"address":"ff02::1/64"}]`, ""), ""), types.CodeConfig,
			"ipam.addresses[0].address: an interface cannot have a multicast or unspecified address, as in 0.0.0.0/0", "ipam.addresses[1].address: "),
		Entry("two of a family before 0.3.0", call(conf("0.2.0", `,"addresses":[{"address":"10.0.0.5/24"},{"address":"10.0.0.6/24"}]`, ""), ""), types.CodeConfig,
			"cniVersion: CNI version 0.2.0 does not support more than 1 address per family"),
		Entry("bad routes, all of them", call(conf("1.0.0", `,"routes":[{"dst":"x"},{"dst":"10.0.0.0/8","gw":"y"},{"dst":"10.0.0.0/8","gw":"fd00::1"},{"dst":"10.0.0.0/8","mtu":-1},{"dst":"10.0.0.0/8","gws":["10.0.0.1",""]}]`, ""), ""), types.CodeConfig,
			`ipam.routes[0].dst: invalid CIDR address: "x"`, `ipam.routes[1].gw: invalid IP address: "y"`, "ipam.routes[2].gw fd00::1 must be", "ipam.routes[3].mtu -1", `ipam.routes[4].gws[1]: invalid IP address: ""`),
		Entry("problems in every part at once", call(conf("1.0.0", `,"addresses":[{"address":"a"},{"address":"b"}],"routes":[{"dst":"c"}]`, ""), "IP=d;GATEWAY=e"), types.CodeConfig,
			"'a'", "'b'", `"c"`, "'d'", "invalid gateway address: e"),
		Entry("an unknown argument", call(conf("1.0.0", two, ""), "X=1"), types.CodeEnvironment, "unknown args"),
		Entry("an unknown key, strictly", call(conf("1.0.0", `,"adresses":[]`, `,"strict":true`), ""), types.CodeUnsupported, "ipam.adresses: unknown key", `did you mean "addresses"?`),
	)

	Describe("CHECK", func() {
		result := func(ips string) string { return `{"cniVersion":"1.0.0","ips":[` + ips + `]}` }
		const (
			v4 = `{"address":"10.10.0.5/24","gateway":"10.10.0.254"}`
			v6 = `{"address":"3ffe:ffff:0:1ff::1/64","gateway":"3ffe:ffff::1"}`
		)
		DescribeTable("compares the addresses with prevResult",
			func(ipam, prev string, texts ...string) {
				r := run(call(nstest.WithPrevResult(conf("1.0.0", ipam, ""), prev), ""), "CHECK")
				if len(texts) == 0 {
					r.OK(GinkgoTB())
					return
				}
				f := r.Failure(GinkgoTB())
				Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
				for _, text := range texts {
					Expect(f.Msg).To(ContainSubstring(text))
				}
			},
			Entry("no difference", two, result(v4+","+v6)),
			Entry("an additional address of another plugin", two, result(v4+","+v6+`,{"address":"10.99.0.1/24"}`)),
			Entry("one missing address, which the reference plugin does not report", two, result(v4), "prevResult lacks address 3ffe:ffff:0:1ff::1/64"),
			Entry("all addresses missing", two, result(""), "prevResult lacks address 10.10.0.5/24", "prevResult lacks address 3ffe:ffff:0:1ff::1/64"),
			Entry("another prefix length", two, result(`{"address":"10.10.0.5/25","gateway":"10.10.0.254"},`+v6), "prevResult lacks address 10.10.0.5/24"),
			Entry("another gateway", two, result(`{"address":"10.10.0.5/24","gateway":"10.10.0.1"},`+v6), "address 10.10.0.5/24 in prevResult: want gateway 10.10.0.254, got 10.10.0.1"),
			Entry("a gateway that route-override removed", two, result(`{"address":"10.10.0.5/24"},`+v6)),
			Entry("a gateway that bridge added", `,"addresses":[{"address":"10.10.0.5/24"}]`, result(v4)),
		)
		It("fails without prevResult, and with a version without CHECK", func() {
			run(call(conf("1.0.0", two, ""), ""), "CHECK").RequireFailure(GinkgoTB(), types.CodeConfig)
			run(call(conf("0.3.1", two, ""), ""), "CHECK").RequireFailure(GinkgoTB(), types.CodeVersion)
		})
	})

	DescribeTable("DEL succeeds with",
		func(c nstest.Call) {
			run(c, "DEL").OK(GinkgoTB())
			run(c, "DEL").OK(GinkgoTB())
		},
		Entry("the configuration of ADD", call(conf("1.0.0", two, ""), "")),
		Entry("no CNI_NETNS", nstest.Call{Config: conf("1.0.0", two, "")}),
		Entry("an invalid configuration and CNI_ARGS", call(conf("1.0.0", `,"addresses":"x","routes":7`, `,"prevResult":"x"`), "X=1;;=")),
	)

	It("GC succeeds", func() {
		run(call(conf("1.1.0", two, `,"cni.dev/valid-attachments":[]`), ""), "GC").OK(GinkgoTB())
	})

})

// TestDependencies tests that static does not contain the netlink packages.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	nstest.Must(t, err)
	for dep := range strings.FieldsSeq(string(out)) {
		if strings.Contains(dep, "netlink") || strings.HasSuffix(dep, "pkg/nl") {
			t.Errorf("static depends on %s", dep)
		}
	}
}
