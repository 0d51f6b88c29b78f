package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestReadme(t *testing.T) {
	nstest.Examples(t, plugin(), parse)
}

func TestFaults(t *testing.T) {
	nstest.LeakCheck(t)
	nstest.FaultSweep(t, nstest.Sweep{Plugin: plugin(), Config: config("1.1.0"), Prepare: func(_, container *nstest.NS) { setUpAndDown(t, container) }})
}

// setUpAndDown sets lo up and down. The kernel adds 127.0.0.1 and its routes when lo is set up for the
// first time, and does not remove them when lo is set down.
func setUpAndDown(tb nstest.TB, container *nstest.NS) {
	container.Batch(tb, "link set lo up", "link set lo down")
}

// containerd is the configuration that containerd sends for each container.
const containerd = `{"cniVersion":"0.3.1","name":"cni-loopback","type":"loopback"}`

func config(version string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": "lo-net", "type": "loopback"}`, version)
}

var _ = Describe("loopback", func() {
	var b *nstest.Bed
	var host, container *nstest.NS
	var call nstest.Call

	BeforeEach(func() {
		host, container = nstest.NewHostAndContainer(GinkgoTB())
		b = nstest.NewBedOn(GinkgoTB(), plugin(), host)
		call = nstest.Call{Host: host, Container: container, IfName: "lo", Config: config("1.1.0")}
	})

	run := func(command string) nstest.Reply { return b.Run(command, call) }
	isUp := func() bool {
		GinkgoHelper()
		return strings.Contains(container.IP("link show lo"), ",UP,")
	}

	It("ADD sets up lo, whatever CNI_IFNAME is, and returns the result in the form of each version", func() {
		b.RequireResults(config)
	})

	It("succeeds with containerd's calls, which are ADD, DEL, and DEL without a namespace", func() {
		call.Config = containerd
		call.Args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=test;K8S_POD_UID=u;IgnoreUnknown=1"
		Expect(run("ADD").OK(GinkgoTB()).Stdout).To(ContainSubstring(`"cniVersion": "0.3.1"`))
		Expect(isUp()).To(BeTrue())
		run("DEL").OK(GinkgoTB())
		Expect(isUp()).To(BeFalse())
		call.Container = nil
		Expect(run("DEL").OK(GinkgoTB())).To(Equal(nstest.Reply{}))
	})

	It("returns no address of a family that the container does not support", func() {
		container.SetSysctl(GinkgoTB(), "net/ipv6/conf/lo/disable_ipv6", "1")
		result := run("ADD").Result(GinkgoTB())
		Expect(result.IPs).To(HaveLen(1))
		Expect(result.IPs[0].Address.String()).To(Equal("127.0.0.1/8"))
	})

	It("does not change the group of lo", func() {
		container.IP("link set lo group 42")
		group := func() string { return container.IP("link show lo") }
		run("ADD").OK(GinkgoTB())
		Expect(group()).To(ContainSubstring("group 42"))
		run("DEL").OK(GinkgoTB())
		Expect(group()).To(ContainSubstring("group 42"))
	})

	It("ADD returns the first address of each family, even in a second call", func() {
		first := run("ADD").OK(GinkgoTB())
		container.IP("addr add 127.0.0.53/8 dev lo")
		Expect(run("ADD").OK(GinkgoTB())).To(Equal(first))
	})

	It("ADD returns prevResult if there is one", func() {
		prev := `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
			"ips": [{"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {"domain": "d"}}`
		call.Config = `{"cniVersion": "1.0.0", "name": "n", "type": "loopback", "prevResult": ` + prev + `}`
		Expect(run("ADD").OK(GinkgoTB()).Stdout).To(MatchJSON(prev))
		Expect(isUp()).To(BeTrue())
	})

	It("ADD fails if lo has an address that is not a loopback address, and changes nothing", func() {
		setUpAndDown(GinkgoTB(), container)
		container.IP("addr add 192.0.2.1/32 dev lo")
		b.Refuse(call, types.CodeConfig, "interface lo has 192.0.2.1/32")
	})

	It("a failed ADD leaves lo up if it was up", func() {
		container.IP("link set lo up")
		call = call.FailAt("list addresses", os.ErrPermission)
		run("ADD").Failure(GinkgoTB())
		Expect(isUp()).To(BeTrue())
	})

	Describe("DEL", func() {
		It("leaves lo up in another attachment's namespace at the same path", func() {
			container.IP("link set lo up")
			run("DEL").OK(GinkgoTB())
			Expect(isUp()).To(BeTrue())
			other := call
			other.ContainerID = "other"
			nstest.Run(plugin(), other.With("ADD")).OK(GinkgoTB())
			run("DEL").OK(GinkgoTB())
			Expect(isUp()).To(BeTrue())
			nstest.Run(plugin(), other.With("DEL")).OK(GinkgoTB())
			Expect(isUp()).To(BeFalse())
		})

		It("leaves the host's own lo up", func() {
			call.Container, call.NetNS = nil, host.Path()
			run("DEL").OK(GinkgoTB())
			Expect(host.IP("link show lo")).To(ContainSubstring(",UP,"))
		})
	})

	Describe("CHECK", func() {
		It("succeeds after ADD, with and without prevResult", func() {
			result := run("ADD").OK(GinkgoTB()).Stdout
			Expect(run("CHECK").OK(GinkgoTB())).To(Equal(nstest.Reply{}))
			call.Config = `{"cniVersion": "1.1.0", "name": "n", "type": "loopback", "prevResult": ` + result + `}`
			run("CHECK").OK(GinkgoTB())
		})

		It("fails if lo is down", func() {
			run("ADD").OK(GinkgoTB())
			container.IP("link set lo down")
			f := run("CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
			Expect(f.Msg).To(Equal("interface lo is down"))
			stdout := run("CHECK").Stdout
			Expect(stdout).To(And(ContainSubstring(`"repair": "container-side"`), ContainSubstring(` ip link set dev lo up"`)))
		})
	})

	It("REPAIR sets lo up only on the container's side, and only if no other attachment has set its alias", func() {
		run("ADD").OK(GinkgoTB())
		container.IP("link set lo down")
		Expect(run("REPAIR").Failure(GinkgoTB()).Msg).To(Equal("interface lo is down"))
		call = call.OnContainerSide()
		run("REPAIR").OK(GinkgoTB())
		container.IP("link set lo down alias other")
		Expect(run("REPAIR").Failure(GinkgoTB()).Msg).To(Equal("interface lo is down"))
		Expect(container.IP("link show lo")).NotTo(ContainSubstring(",UP,"))
	})

	It("STATUS returns code 50 for an unknown key with strict", func() {
		run("STATUS").OK(GinkgoTB())
		call.Config = `{"cniVersion": "1.1.0", "name": "n", "type": "loopback", "strict": true, "mtu": 5}`
		run("STATUS").RequireFailure(GinkgoTB(), types.CodeNotAvailable, "mtu")
	})
})
