package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// podArgs returns the CNI_ARGS of a pod.
func podArgs(name string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name
}

var _ = Describe("sticky", func() {
	var host *nstest.PoolHost
	BeforeEach(func() { host = newTestHost() })
	const ipam = subnet + `, "sticky": "pod"`
	const dual = `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]], "sticky": "pod"`

	// with returns a call with these members of ipam for a pod.
	with := func(ipam, pod string) variant { return variant{IPAM: ipam, Args: podArgs(pod)} }
	// addAndDelete attaches a container of the pod, deletes it, and returns its addresses.
	addAndDelete := func(id string, v variant) string {
		GinkgoHelper()
		ips := host.Add(id, v)
		v.Args = "" // GC and some runtimes do not pass CNI_ARGS
		host.OK("DEL", id, v)
		return ips
	}
	record := func(name string) string { return filepath.Join(host.DataDir, ".plumb", ".sticky", "net", name) }
	// setAge sets the age of a record.
	setAge := func(name string, age time.Duration) {
		GinkgoHelper()
		at := time.Now().Add(-age)
		Expect(os.Chtimes(record(name), at, at)).To(Succeed())
	}

	It("allocates the address of the pod's last container, after other containers and after a reboot", func() {
		Expect(addAndDelete("c1", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"))
		Expect(host.Add("c2", with(ipam, "web-1"))).To(Equal("10.1.2.3/24"))
		Expect(host.Add("c3", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"))
		Expect(host.Add("c4", with(ipam, "web-2"))).To(Equal("10.1.2.4/24"), "the next address")
		host.Boot("another")
		Expect(host.Add("c5", with(ipam, "web-2"))).To(Equal("10.1.2.4/24"))
		Expect(host.Add("c6", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"))
		host.OK("GC", "", variant{IPAM: ipam, More: `"cni.dev/valid-attachments": []`})
		Expect(host.Add("c7", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"))
		Expect(host.ReadAll()).To(BeFalse())
	})

	It("distinguishes interfaces, namespaces and networks", func() {
		addAndDelete("c1", with(ipam, "web-0"))
		other := with(ipam, "web-0")
		other.IfName = "eth1"
		Expect(host.Add("c2", other)).To(Equal("10.1.2.3/24"))
		other = with(ipam, "web-0")
		other.Args = strings.Replace(other.Args, "default", "blue", 1)
		Expect(addAndDelete("c3", other)).To(Equal("10.1.2.4/24"))
		other.Args = "IgnoreUnknown=1;K8S_POD_NAME=web-0" // podman
		Expect(addAndDelete("c3", other)).To(Equal("10.1.2.5/24"))
		Expect(host.Add("c3", other)).To(Equal("10.1.2.5/24"))
		Expect(host.Add("c4", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"))
	})

	It("allocates the addresses of all range sets again, and others in place of those that are outside the ranges or excluded", func() {
		Expect(addAndDelete("c1", with(dual, "web-0"))).To(Equal("10.1.2.2/24 fd00::2/64"))
		host.Add("c2", with(dual, "web-1"))
		Expect(addAndDelete("c3", with(dual, "web-0"))).To(Equal("10.1.2.2/24 fd00::2/64"))
		moved := strings.Replace(dual, "10.1.2.0", "10.1.3.0", 1)
		Expect(host.Add("c4", with(moved, "web-0"))).To(HaveSuffix(" fd00::2/64"))
		host.OK("DEL", "c4", with(moved, "web-0"))
		Expect(host.Add("c5", with(dual+`, "exclude": ["fd00::2"]`, "web-0"))).To(Equal("10.1.2.2/24 fd00::4/64"))
	})

	It("allocates another address while the former container still has its address", func() {
		Expect(host.Add("c1", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"))
		Expect(host.Add("c2", with(ipam, "web-0"))).To(Equal("10.1.2.3/24"))
		host.OK("DEL", "c1", variant{IPAM: ipam})
		host.OK("DEL", "c2", variant{IPAM: ipam})
		Expect(host.Add("c3", with(ipam, "web-0"))).To(Equal("10.1.2.3/24"), "the last one")
		Expect(host.Add("c4", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"), "the one before")
	})

	It("allocates a requested address, and remembers it", func() {
		addAndDelete("c1", with(ipam, "web-0"))
		request := with(ipam, "web-0")
		request.Args += ";IP=10.1.2.9"
		Expect(addAndDelete("c2", request)).To(Equal("10.1.2.9/24"))
		Expect(host.Add("c3", with(ipam, "web-0"))).To(Equal("10.1.2.9/24"))
	})

	It("does not allocate an address that another pod has used since", func() {
		addAndDelete("c1", with(ipam, "web-0"))
		request := with(ipam, "web-1")
		request.Args += ";IP=10.1.2.2"
		addAndDelete("c2", request)
		Expect(host.Add("c3", with(ipam, "web-0"))).To(Equal("10.1.2.3/24"))
		Expect(host.Add("c4", with(ipam, "web-1"))).To(Equal("10.1.2.2/24"))
	})

	It("continues the search after the last address that was not remembered", func() {
		addAndDelete("c1", with(ipam, "web-0"))
		addAndDelete("c2", variant{IPAM: ipam})
		Expect(host.Add("c3", with(ipam, "web-0"))).To(Equal("10.1.2.2/24"))
		Expect(host.Add("c4", variant{IPAM: ipam})).To(Equal("10.1.2.4/24"))
	})

	It("allocates the oldest remembered address to another pod if no other is free", func() {
		small := `"subnet": "10.1.2.0/28", "rangeEnd": "10.1.2.7", "cooldown": 30, "sticky": "pod"` // 10.1.2.2 to 10.1.2.7
		for i := range 3 {
			addAndDelete(fmt.Sprint("c", i), with(small, fmt.Sprint("web-", i)))
		}
		for i, age := range []time.Duration{2, 3, 1} {
			setAge(fmt.Sprint("10.1.2.", 2+i), age*time.Hour)
		}
		host.Clock += time.Minute
		for i, want := range []string{"5", "6", "7", "3", "2"} {
			Expect(host.Add(fmt.Sprint("other", i), with(small, fmt.Sprint("other-", i)))).To(Equal("10.1.2." + want + "/28"))
		}
		Expect(host.Add("c9", with(small, "web-2"))).To(Equal("10.1.2.4/28"))
		Expect(host.Fails("ADD", "c10", with(small, "web-0")).Code).To(BeEquivalentTo(types.CodeTryAgain))
	})

	It("ignores the cooldown for the same pod", func() {
		v := with(`"subnet": "10.1.2.0/24", "cooldown": 30, "sticky": "pod"`, "web-0")
		addAndDelete("c1", v)
		Expect(host.Add("c2", v)).To(Equal("10.1.2.2/24"))
	})

	DescribeTable("forgets the address after stickyFor", func(stickyFor string, age time.Duration, want string) {
		v := with(ipam+stickyFor, "web-0")
		addAndDelete("c1", v)
		setAge("10.1.2.2", age)
		Expect(host.Add("c2", v)).To(Equal(want))
		host.OK("DEL", "c2", variant{})
		setAge("10.1.2.2", age)
		host.OK("GC", "", variant{IPAM: ipam + stickyFor, More: `"cni.dev/valid-attachments": []`})
		Expect(filepath.Glob(record("10.1.2.2"))).To(HaveLen(1 - strings.Count(want, "10.1.2.3")))
	},
		Entry("before a day", "", 23*time.Hour, "10.1.2.2/24"),
		Entry("after a day", "", 25*time.Hour, "10.1.2.3/24"),
		Entry("before an hour", `, "stickyFor": 3600`, 59*time.Minute, "10.1.2.2/24"),
		Entry("after an hour", `, "stickyFor": 3600`, 61*time.Minute, "10.1.2.3/24"),
		Entry("never", `, "stickyFor": 0`, 10000*time.Hour, "10.1.2.2/24"),
	)

	It("remembers half of the range, and forgets the oldest address first", func() {
		small := `"subnet": "10.1.2.0/28", "sticky": "pod"` // 13 addresses
		for i := range 8 {
			addAndDelete(fmt.Sprint("c", i), with(small, fmt.Sprint("web-", i)))
			setAge(fmt.Sprint("10.1.2.", 2+i), time.Duration(20-i)*time.Minute)
		}
		addAndDelete("more", with(small, "more"))
		Expect(nstest.Reservations(GinkgoTB(), filepath.Join(host.DataDir, ".plumb", ".sticky"), "net")).To(ConsistOf(
			"10.1.2.4", "10.1.2.5", "10.1.2.6", "10.1.2.7", "10.1.2.8", "10.1.2.9", "10.1.2.10"), "ADD forgot the others")
		Expect(host.Add("c10", with(small, "web-2"))).To(Equal("10.1.2.11/28"), "forgotten")
		Expect(host.Add("c11", with(small, "web-3"))).To(Equal("10.1.2.5/28"))
	})

	It("counts the records of a larger range only from time to time", func() {
		count := func() int {
			return len(nstest.Reservations(GinkgoTB(), filepath.Join(host.DataDir, ".plumb", ".sticky"), "net"))
		}
		for i := range 140 { // half of the range is 126, and an eighth of that is 15
			v := with(ipam, fmt.Sprint("web-", i))
			host.Add("c1", v)
			Expect(count()).To(BeNumerically("<=", 126))
			host.OK("DEL", "c1", v)
		}
		Expect(count()).To(Equal(124), "127 when ADD counted them, then 111, and 13 more")
		Expect(host.Add("c1", with(ipam, "web-15"))).NotTo(Equal("10.1.2.17/24"))
		Expect(host.Add("c2", with(ipam, "web-16"))).To(Equal("10.1.2.18/24"))
		files, err := filepath.Glob(record("*"))
		Expect(err).NotTo(HaveOccurred())
		Expect(files).To(HaveLen(2*124 + 1))
	})

	It("ignores a damaged record after a warning, and replaces it", func() {
		v := with(ipam, "web-0")
		for i, damage := range []func(){
			func() { Expect(os.WriteFile(record("10.1.2.2"), nil, 0o600)).To(Succeed()) },
			func() {
				Expect(os.Remove(record("10.1.2.3"))).To(Succeed())
				Expect(os.Symlink("/dev/zero", record("10.1.2.3"))).To(Succeed())
			},
			func() {
				names, err := filepath.Glob(record("*"))
				Expect(err).NotTo(HaveOccurred())
				for _, name := range names {
					if base := filepath.Base(name); !strings.Contains(base, ".") && base != "count" {
						Expect(os.WriteFile(name, []byte("10.1.2.4\x00\x00"), 0o600)).To(Succeed())
					}
				}
			},
		} {
			want := fmt.Sprintf("10.1.2.%d/24", 2+i)
			Expect(addAndDelete("c1", v)).To(Equal(want))
			damage()
			reply := host.Run("ADD", "c2", v).OK(GinkgoTB())
			Expect(reply.Stderr).To(ContainSubstring("warning: sticky: a record of pod/default/web-0/eth0 in "))
			Expect(reply.Stdout).NotTo(ContainSubstring(want))
			host.OK("DEL", "c2", v)
			setAge("10.1.2."+fmt.Sprint(3+i), 0)
		}
		Expect(host.Add("c3", v)).To(Equal("10.1.2.5/24"))
	})

	It("warns of a pod without a name, and of a record that DEL cannot write", func() {
		reply := host.Run("ADD", "c1", variant{IPAM: ipam}).OK(GinkgoTB())
		Expect(reply.Stderr).To(ContainSubstring("warning: sticky: CNI_ARGS contains no valid K8S_POD_NAME"))
		host.OK("DEL", "c1", variant{IPAM: ipam})
		Expect(record("")).NotTo(BeADirectory())
		host.Add("c2", with(ipam, "web-0"))
		Expect(os.WriteFile(filepath.Dir(record("")), nil, 0o600)).To(Succeed())
		Expect(host.Run("DEL", "c2", variant{IPAM: ipam}).OK(GinkgoTB()).Stderr).To(ContainSubstring("warning: sticky: address 10.1.2.3 is not remembered: "))
		Expect(host.Reserved()).To(BeEmpty())
	})

	DescribeTable("mac remembers a requested MAC address", func(more, args string) {
		const ipam = subnet + `, "sticky": "mac"`
		addAndDelete("c0", variant{IPAM: ipam})
		Expect(record("")).NotTo(BeADirectory(), "no MAC address was requested")
		v := variant{IPAM: ipam, More: more, Args: args}
		Expect(addAndDelete("c1", v)).To(Equal("10.1.2.3/24"))
		Expect(host.Add("c2", variant{IPAM: ipam, Args: "MAC=02:00:00:00:00:99"})).To(Equal("10.1.2.4/24"))
		Expect(host.Add("c3", v)).To(Equal("10.1.2.3/24"))
		Expect(os.ReadFile(record("10.1.2.3"))).To(BeEquivalentTo("mac/02:00:00:00:00:0a/eth0"))
	},
		Entry("in CNI_ARGS", "", "MAC=02-00-00-00-00-0A"),
		Entry("in args", `"args": {"cni": {"mac": "02:00:00:00:00:0a"}}`, "MAC=02:00:00:00:00:01"),
		Entry("in runtimeConfig", `"runtimeConfig": {"mac": "02:00:00:00:00:0A"}, "args": {"cni": {"mac": "02:00:00:00:00:02"}}`, "MAC=02:00:00:00:00:01"),
	)

	DescribeTable("returns code 7 for an invalid value", func(v variant, want string) {
		host.Run("ADD", "c1", v).RequireFailure(GinkgoTB(), types.CodeConfig, want)
		host.OK("DEL", "c1", v)
	},
		Entry("an empty sticky", variant{IPAM: subnet + `, "sticky": ""`}, `ipam.sticky "" must be pod or mac`),
		Entry("sticky", variant{IPAM: subnet + `, "sticky": "name"`}, `ipam.sticky "name" must be pod or mac`),
		Entry("stickyFor alone", variant{IPAM: subnet + `, "stickyFor": 5`}, "stickyFor has no effect without sticky"),
		Entry("stickyFor", variant{IPAM: ipam + `, "stickyFor": -1`}, "stickyFor -1 must be between 0 and 31536000 seconds"),
		Entry("a MAC address", variant{IPAM: subnet + `, "sticky": "mac"`, Args: "MAC=01:00:00:00:00:01"}, "it is a multicast address, because its second digit '1' is odd"),
	)

	It("without the key, records have no effect, and DEL writes none", func() {
		small := `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3"`
		for i, age := range []time.Duration{1, 2} {
			addAndDelete(fmt.Sprint("c", i), with(small+`, "sticky": "pod"`, fmt.Sprint("web-", i)))
			setAge(fmt.Sprint("10.1.2.", 2+i), age*time.Hour)
		}
		Expect(host.Add("c1", with(small, "web-1"))).To(Equal("10.1.2.2/29"))
		host.OK("DEL", "c1", variant{})
		host.Add("c2", with(small+`, "sticky": "pod"`, "web-1"))
		Expect(os.RemoveAll(record(""))).To(Succeed())
		host.OK("DEL", "c2", variant{IPAM: small})
		Expect(record("")).NotTo(BeADirectory())
	})

	It("gives different addresses to concurrent containers of a pod", func() {
		addAndDelete("c0", with(ipam, "web-0"))
		ips := make([]string, 8)
		var all sync.WaitGroup
		for i := range ips {
			call := host.Call(fmt.Sprint("c", i), with(ipam, "web-0")).With("ADD")
			all.Go(func() {
				defer GinkgoRecover()
				ips[i] = nstest.Run(host.Plugin(), call).Result(GinkgoTB()).IPs[0].Address.String()
			})
		}
		all.Wait()
		Expect(host.Reserved()).To(HaveLen(len(ips)))
		Expect(ips).To(ContainElement("10.1.2.2/24"))
	})

	It("leaves no reservation if a step fails", func() {
		nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
			Plugin: host.Plugin(), Config: host.Config(variant{IPAM: dual}), Args: podArgs("web-0"), Dirs: []string{host.Net("")},
			Prepare: func(_, _ *nstest.NS) { Expect(os.RemoveAll(host.DataDir)).To(Succeed()) },
			Ignore:  func(line string) bool { return strings.Contains(line, "last_reserved_ip.") },
		})
	})
})
