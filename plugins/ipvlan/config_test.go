package main

import (
	"os"
	"path/filepath"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The specs of macvlan test what all plugins with a master share. The following specs run on kernels that do
// not support ipvlans.

var _ = Describe("without an ipvlan", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("ADD rejects an invalid configuration",
		func(version, keys, ipam string, code int, texts ...string) {
			b.Refuse(b.NewCall(b.conf(version, keys, ipam)), code, texts...)
		},
		Entry("an unknown mode", "1.0.0", `"mode":"l4"`, nstest.StaticV4, types.CodeConfig, `unknown ipvlan mode: "l4"`, "want l2, l3 or l3s"),
		Entry("an unknown flag", "1.0.0", `"flag":"x"`, nstest.StaticV4, types.CodeConfig, `flag "x" must be bridge, private or vepa`),
		Entry("a relative dataDir", "1.0.0", `"dataDir":"x"`, nstest.StaticV4, types.CodeConfig, `dataDir "x" is not an absolute path`),
		Entry("numbers of queues that the kernel rejects", "1.0.0", onUplink+`,"numTxQueues":-1,"numRxQueues":5000`, nstest.StaticV4, types.CodeConfig, "numTxQueues -1 must be between 0 and 4096", "numRxQueues 5000"),
		Entry("an MTU larger than the master's", "1.0.0", onUplink+`,"mtu":1501`, nstest.StaticV4, types.CodeConfig, "invalid MTU 1501, must be [0, master MTU(1500)]"),
		Entry("several problems, all of which the error names", "1.0.0", `"mode":"x","flag":"y","mtu":-1`, nstest.StaticV4, types.CodeConfig, `"x"`, `"y"`, "mtu -1"),
		Entry("an unknown key with strict", "1.0.0", onUplink+`,"strict":true,"flags":"vepa"`, nstest.StaticV4, types.CodeUnsupported, "flags: unknown key"),
		Entry("a prevResult without exactly one interface", "1.0.0", `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"a"},{"name":"b"}]}`, noIPAM,
			types.CodeConfig, "chained master failure. PrevResult lacks a single named interface"),
		Entry("addresses and an invalid route in prevResult", "1.0.0", onUplink+`,"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}],"routes":[{"gw":"10.0.0.1"}]}`, noIPAM,
			types.CodeDecode, "prevResult: decode result of version 1.0.0: routes[0].dst is missing"),
		Entry("a prevResult with lo", "1.0.0", `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"lo"}]}`, noIPAM, types.CodeConfig, "prevResult: master lo is the loopback"),
	)

	It("ADD rejects an interface name that exists in the container, and reserves no address", func() {
		container := b.NewContainer()
		container.IP("link add eth0 type veth peer name eth1")
		b.Refuse(b.Call("one", container, b.conf("1.0.0", onUplink, b.HostLocal())), types.CodeConfig, `interface "eth0" already exists`)
	})

	It("ADD explains why the kernel did not create the ipvlan, and leaves nothing", func() {
		c := b.NewCall(b.conf("1.0.0", onUplink, b.HostLocal()))
		b.Refuse(c.FailAt("add link eth0", syscall.EOPNOTSUPP), types.CodeConfig, "the kernel does not support ipvlan interfaces (CONFIG_IPVLAN)")
		b.Refuse(c.FailAt("add link eth0", syscall.EBUSY), types.CodeConfig, "master uplink0 has macvlans, or is a port of a bridge or a bond")
	})

	It("ADD warns that it ignores a MAC from the runtime", func() {
		c := b.NewCall(b.conf("1.0.0", onUplink, nstest.StaticV4)).FailAt("add link eth0", syscall.EBUSY)
		c.Args = "MAC=02:00:00:00:00:01"
		Expect(b.Run("ADD", c).Stderr).To(ContainSubstring("MAC in CNI_ARGS is ignored"))
	})

	It("ADD rejects another mode or flag than another attachment of the master uses, and ignores damaged records", func() {
		Expect(os.MkdirAll(b.records, 0o700)).To(Succeed())
		for name, text := range map[string]string{"empty.json": "", "cut.json": `{"Network":"net1"`, "list.json": "[]"} {
			Expect(os.WriteFile(filepath.Join(b.records, name), []byte(text), 0o600)).To(Succeed())
		}
		first := b.NewCall(b.conf("1.0.0", onUplink, nstest.StaticV4))
		first.Before = func(step string) error {
			if step != "add link eth0" {
				return nil
			}
			for _, keys := range []string{`,"mode":"l3"`, `,"flag":"vepa"`} {
				c := b.Call("two", b.NewContainer(), b.conf("1.0.0", onUplink+keys, nstest.StaticV4))
				b.Fails("ADD", c, types.CodeConfig, "the master has mode l2, flag bridge for the attachment net1/one/eth0")
			}
			return syscall.EBUSY
		}
		b.Refuse(first, types.CodeConfig, "master uplink0 has macvlans")
	})

	It("ADD uses the interface of the default route, or of prevResult, as the master", func() {
		c := b.NewCall(b.conf("1.0.0", "", nstest.StaticV4))
		b.Refuse(c.FailAt("add link eth0", syscall.EBUSY), types.CodeConfig, "master uplink0 has")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
		c.Config = b.conf("1.0.0", `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"uplink1"}]}`, noIPAM)
		b.Refuse(c.FailAt("add link eth0", syscall.EBUSY), types.CodeConfig, "master uplink1 has")
	})

	It("GC removes the temporary files of killed ADDs, but not for valid attachments and other networks", func() {
		Expect(os.MkdirAll(b.records, 0o700)).To(Succeed())
		var temps []string
		for _, a := range []types.Attachment{{Network: "net1", ContainerID: "killed"}, {Network: "net1", ContainerID: "running", IfName: "eth0"}, {Network: "net2", ContainerID: "killed"}} {
			temps = append(temps, filepath.Join(b.records, statefile.TempName(a)))
			Expect(os.WriteFile(temps[len(temps)-1], nil, 0o600)).To(Succeed())
		}
		b.OK("GC", b.Call("", nil, b.conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[{"containerID":"running","ifname":"eth0"}]`, noIPAM)))
		Expect(b.recordFiles()).To(ConsistOf(temps[1], temps[2]))
	})

	It("STATUS fails if the record of an ADD cannot be written", func() {
		Expect(os.WriteFile(b.records, nil, 0o600)).To(Succeed())
		b.RequireStatus(b.conf("1.1.0", onUplink, nstest.StaticV4), "write to "+b.records)
	})

	DescribeTable("STATUS reports whether an ADD would succeed:",
		func(keys, ipam, text string) { b.RequireStatus(b.conf("1.1.0", keys, ipam), text) },
		Entry("success", onUplink, nstest.StaticV4, ""),
		Entry("success without master and ipam, which prevResult may contain", `"mtu":9000`, noIPAM, ""),
		Entry("success with a master in the container, which STATUS does not check", `"master":"net0","linkInContainer":true`, noIPAM, ""),
		Entry("the MTU is larger than the MTU of the default route's interface", `"mtu":9000`, nstest.StaticV4, "invalid MTU 9000"),
	)
})
