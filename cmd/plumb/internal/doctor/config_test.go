package doctor_test

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// good is a configuration without mistakes.
const good = `{
    "cniVersion": "1.1.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "POOLS",
                "subnet": "10.88.0.0/16",
                "gateway": "10.88.0.1"
            }
        }
    ]
}
`

// A mistake is a problem that plumb doctor must find. Without it, the host is correct and uses the configuration good.
type mistake struct {
	create func(n *testHost)
	what   string // a part of the finding's place and text
	// byHand does what the advice says. It is nil if the advice is a command.
	byHand func(n *testHost)
}

// change returns a mistake that replaces from with to in the configuration. byHand changes it back.
func change(from, to, what string) mistake {
	return mistake{
		create: func(n *testHost) { n.change("10-pods.conflist", from, to) },
		what:   what,
		byHand: func(n *testHost) { n.change("10-pods.conflist", to, from) },
	}
}

// more returns a mistake that adds a plugin to the configuration. byHand fixes it by replacing from with to.
func more(plugin, from, to, what string) mistake {
	m := change(from, to, what)
	m.create = func(n *testHost) {
		n.change("10-pods.conflist", "        }\n    ]", "        },\n        "+plugin+"\n    ]")
	}
	m.byHand = func(n *testHost) { n.change("10-pods.conflist", from, to) }
	return m
}

// second returns a mistake that adds a second file with this text. byHand removes the file.
func second(name, text, what string) mistake {
	return mistake{
		create: func(n *testHost) { n.write(name, text) },
		what:   what,
		byHand: func(n *testHost) { Expect(os.Remove(filepath.Join(n.confDir(), name))).To(Succeed()) },
	}
}

// reserve reserves the addresses from 10.88.0.FIRST to 10.88.0.LAST. The files are so new that their ADDs may be running.
func (n *testHost) reserve(first, last int) {
	GinkgoHelper()
	dir := filepath.Join(n.pools(), "pods")
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	for i := first; i <= last; i++ {
		path := filepath.Join(dir, fmt.Sprintf("10.88.0.%d", i))
		Expect(os.WriteFile(path, fmt.Appendf(nil, "c%d\r\neth0", i), 0o600)).To(Succeed())
		later := time.Now().Add(time.Hour) // the test may take more than a minute
		Expect(os.Chtimes(path, later, later)).To(Succeed())
	}
}

var _ = Describe("plumb doctor on configurations", func() {
	DescribeTable("keeps the good list if all advice about file names is followed", func(write func(n *testHost), kept ...string) {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		write(n)
		for _, f := range n.doctor().Findings {
			fmt.Fprintf(GinkgoWriter, "%s: %s\n%q\n", f.Where, f.What, f.Lines())
			Expect(f.Fix).NotTo(BeEmpty(), f.What)
			n.sh(f.Fix)
		}
		report := n.doctor()
		Expect(report.Findings).To(BeEmpty())
		var names []string
		for _, path := range report.Files {
			names = append(names, filepath.Base(path))
		}
		Expect(names).To(Equal(kept))
		Expect(filepath.Join(n.confDir(), kept[0])).To(BeARegularFile())
		Expect(nstest.ReadFile(GinkgoTB(), filepath.Join(n.confDir(), kept[0]))).To(Equal(strings.ReplaceAll(good, "POOLS", n.pools())))
	},
		Entry("a copy of the list in a file *.conf", func(n *testHost) { n.write("10-pods.conf", good) }, "10-pods.conflist"),
		Entry("copies of the list in two files with other endings, one of them unused before", func(n *testHost) {
			n.write("10-pods.conf", good)
			n.write("10-pods.conf.unused", "{")
			n.write("10-pods.json", good)
		}, "10-pods.conflist"),
		Entry("a copy of the list with a lower number in a file *.conf", func(n *testHost) { n.write("05-pods.conf", good) }, "10-pods.conflist"),
		Entry("two copies of the list in files *.conf and *.json", func(n *testHost) {
			n.write("20-pods.conf", good)
			n.write("20-pods.json", good)
			n.sh("rm " + n.confDir() + "/10-pods.conflist")
		}, "20-pods.conflist"),
		Entry("an earlier list of the network that libcni rejects", func(n *testHost) {
			n.write("05-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": []}`)
		}, "10-pods.conflist"),
		Entry("a copy that was disabled before", func(n *testHost) {
			n.write("20-pods.conflist", good)
			n.write("20-pods.conflist.unused", good)
		}, "10-pods.conflist"),
		Entry("another network in a file whose right name is taken", func(n *testHost) {
			n.write("10-pods.conf", `{"cniVersion": "1.1.0", "name": "z", "plugins": [{"type": "bridge", "bridge": "z"}]}`)
		}, "10-pods.conflist", "11-pods.conflist"),
		Entry("a file whose next number is taken", func(n *testHost) {
			n.write("10-z.conflist", `{"cniVersion": "1.1.0", "name": "z", "plugins": [{"type": "bridge", "bridge": "z"}]}`)
			n.write("11-z.conflist", `{"cniVersion": "1.1.0", "name": "y", "plugins": [{"type": "bridge", "bridge": "y"}]}`)
		}, "10-pods.conflist", "11-z.conflist", "12-z.conflist"),
	)

	It("notes a network without GC, which is not a problem", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", strings.Replace(good, "1.1.0", "1.0.0", 1))
		report := n.doctor()
		Expect(report.Findings).To(BeEmpty())
		Expect(report.Notes).To(HaveExactElements(HaveField("What", "cniVersion 1.0.0 does not support GC, so that resources that name no attachment remain")))
	})

	It("notes a bridge whose containers cannot connect to their own host ports, which is not a problem", func() {
		n := newTestHost("bridge", "host-local", "portmap")
		n.write("10-pods.conflist", strings.Replace(good, "        }\n    ]", `        }, {"type": "portmap", "capabilities": {"portMappings": true}}
    ]`, 1))
		report := n.doctor()
		Expect(report.Findings).To(BeEmpty())
		Expect(report.Notes).To(HaveExactElements(HaveField("What", "bridge: hairpinMode is not set, so that containers cannot connect to their own host ports")))
		out, _ := n.plumb(append([]string{"doctor"}, n.directories()...)...)
		Expect(out).To(ContainSubstring("checks)\nnote: " + report.Notes[0].Where + ": bridge: hairpinMode is not set"))
		n.change("10-pods.conflist", `"isGateway"`, `"hairpinMode": true, "isGateway"`)
		Expect(n.doctor().Notes).To(BeEmpty())
	})

	It("finds nothing wrong on a good host, and says what it examined", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		out, status := n.plumb(append([]string{"doctor"}, n.directories()...)...)
		Expect(out).To(MatchRegexp(`^no runtime found: .*\nnothing found \(1 configuration, 2 executables, 0 attachments, [0-9]+ checks\)\n$`))
		Expect(status).To(BeZero())
	})

	It("changes nothing", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", strings.Replace(good, "isGateway", "isGatway", 1))
		state := func() string { return nstest.Snapshot(GinkgoTB(), n.NS) + nstest.SnapshotDir(GinkgoTB(), n.dir) }
		before := state()
		n.doctor()
		Expect(nstest.Compare(before, state())).To(BeEmpty())
	})

	It("reads the files of its arguments instead of the directory", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", "{")
		other := filepath.Join(n.dir, "other.conflist")
		Expect(os.WriteFile(other, []byte(strings.ReplaceAll(good, "POOLS", n.pools())), 0o644)).To(Succeed())
		report := n.doctor(other)
		Expect(report.Findings).To(BeEmpty())
		Expect(report.Files).To(Equal([]string{other}))
	})

	It("rejects FILE together with --live", func() {
		n := newTestHost("bridge", "host-local")
		_, err := n.Exec(filepath.Join(n.built, "plumb"), "doctor", "--live", "-", "x.conflist")
		Expect(err).To(MatchError(ContainSubstring("exit status 2: plumb: --live cannot be combined with FILE")))
	})

	DescribeTable("finds nothing wrong in configurations that other programs write", func(text string) {
		n := newTestHost("bridge", "host-local", "ptp", "portmap", "firewall", "tuning")
		n.write("10-a.conflist", text)
		Expect(n.doctor().Findings).To(BeEmpty())
	},
		Entry("podman", `{"args": {"podman_labels": {"a": "b"}}, "cniVersion": "0.4.0", "name": "a", "plugins": [
			{"type": "bridge", "bridge": "cni-podman1", "isGateway": true, "ipMasq": true, "hairpinMode": true, "capabilities": {"ips": true},
			"ipam": {"type": "host-local", "dataDir": "POOLS", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}]]}},
			{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall", "backend": ""}, {"type": "tuning"}]}`),
		Entry("nerdctl", `{"cniVersion": "1.0.0", "name": "bridge", "nerdctlID": "17f29b073143", "nerdctlLabels": {"nerdctl/default-network": "true"}, "plugins": [
			{"type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
			"ipam": {"ranges": [[{"gateway": "10.4.0.1", "subnet": "10.4.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "type": "host-local", "dataDir": "POOLS"}},
			{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall", "ingressPolicy": "same-bridge"}, {"type": "tuning"}]}`),
		Entry("kind", `{"cniVersion": "0.3.1", "name": "kindnet", "plugins": [{"type": "ptp", "ipMasq": false, "mtu": 1500,
			"ipam": {"type": "host-local", "dataDir": "POOLS", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.244.0.0/24"}]]}},
			{"type": "portmap", "capabilities": {"portMappings": true}}]}`),
		Entry("a key of another program", `{"cniVersion": "1.1.0", "name": "a", "plugins": [{"type": "bridge", "com.example.owner": "me"}]}`),
	)

	DescribeTable("finds a mistake, and prints advice that fixes it if followed literally",
		func(check string, m mistake) {
			n := newTestHost("bridge", "host-local", "ptp", "macvlan", "portmap", "firewall", "tuning", "bandwidth")
			n.write("10-pods.conflist", good)
			m.create(n)
			finding := n.find(check, m.what)
			fmt.Fprintf(GinkgoWriter, "%s: %s\n%q\n", finding.Where, finding.What, finding.Lines())
			var byHand func()
			if m.byHand != nil {
				byHand = func() { m.byHand(n) }
			}
			n.requireFixed(finding, byHand)
		},
		Entry("a missing quote", "syntax", mistake{
			create: func(n *testHost) { n.change("10-pods.conflist", `"pods",`, `"pods,`) },
			what:   "10-pods.conflist:3: not valid JSON",
			byHand: func(n *testHost) { n.change("10-pods.conflist", `"pods,`, `"pods",`) },
		}),
		Entry("a byte order mark", "syntax", mistake{
			create: func(n *testHost) { n.write("10-pods.conflist", "\ufeff"+good) },
			what:   "10-pods.conflist:1: not valid JSON: the file begins with a byte order mark",
		}),
		Entry("a dangling link", "syntax", mistake{
			create: func(n *testHost) { n.sh("ln -s /nonexist " + n.confDir() + "/06-l.conflist") },
			what:   "06-l.conflist: cannot be read: link to /nonexist: no such file or directory",
		}),
		Entry("a named pipe instead of a file", "syntax", mistake{
			create: func(n *testHost) { n.sh("mkfifo " + n.confDir() + "/06-p.conflist") },
			what:   "06-p.conflist: cannot be read: not a regular file",
			byHand: func(n *testHost) { n.sh("rm " + n.confDir() + "/06-p.conflist") },
		}),
		Entry("a directory with the extension of a configuration", "file-kind", mistake{
			create: func(n *testHost) { n.sh("mkdir " + n.confDir() + "/06-d.conflist") },
			what:   "06-d.conflist: is a directory, and libcni does not read the configurations in it",
			byHand: func(n *testHost) { n.sh("rmdir " + n.confDir() + "/06-d.conflist") },
		}),
		Entry("a list in a file *.conf", "file-kind", mistake{
			create: func(n *testHost) {
				n.sh("mv " + n.confDir() + "/10-pods.conflist " + n.confDir() + "/10-pods.conf")
			}, what: "contains a list of plugins",
		}),
		Entry("one plugin in a file *.conflist", "file-kind", mistake{
			create: func(n *testHost) {
				n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "type": "bridge"}`)
			}, what: "the file contains the configuration of one plugin",
		}),
		Entry("no configuration", "no-configuration", mistake{
			create: func(n *testHost) { n.sh("rm " + n.confDir() + "/*") },
			what:   "no network configuration",
			byHand: func(n *testHost) { n.write("10-pods.conflist", good) },
		}),
		Entry("two files with the same number", "order", mistake{
			create: func(n *testHost) {
				n.write("10-z.conflist", `{"cniVersion": "1.1.0", "name": "z", "plugins": [{"type": "bridge", "bridge": "z"}]}`)
			}, what: "10-z.conflist: begins with 10, like 10-pods.conflist",
		}),
		Entry("two files for the same network", "duplicate-name", mistake{
			create: func(n *testHost) { n.write("20-copy.conflist", good) }, what: `another file configures the network "pods"`,
		}),
		Entry("two files with the same number and network", "duplicate-name", mistake{
			create: func(n *testHost) { n.write("10-zzz.conflist", good) }, what: `10-zzz.conflist: another file configures the network "pods"`,
		}),
		Entry("a key that is nearly right", "status",
			change("isGateway", "isGatway", "10-pods.conflist:8: plugins[0].isGatway: unknown key; isGateway was probably meant")),
		Entry("a key of ipam that is nearly right", "status",
			change(`"subnet": "10.88.0.0/16",`, `"subnet": "10.88.0.0/16", "rangeStrat": "10.88.0.5",`, "10-pods.conflist:12: plugins[0].ipam.rangeStrat: unknown key; rangeStart")),
		Entry("a key of ipam beside ipam, as faasd writes it", "status", change(`"isGateway"`, `"resolvConf": "/etc/resolv.conf", "isGateway"`,
			"plugins[0].resolvConf: unknown key of bridge; this key belongs into ipam, where host-local reads it")),
		Entry("a key that no plugin knows", "status", change(`"isGateway"`, `"colour": "red", "isGateway"`, "plugins[0].colour: unknown key")),
		Entry("a string instead of a number", "status", change(`"isGateway"`, `"mtu": "1500", "isGateway"`, `10-pods.conflist:8: plugins[0].mtu: want a number (int), got string`)),
		Entry("a value that is nearly right", "status", change(`"isGateway"`, `"ipMasqBackend": "nftable", "isGateway"`, `"nftable"`)),
		Entry("a key twice", "keys", change(`"isGateway"`, `"isGateway": false, "isGateway"`, "10-pods.conflist:8: plugins[0].isGateway: the key occurs twice")),
		Entry("a key in another spelling beside the exact one", "status", change(`"isGateway"`, `"ISGATEWAY": false, "isGateway"`, "10-pods.conflist:8: plugins[0].ISGATEWAY: unknown key")),
		Entry("a directory with the name of an executable", "executable", mistake{
			create: func(n *testHost) { n.sh("rm " + n.bin() + "/host-local && mkdir " + n.bin() + "/host-local") },
			what:   "/host-local is a directory",
		}),
		Entry("a directory with the name of an executable whose other name is taken", "executable", mistake{
			create: func(n *testHost) {
				n.sh("cd " + n.bin() + " && rm host-local && mkdir -p host-local host-local.directory && touch host-local.directory/host-local")
			},
			what: "/host-local is a directory",
		}),
		Entry("a path in the key type", "executable", change(`"type": "bridge"`, `"type": "/opt/cni/bin/bridge"`, `plugins[0].type "/opt/cni/bin/bridge": want a name without /`)),
		Entry("no key plugins", "keys", change(`"plugins"`, `"plugin"`, "10-pods.conflist: libcni rejects it: ")),
		Entry("no name", "keys", change(`"name"`, `"nname"`, "10-pods.conflist: libcni rejects it: error parsing configuration list: no name")),
		Entry("an empty type", "keys", second("20-b.conflist", `{"name": "b", "plugins": [{"type": ""}]}`, "20-b.conflist: libcni rejects it: ")),
		Entry("a capability of another plugin", "keys", more(`{"type": "portmap", "capabilities": {"bandwidth": true}}`, `"bandwidth": true`, `"portMappings": true`,
			"10-pods.conflist:16: plugins[1].capabilities.bandwidth: portmap does not support this capability")),
		Entry("a misspelled capability", "keys", more(`{"type": "portmap", "capabilities": {"portMapping": true}}`, `"portMapping": true`, `"portMappings": true`,
			"10-pods.conflist:16: plugins[1].capabilities.portMapping: portmap does not support this capability")),
		Entry("portmap after a plugin without an interface on the host", "unreachable-port",
			mistake{
				create: func(n *testHost) {
					n.Batch(GinkgoTB(), "link add up0 type veth peer name up1", "link set up0 up")
					n.write("20-b.conflist", `{"cniVersion": "1.1.0", "name": "b", "plugins": [{"type": "macvlan", "master": "up0"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`)
				},
				what:   `20-b.conflist:1: portmap: no other host can connect to host ports of network "b", because interfaces of macvlan are not connected to the host`,
				byHand: func(n *testHost) { Expect(os.Remove(filepath.Join(n.confDir(), "20-b.conflist"))).To(Succeed()) },
			}),
		Entry("portmap without its capability", "capability", more(`{"type": "portmap"}`, `"portmap"`, `"portmap", "capabilities": {"portMappings": true}`,
			"10-pods.conflist:16: portmap: capabilities.portMappings is missing, so that the runtime passes it no host ports")),
		Entry("bandwidth without its capability", "capability", more(`{"type": "bandwidth", "capabilities": {"bandwidth": false}}`, "false", "true",
			"10-pods.conflist:16: bandwidth: capabilities.bandwidth is missing, so that the runtime passes it no limits")),
		Entry("a chained plugin before the plugin that creates the interface", "chain", change(`"plugins": [
`, `"plugins": [
        {"type": "tuning", "mtu": 1400},
`, "10-pods.conflist:5: tuning comes before bridge, which creates the interface, and its ADD fails")),
		Entry("no plugin that creates an interface", "chain", second("20-c.conflist",
			`{"cniVersion": "1.1.0", "name": "c", "plugins": [{"type": "tuning", "mtu": 1400}, {"type": "firewall"}]}`,
			`20-c.conflist:1: no plugin of network "c" creates an interface, and ADD of tuning fails`)),
		Entry("a full pool", "pool", mistake{
			create: func(n *testHost) {
				n.change("10-pods.conflist", "10.88.0.0/16", "10.88.0.0/29")
				n.reserve(2, 6)
			},
			what: "network pods, range 10.88.0.1-10.88.0.6: all 5 addresses are in use, so that ADD fails",
			byHand: func(n *testHost) {
				Expect(n.find("pool", "").Edit).To(HaveSuffix(`: write "subnet": "10.88.0.0/28" in place of "subnet": "10.88.0.0/29", and add "forceAddress": true to bridge`))
				n.change("10-pods.conflist", `"subnet": "10.88.0.0/29"`, `"subnet": "10.88.0.0/28"`)
				n.change("10-pods.conflist", `"bridge",`, `"bridge", "forceAddress": true,`)
			},
		}),
		Entry("a full pool beside a subnet of another network", "pool", mistake{
			create: func(n *testHost) {
				n.change("10-pods.conflist", "10.88.0.0/16", "10.88.0.0/29")
				n.write("20-b.conflist", `{"cniVersion": "1.1.0", "name": "b", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.0.8/29"}}]}`)
				n.reserve(2, 6)
			},
			what: "all 5 addresses are in use, so that ADD fails",
			byHand: func(n *testHost) {
				Expect(n.find("pool", "").Advice).To(HavePrefix(`Enlarge "subnet"`))
				n.sh("rm " + n.pools() + "/pods/10.88.0.[2-4]")
			},
		}),
		Entry("a pool that is nearly full", "pool", mistake{
			create: func(n *testHost) {
				n.change("10-pods.conflist", "10.88.0.0/16", "10.88.0.0/28")
				n.reserve(2, 13)
			},
			what:   "only 1 of 13 addresses are free",
			byHand: func(n *testHost) { n.sh("rm " + n.pools() + "/pods/10.88.0.[2-4]") },
		}),
		Entry("frames between the ports of a bridge that do not pass kube-proxy's rules", Label(nstest.Kernel), "bridge-netfilter", mistake{
			create: func(n *testHost) {
				_, err := os.Stat("/proc/sys/net/bridge")
				nstest.RequireFeature(GinkgoTB(), "bridge netfilter", err)
				n.SetSysctl(GinkgoTB(), "net/bridge/bridge-nf-call-iptables", "0")
				n.Must(GinkgoTB(), "nft", "add table ip nat; add chain ip nat KUBE-SERVICES")
			},
			what: "kernel: net.bridge.bridge-nf-call-iptables is 0, so that containers on cni0 cannot connect to Services",
		}),
		Entry("an ignored backend", "status", more(`{"type": "firewall", "backend": "foo"}`, `, "backend": "foo"`, "", `backend "foo" must be`)),
		Entry("a sysctl that does not exist in containers", "sysctl", more(
			`{"type": "tuning", "sysctl": {"net/core/netdev_budget": "1", "net.ipv4.conf.eth0/7.arp_notify": "1", "net/core/somaxconn": "9"}}`, `"net/core/netdev_budget": "1", `, "",
			"10-pods.conflist:16: plugins[1].sysctl.net/core/netdev_budget: no such sysctl in a container")),
		Entry("a bridge name that is too long", "status", change(`"cni0"`, `"a-very-long-bridge"`, "a-very-long-bridge")),
		Entry("an invalid subnet", "status", change(`"10.88.0.0/16"`, `"10.88.0.0/33"`, `"10.88.0.0/33"`)),
		Entry("a range that ends before it begins", "status", change(`"gateway": `, `"rangeStart": "10.88.0.9", "rangeEnd": "10.88.0.5", "gateway": `,
			"rangeStart 10.88.0.9 is above rangeEnd 10.88.0.5")),
		Entry("a missing executable", "executable", mistake{
			create: func(n *testHost) { n.sh("rm " + n.bin() + "/host-local") },
			what:   `10-pods.conflist:10: plugins[0].ipam.type "host-local": no executable`,
		}),
		Entry("a type that is nearly right", "executable", change(`"type": "bridge"`, `"type": "brigde"`, `no executable in `)),
		Entry("an executable that is not executable", "executable", mistake{
			create: func(n *testHost) { n.sh("chmod 0644 " + n.bin() + "/bridge") }, what: "not executable (mode 0644)",
		}),
		Entry("an executable for another processor", "executable", mistake{
			// At the offset 18 of the ELF header is e_machine.
			create: func(n *testHost) {
				f, err := os.OpenFile(filepath.Join(n.bin(), "bridge"), os.O_WRONLY, 0)
				Expect(err).NotTo(HaveOccurred())
				_, err = f.WriteAt([]byte{byte(elf.EM_S390)}, 18)
				Expect(errors.Join(err, f.Close())).To(Succeed())
			}, what: "bridge: does not answer VERSION: fork/exec ",
		}),
		Entry("a version that a plugin does not support", "versions", mistake{
			create: func(n *testHost) {
				n.writeVendor()
				n.write("20-vendor.conflist", `{"cniVersion": "1.1.0", "name": "v", "plugins": [{"type": "vendor"}]}`)
			}, what: `cniVersion "1.1.0": not supported by vendor (0.4.0, 1.0.0)`,
			byHand: func(n *testHost) { n.change("20-vendor.conflist", "1.1.0", "1.0.0") },
		}),
		Entry("a version that does not exist", "versions", change("1.1.0", "2.0.0", `10-pods.conflist:2: cniVersion "2.0.0": not supported by bridge`)),
		Entry("an executable of another release", "mixed-versions", mistake{
			create: func(n *testHost) {
				n.buildOld("ptp", filepath.Join(n.bin(), "ptp"))
				n.write("20-ptp.conflist", `{"cniVersion": "1.1.0", "name": "ptp", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.89.0.0/16"}}]}`)
			}, what: "bin/ptp: version v1.9.9 differs",
		}),
		Entry("overlapping ranges of two networks", "overlap", second("20-b.conflist",
			`{"cniVersion": "1.1.0", "name": "b", "plugins": [{"type": "bridge", "bridge": "b", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.77.0/24"}}]}`,
			`the range 10.88.77.1 to 10.88.77.254 of the network "b" overlaps with 10.88.0.1 to 10.88.255.254 of "pods"`)),
		Entry("a route of the host into the subnet", "route", mistake{
			create: func(n *testHost) {
				n.Batch(GinkgoTB(), "link add up0 type veth peer name up1", "link set up0 up", "route add 10.88.3.0/24 dev up0")
			},
			what:   "the host has a route to 10.88.3.0/24 on up0",
			byHand: func(n *testHost) { n.Must(GinkgoTB(), "ip", "route", "delete", "10.88.3.0/24", "dev", "up0") },
		}),
		Entry("the subnet of one of the host's interfaces", "route", mistake{
			create: func(n *testHost) {
				n.Batch(GinkgoTB(), "link add up0 type veth peer name up1", "link set up0 up", "address add 10.88.0.9/16 dev up0")
			},
			what: "the host has a route to 10.88.0.0/16 on up0",
			byHand: func(n *testHost) {
				Expect(n.find("route", "").Advice).To(Equal("Then replace the running containers."), "no command deletes the route")
				n.change("10-pods.conflist", "10.88.0.", "10.89.0.")
			},
		}),
		Entry("a policy rule that refuses what containers send", "policy-rule", mistake{
			create: func(n *testHost) { n.sh("ip rule add from 10.0.0.0/8 blackhole priority 100") },
			what:   `host: the policy rule "from 10.0.0.0/8" (priority 100) refuses the packets of containers of network "pods"`,
		}),
		Entry("a policy rule that refuses what containers get", "policy-rule", mistake{
			create: func(n *testHost) { n.sh("ip rule add to 10.88.0.0/16 prohibit priority 102") },
			what:   `host: the policy rule "to 10.88.0.0/16" (priority 102) refuses`,
		}),
		Entry("a policy rule that refuses what arrives through the bridge", "policy-rule", mistake{
			create: func(n *testHost) { n.sh("ip -6 rule add iif cni0 prohibit priority 101") },
			what:   `host: the policy rule "iif cni0" (priority 101) refuses`,
		}),
		Entry("a master that does not exist", "status", second("20-m.conflist",
			`{"cniVersion": "1.1.0", "name": "m", "plugins": [{"type": "macvlan", "master": "nosuch0"}]}`, `nosuch0`)),
		Entry("an IPv6 subnet although IPv6 is disabled", "ipv6", mistake{
			create: func(n *testHost) {
				n.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/disable_ipv6", "1")
				n.change("10-pods.conflist", `"subnet": "10.88.0.0/16",`, `"ranges": [[{"subnet": "fd00:88::/64"}]], "subnet": "10.88.0.0/16",`)
			}, what: "kernel: IPv6 is disabled",
		}),
		Entry("a configuration that STATUS rejects", "status", mistake{
			create: func(n *testHost) { n.change("10-pods.conflist", `"10.88.0.0/16"`, `"10.88.0.1/16"`) },
			what:   `STATUS of bridge in network "pods": code 50`,
			byHand: func(n *testHost) { n.change("10-pods.conflist", `"10.88.0.1/16"`, `"10.88.0.0/16"`) },
		}),
	)

	DescribeTable("reports once that the directory of the plugins does not exist", func(link string) {
		n := newTestHost("bridge", "host-local", "portmap")
		n.write("10-pods.conflist", strings.Replace(good, "        }\n    ]", `        }, {"type": "portmap", "capabilities": {"portMappings": true}}
    ]`, 1))
		n.sh("rm -r " + n.bin() + strings.ReplaceAll(link, "BIN", n.bin()))
		findings := n.doctor().Findings
		Expect(findings).To(HaveLen(1))
		Expect(findings[0].What).To(Equal("the directory of the plugins does not exist: " + n.bin() + "; these plugins are missing: bridge, host-local, portmap"))
		n.requireFixed(findings[0], nil)
	},
		Entry("", ""),
		Entry("at the end of a symbolic link", " && ln -s bin-of-plumb BIN"),
	)

	It("names the whole command if the directory of the plugins does not exist, and no other directory contains them all", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		n.sh("rm -r " + n.bin())
		alone := n.dir + "/alone"
		n.sh("mkdir " + alone + " && cp " + n.built + "/plumb " + alone)
		n.sh("! " + alone + "/plumb doctor " + strings.Join(n.directories(), " ") + " >" + alone + "/out")
		_, command, found := strings.Cut(nstest.ReadFile(GinkgoTB(), alone+"/out"), "Run this, where DIR contains the plugins of plumb: ")
		Expect(found).To(BeTrue())
		command, _, _ = strings.Cut(command, "\n")
		n.sh(strings.Replace(command, "DIR", n.built, 1))
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("advises to install into a directory that exists", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		n.sh("rm " + n.bin() + "/bridge")
		n.args = []string{"--cni-path", n.dir + "/none:" + n.bin()}
		n.requireFixed(n.find("executable", "no executable in"), nil)
	})

	It("finds a file system that is mounted with noexec", func() {
		nstest.RequireRoot(GinkgoTB(), "because a user namespace keeps the flags of a mount")
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		DeferCleanup(n.sh, "umount "+n.bin())
		n.sh("cp -r " + n.bin() + " " + n.dir + "/copy; mount -t tmpfs -o noexec none " + n.bin() + "; cp " + n.dir + "/copy/* " + n.bin())
		n.requireFixed(n.find("executable", n.bin()+" is on a file system that is mounted with noexec"), nil)
	})

	It("says how to start what a plugin needs", func() {
		n := newTestHost("bridge", "dhcp", "firewall", "host-local")
		n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "ipam": {"type": "dhcp"}}]}`)
		Expect(n.find("status", "the DHCP daemon cannot be reached").Advice).To(HavePrefix("Start the unit cni-dhcp.service "))
		n.write("10-pods.conflist", strings.Replace(good, "        }\n    ]", "        },\n        {\"type\": \"firewall\", \"backend\": \"firewalld\"}\n    ]", 1))
		Expect(n.find("status", "firewalld is not running").Fix).To(Equal("systemctl start firewalld"))
	})

	It("ignores a route to the segment of a bridge that is not the gateway of its containers", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", strings.Replace(good, `"isGateway": true,`, "", 1))
		n.Batch(GinkgoTB(), "link add up0 type veth peer name up1", "link set up0 up", "address add 10.88.0.9/16 dev up0")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("ignores policy rules that refuse some packets, or packets of others", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		n.sh("ip rule add from 10.88.0.0/16 to 192.0.2.0/24 blackhole; ip rule add from 10.88.0.9 blackhole; ip rule add iif lo prohibit; ip rule add from 10.88.0.0/16 table main")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("names the key that was probably meant in a list that libcni rejects", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", strings.Replace(good, `"plugins"`, `"plugin"`, 1))
		Expect(n.find("keys", "libcni rejects it").Edit).To(HaveSuffix("/10-pods.conflist: write plugins in place of plugin"))
	})

	It("names the line that lacks a comma, which is before the line with the error", func() {
		n := newTestHost("bridge", "host-local")
		for mistake, edit := range map[[2]string]string{
			{`"isGateway": true,`, `"isGateway": true` + "\n"}: "correct line 10, or the end of line 8, because no plugin of this file can be called",
			{`"isGateway": true,`, `"isGateway": tru,`}:        "correct line 8, because no plugin of this file can be called",
			{`"isGateway": true,`, `"isGateway" true,`}:        "correct line 8, because no plugin of this file can be called",
			{`"1.1.0",`, `"1.1.0" `}:                           "correct line 3, or the end of line 2, because no plugin of this file can be called",
			{"true,", "true,\n,"}:                              "correct line 9, because no plugin of this file can be called",
		} {
			n.write("10-pods.conflist", strings.Replace(good, mistake[0], mistake[1], 1))
			Expect(n.find("syntax", "not valid JSON").Edit).To(HaveSuffix("/10-pods.conflist: "+edit), "%q", mistake)
		}
	})

	It("gives advice for a file whose name begins with a hyphen", func() {
		n := newTestHost("bridge", "host-local")
		n.write("-x.conf", good)
		doctor := "cd " + n.confDir() + " && plumb doctor " + strings.Join(n.directories(), " ") + " -- "
		_, command, found := strings.Cut(n.sh(doctor+"-x.conf || true"), "\n    ")
		Expect(found).To(BeTrue())
		command, _, _ = strings.Cut(command, "\n")
		n.sh("cd " + n.confDir() + " && " + command)
		n.sh(doctor + "-x.conflist")
	})

	It("finds nothing wrong in a list whose plugins are in a directory", func() {
		n := newTestHost("loopback")
		n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods"}`)
		Expect(os.Mkdir(filepath.Join(n.confDir(), "pods"), 0o755)).To(Succeed())
		n.write("pods/lo.conf", `{"type": "loopback"}`)
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	DescribeTable("does not offer to replace a missing executable with a foreign one", func(candidate func(n *testHost, path string)) {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		spare := filepath.Join(n.dir, "spare") // the directory beside plumb's
		Expect(os.Mkdir(spare, 0o755)).To(Succeed())
		n.sh("cp " + n.built + "/plumb " + spare)
		n.built = spare
		candidate(n, filepath.Join(spare, "host-local"))
		n.sh("rm " + n.bin() + "/host-local")
		finding := n.find("executable", `"host-local": no executable`)
		Expect(finding.Advice).To(MatchRegexp("^Run this, where DIR contains the plugins of plumb v[^ ]+: plumb install --from DIR --to " + n.bin() + " --only host-local$"))
	},
		Entry("of another project", func(n *testHost, path string) {
			n.writeVendor()
			n.sh("mv " + n.bin() + "/vendor " + path)
		}),
		Entry("of another release", func(n *testHost, path string) { n.buildOld("host-local", path) }),
	)

	It("ends soon after a call's time limit if a child of the plugin holds the pipes open", func() {
		n := newTestHost()
		n.writeScript("hangs", "sleep 1000 &\necho $! > "+n.dir+"/pid\nwait")
		n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "hangs"}]}`)
		n.args = []string{"--timeout", "1s"}
		finding := n.find("executable", "hangs: does not answer VERSION: no answer in 1s")
		Expect(finding.Advice).To(Equal("Install the plugin hangs as " + n.bin() + "/hangs."))
		Expect(filepath.Join(n.dir, "pid")).To(BeAnExistingFile())
		pid := nstest.ReadFile(GinkgoTB(), filepath.Join(n.dir, "pid"))
		child := filepath.Join("/proc", strings.TrimSpace(pid), "stat")
		Eventually(func() string { // the process stays a zombie if its parent has not reaped it
			stat, _ := os.ReadFile(child)
			return string(stat)
		}).Should(Or(BeEmpty(), ContainSubstring(") Z ")), "the child")
	})

	It("reports a plugin whose STATUS does not answer", func() {
		n := newTestHost()
		n.writeScript("slow", `case $CNI_COMMAND in VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}' ;; *) sleep 1000 ;; esac`)
		n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "slow"}]}`)
		n.args = []string{"--timeout", "2s"}
		Expect(n.find("status", `STATUS of slow in network "pods": no answer in 2s`).Advice).To(Equal("Replace " + n.bin() + "/slow with an executable that works (plumb install), and try again."))
	})

	It("finds no overlap between networks on different L2 segments", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		n.write("20-b.conflist", `{"cniVersion": "1.1.0", "name": "b", "plugins": [{"type": "bridge", "bridge": "b", "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.0.0/16"}}]}`)
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("suggests only the name that was probably meant", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", strings.Replace(good, `"type": "bridge"`, `"type": "brigde"`, 1))
		Expect(n.find("executable", "bridge was probably meant").Edit).To(HaveSuffix(`/10-pods.conflist: write "bridge" in place of "brigde"`))
	})

	DescribeTable("finds a plugin that needs a kind of links that the kernel lacks", func(kind, plugins, fix string, parameters ...string) {
		n := newTestHost("bridge", kind)
		n.Must(GinkgoTB(), "ip", "link", "add", "parent0", "up", "type", "veth", "peer", "parent1")
		command := append([]string{"link", "add", "link", "parent0", "name", "probe", "type", kind}, parameters...)
		if _, err := n.Exec("ip", command...); err == nil {
			Skip("the kernel has links of this kind")
		}
		n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [`+plugins+`]}`)
		Expect(n.find("link-kind", "no links of kind "+kind).Fix).To(Equal(fix))
	},
		Entry("vrf", "vrf", `{"type": "bridge"}, {"type": "vrf", "vrfname": "red"}`, "modprobe vrf", "table", "10"),
		Entry("ipvlan", "ipvlan", `{"type": "ipvlan", "master": "parent0"}`, "modprobe ipvlan"),
		Entry("vlan", "vlan", `{"type": "vlan", "master": "parent0", "vlanId": 5}`, "modprobe 8021q", "id", "5"),
	)

	It("prints lists in JSON, never null", func() {
		n := newTestHost("bridge", "host-local")
		n.write("10-pods.conflist", good)
		out, _ := n.plumb(append([]string{"doctor", "-o", "json"}, n.directories()...)...)
		var report map[string]json.RawMessage
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		Expect(report).NotTo(ContainElement(json.RawMessage("null")))
	})
})
