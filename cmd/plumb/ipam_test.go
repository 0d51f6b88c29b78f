package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// fakeDatastore appends each request to the file requests, runs the file on-VERB beside it if it exists, and prints the file
// VERB.json. Its exit status is 1 if that contains an error.
const fakeDatastore = `#!/bin/sh
cd "${0%/*}"
request=$(/usr/bin/cat)
echo "$request" >>requests
verb=${request#*\"verb\":\"}
verb=${verb%%\"*}
[ ! -e "on-$verb" ] || . "./on-$verb"
/usr/bin/cat "$verb.json"
! /usr/bin/grep -q '"error"' "$verb.json"
`

// An ipamBed is a host with the network pods, which uses cluster-local with fakeDatastore.
type ipamBed struct {
	*testbed
	plugins string
}

func newIPAMBed() *ipamBed {
	GinkgoHelper()
	b := &ipamBed{testbed: newTestbed()}
	b.plugins = b.path("plugins")
	Expect(errors.Join(os.MkdirAll(b.path("leases/.plumb/.owned"), 0o755), os.MkdirAll(b.path("leases/pods"), 0o755), os.Mkdir(b.plugins, 0o755))).To(Succeed())
	b.addNetwork("pods")
	b.write("plugins/cluster-local-fake", fakeDatastore)
	b.answer("list", `{"free": 9, "nodes": {"n1": {"machine": "m1", "boot": "b1", "lastCall": "2026-11-22T08:00:00Z"}, "n2": {"machine": "m2", "boot": "b2"}},
		"owners": {"10.1.2.5": {"node": "n1", "since": "2026-11-22T08:00:00Z"}, "10.1.2.6": {"node": "n1", "since": "2026-11-22T08:00:00Z"}, "10.1.2.9": {"node": "n2", "since": "2026-11-22T09:00:00Z"}}}`)
	b.answer("status", `{"free": 9}`)
	b.write("leases/.plumb/.owned/pods", "boot\nscope cluster-local-fake vlan7 n1 \"\"\n10.1.2.5 0123456789abcdef\n10.1.2.6 0123456789abcdef\n")
	b.write("leases/pods/10.1.2.5", "c1\r\neth0")
	return b
}

func (b *ipamBed) addNetwork(name string) {
	b.network("10-"+name+".conflist", `{"cniVersion": "1.1.0", "name": "`+name+`", "plugins": [{"type": "macvlan", "ipam": {"type": "cluster-local", "segment": "vlan7",
		"dataDir": "DIR/leases", "subnet": "10.1.2.0/28", "datastore": {"type": "cluster-local-fake"}}}]}`)
}

func (b *ipamBed) write(file, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(b.path(file), []byte(text), 0o755)).To(Succeed())
}

// answer sets what the datastore answers to a verb.
func (b *ipamBed) answer(verb, text string) { b.write("plugins/"+verb+".json", text) }

func (b *ipamBed) ipam(args ...string) nstest.Reply {
	GinkgoHelper()
	args = append([]string{"ipam"}, args...)
	return b.run("", append(append(args, b.directories()...), "--cni-path", b.plugins)...)
}

// requests returns what the datastore has read.
func (b *ipamBed) requests() string {
	text, _ := os.ReadFile(filepath.Join(b.plugins, "requests"))
	return string(text)
}

var _ = Describe("plumb ipam", func() {
	It("lists nodes and addresses", func() {
		b := newIPAMBed()
		reply := b.ipam("list")
		Expect(reply.Stdout).To(MatchRegexp(`^NODE +ADDRESSES +LAST CALL +MACHINE +BOOT\nn1 +2 +2026-11-22T08:00:00Z +m1 +b1\nn2 +1 +m2 +b2\n2 nodes, 3 addresses, free 9\n$`), reply.Stderr)
		Expect(b.requests()).To(And(ContainSubstring(`"segment":"vlan7"`), ContainSubstring(`"first":"10.1.2.2"`), Not(ContainSubstring("target"))))
		b.ipam("list", "--node", "n2")
		Expect(b.requests()).To(ContainSubstring(`"target":"n2"`))
		Expect(b.ipam("list", "-o", "json").Stdout).To(ContainSubstring(`"lastCall": "2026-11-22T08:00:00Z"`))
		b.answer("list", `{"free": 9, "owners": {"10.1.2.5": {"node": "n1"}}, "warnings": ["a chunk counts as full"]}`)
		reply = b.ipam("list")
		Expect(reply.Stdout).To(MatchRegexp(`(?m)^n1 +1 +not registered\s+1 node, 1 address, free 9$`))
		Expect(reply.Stderr).To(Equal("plumb: warning: a chunk counts as full\n"))
	})

	It("shows the node and the container of an address", func() {
		b := newIPAMBed()
		for address, want := range map[string]string{
			"10.1.2.5":  "belongs to this node (n1) since 2026-11-22T08:00:00Z, and container pods/c1/eth0 uses it",
			"10.1.2.6":  "belongs to this node (n1) since 2026-11-22T08:00:00Z, and no container uses it",
			"10.1.2.9":  "belongs to node n2 since 2026-11-22T09:00:00Z",
			"10.1.2.10": "belongs to no node of segment vlan7",
		} {
			Expect(b.ipam("who", address).Stdout).To(ContainSubstring(want))
		}
		Expect(b.ipam("who", "10.1").Exit).To(Equal(exitUsage))
	})

	It("finds differences between the node and the store", func() {
		b := newIPAMBed()
		reply := b.ipam("check")
		Expect(reply.Exit).To(BeZero(), reply.Stderr)
		Expect(reply.Stdout).To(Equal("node n1 owns 2 addresses, of which containers use 1; 0 problems\n"))
		b.write("leases/pods/10.1.2.9", "c9\r\neth0")
		b.write("leases/pods/10.1.2.11", "c11\r\neth0")
		b.write("leases/.plumb/.owned/pods", "boot\nscope cluster-local-fake vlan7 n1 \"\"\n10.1.2.5 0123456789abcdef\n10.1.2.8 0123456789abcdef\n")
		reply = b.ipam("check")
		Expect(reply.Exit).To(Equal(exitFound))
		Expect(reply.Stdout).To(And(
			ContainSubstring("10.1.2.6: the store says that this node owns it, but the node's files do not\n    plumb ipam resync\n"),
			ContainSubstring("10.1.2.8: the node's files say that this node owns it, but the store does not\n"),
			ContainSubstring("10.1.2.9: container pods/c9/eth0 uses it, but node n2 owns it\n    Delete the container here or on node n2.\n"),
			ContainSubstring("10.1.2.11: container pods/c11/eth0 uses it, but no node owns it\n"), HaveSuffix("; 4 problems\n")))
	})

	It("removes exactly the registration that it has shown, and only after a confirmation", func() {
		b := newIPAMBed()
		reply := b.ipam("remove-node", "n2")
		Expect(reply.Exit).To(Equal(exitUsage))
		Expect(reply.Stderr).To(ContainSubstring("nothing was removed; pass --yes"))
		Expect(b.requests()).NotTo(ContainSubstring("remove-node"))
		b.answer("remove-node", `{"free": 10, "addresses": {"10.1.2.9": "claim"}}`)
		reply = b.ipam("remove-node", "n2", "--yes")
		Expect(reply.Stdout).To(HaveSuffix("removed node n2 and freed 1 address\n"), reply.Stderr)
		Expect(b.requests()).To(MatchRegexp(`"verb":"remove-node".*"machine":"m2","boot":"b2".*"target":"n2"`))
		b.answer("remove-node", `{"free": 10, "nodes": {"n2": {"machine": "m3", "boot": "b3"}}}`)
		reply = b.ipam("remove-node", "n2", "--yes")
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("has registered again meanwhile (machine m3, boot b3)"))
		Expect(b.ipam("remove-node", "n9", "--yes").Stderr).To(ContainSubstring("node n9 is not registered in segment vlan7"))
	})

	It("does not remove a node that Kubernetes reports as ready", func() {
		b := newIPAMBed()
		var status atomic.Value
		status.Store("True")
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/api/v1/nodes/n2":
				_, _ = fmt.Fprintf(w, `{"status": {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": %q}]}}`, status.Load())
			default:
				w.WriteHeader(http.StatusForbidden)
			}
		})}
		var listener net.Listener
		Expect(b.host.Do(func() (err error) { listener, err = net.Listen("tcp", "127.0.0.1:0"); return err })).To(Succeed())
		DeferCleanup(server.Close)
		go func() { _ = server.Serve(listener) }()
		b.write("operator", `{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}], "users": [{"name": "c", "user": {"token": "t"}}],
			"clusters": [{"name": "c", "cluster": {"server": "http://`+listener.Addr().String()+`"}}]}`)
		b.answer("remove-node", `{"free": 10, "addresses": {"10.1.2.9": "claim"}}`)
		reply := b.ipam("remove-node", "n2", "--yes", "--kubeconfig", b.path("operator"))
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("Node n2 is ready, and nothing was removed"))
		Expect(b.ipam("remove-node", "n1", "--yes", "--kubeconfig", b.path("operator")).Stderr).To(ContainSubstring("read Node n1: 403 Forbidden"))
		Expect(b.requests()).NotTo(ContainSubstring("remove-node"))
		Expect(b.ipam("remove-node", "n2", "--yes", "--force", "--kubeconfig", b.path("operator")).Exit).To(BeZero())
		status.Store("Unknown")
		Expect(b.ipam("remove-node", "n2", "--yes", "--kubeconfig", b.path("operator")).Exit).To(BeZero())
	})

	It("freezes and thaws, and shows the state before and after", func() {
		b := newIPAMBed()
		b.answer("freeze", `{"free": 9, "frozen": "2026-11-22T08:00:00Z by n1"}`)
		Expect(b.ipam("freeze").Stdout).To(Equal("segment vlan7 was not frozen, and is now frozen since 2026-11-22T08:00:00Z by n1\n"))
		b.answer("thaw", `{"free": 9, "error": {"code": 7, "reason": "denied", "msg": "a node cannot thaw a segment"}}`)
		reply := b.ipam("thaw", "--kubeconfig", b.path("operator"))
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("cluster-local-fake: code 7: a node cannot thaw a segment"))
		Expect(b.requests()).To(MatchRegexp(`"verb":"thaw".*"kubeconfig":"` + b.path("operator") + `"`))
	})

	Describe("renames this node", func() {
		const list = `{"free": 9, %s"nodes": {"n1": {"machine": "m1", "boot": "b1/1"}, "n9": {"machine": %q, "boot": %q}},
			"owners": {"10.1.2.5": {"node": "n1", "since": "2026-11-22T08:00:00Z"}}}`
		var b *ipamBed
		BeforeEach(func() {
			b = newIPAMBed()
			b.answer("list", fmt.Sprintf(list, "", "m1", "b1/2"))
			b.answer("freeze", `{"frozen": "today by n9"}`)
			b.answer("thaw", `{}`)
			b.answer("remove-node", `{"addresses": {"10.1.2.5": "claim"}}`)
			// The first resync fails, because n1 still owns the address. The next one succeeds after n1 was removed.
			b.write("plugins/cluster-local", `#!/bin/sh
cd "${0%/*}"
sed -i 's/ n1 / n9 /' ../leases/.plumb/.owned/pods
grep -q '"verb":"remove-node"' requests || { echo "cluster-local resync: address 10.1.2.5 also belongs to node n1" >&2; exit 1; }
echo '"verb":"resync"' >>requests
echo '{"nodes": {"n9": {"machine": "m1", "boot": "b1/2"}}, "owners": {"10.1.2.5": {"node": "n9"}}}' >list.json
`)
		})
		verbs := func() (all []string) {
			for line := range strings.Lines(b.requests()) {
				_, verb, _ := strings.Cut(line, `"verb":"`)
				verb, _, _ = strings.Cut(verb, `"`)
				all = append(all, verb)
			}
			return all
		}

		It("and moves its addresses while the segment is frozen", func() {
			reply := b.ipam("rename", "n1", "--yes")
			Expect(reply.Exit).To(BeZero(), reply.Stderr)
			Expect(reply.Stdout).To(And(MatchRegexp(`(?s)^NODE.*\nn1 +1 .*10\.1\.2\.5`), MatchRegexp(`(?s)node n1 is now node n9\nNODE.*\nn9 +1 .*10\.1\.2\.5`)))
			Expect(verbs()).To(HaveExactElements("list", "list", "freeze", "remove-node", "resync", "thaw", "list"))
			Expect(b.requests()).To(MatchRegexp(`"verb":"remove-node".*"machine":"m1","boot":"b1/1".*"target":"n1"`))
			Expect(b.ipam("rename", "n1", "--yes").Stderr).To(ContainSubstring("node n1 is not registered in segment vlan7"))
		})

		It("and completes a rename that was killed after any step", func() {
			done := `{%s"nodes": {"n9": {"machine": "m1", "boot": "b1/2"}}, "owners": {%s}}`
			frozen, strays := `"frozen": "today by n9", `, `"10.1.2.5": {"node": "n1"}`
			for _, kill := range []struct{ verb, list string }{
				{"freeze", fmt.Sprintf(list, frozen, "m1", "b1/2")},
				{"remove-node", fmt.Sprintf(done, frozen, strays)}, // the registration is removed before the addresses
				{"remove-node", fmt.Sprintf(done, frozen, "")},
				{"thaw", fmt.Sprintf(done, "", "")},
			} {
				b.answer("list", fmt.Sprintf(list, "", "m1", "b1/2"))
				b.write("plugins/on-"+kill.verb, "echo '"+kill.list+"' >list.json\nkill -9 $PPID\n")
				Expect(b.ipam("rename", "n1", "--yes").Exit).NotTo(BeZero(), kill.verb)
				b.answer("list", kill.list)
				Expect(os.Remove(b.path("plugins/on-" + kill.verb))).To(Succeed())
				Expect(os.Remove(b.path("plugins/requests"))).To(Succeed())
				reply := b.ipam("rename", "n1", "--yes")
				if kill.verb == "thaw" { // nothing is left to do
					Expect(reply.Stderr).To(ContainSubstring("node n1 is not registered in segment vlan7, and owns no address"))
					continue
				}
				Expect(reply.Exit).To(BeZero(), reply.Stderr)
				Expect(verbs()).To(HaveExactElements("list", "list", "remove-node", "resync", "list"), kill.verb)
				Expect(os.Remove(b.path("plugins/requests"))).To(Succeed())
			}
		})

		It("and says that the segment is still frozen", func() {
			b.answer("list", fmt.Sprintf(list, `"frozen": "today", `, "m1", "b1/2"))
			b.write("plugins/cluster-local", "#!/bin/sh\nsed -i 's/ n1 / n9 /' \"${0%/*}/../leases/.plumb/.owned/pods\"\n")
			Expect(b.ipam("rename", "n1", "--yes").Stdout).To(HaveSuffix("the segment was frozen before; if an earlier plumb ipam rename has frozen it, run plumb ipam thaw\n"))
		})

		It("and leaves a segment frozen that was frozen before", func() {
			b.answer("list", fmt.Sprintf(list, `"frozen": "today", `, "m1", "b1/2"))
			Expect(b.ipam("rename", "n1", "--yes").Exit).To(BeZero())
			Expect(verbs()).To(HaveExactElements("list", "list", "remove-node", "resync", "list"))
		})

		It("and leaves the segment frozen if it cannot move the addresses", func() {
			b.answer("remove-node", `{"error": {"code": 11, "reason": "unknown", "msg": "no confirmation"}}`)
			reply := b.ipam("rename", "n1", "--yes")
			Expect(reply.Stderr).To(ContainSubstring("no confirmation; the segment is frozen; repeat the command, and then run plumb ipam thaw"))
			Expect(verbs()).To(HaveExactElements("list", "list", "freeze", "remove-node"))
		})

		DescribeTable("only if it is the node that has registered the former name,", func(machine, boot, text string) {
			b.answer("list", fmt.Sprintf(list, "", machine, boot))
			reply := b.ipam("rename", "n1", "--yes")
			Expect(reply.Exit).To(Equal(exitError))
			Expect(reply.Stderr).To(ContainSubstring(text))
			Expect(verbs()).To(HaveEach("list"))
		},
			Entry("not another machine", "m2", "b1/2", "node n1 was registered by machine m1 and boot b1/1, and node n9 by machine m2 and boot b1/2; if n1 is off, run plumb ipam remove-node n1"),
			Entry("and not before a reboot", "m1", "b2/2", "if n1 is off, run plumb ipam remove-node n1"),
		)

		It("only after the name was changed, after a confirmation, and with the rights", func() {
			Expect(b.ipam("rename", "n1").Stderr).To(ContainSubstring("nothing was removed; pass --yes"))
			Expect(b.ipam("rename", "n8", "--yes").Stderr).To(ContainSubstring("node n8 is not registered in segment vlan7"))
			b.write("plugins/cluster-local", "#!/bin/sh\n")
			Expect(b.ipam("rename", "n9", "--yes").Stderr).To(ContainSubstring("this node still has the name n9; change the key node or the host name before"))
			Expect(verbs()).To(HaveEach("list"))
			b.network("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "macvlan", "ipam": {"type": "cluster-local",
				"dataDir": "DIR/leases", "subnet": "10.1.2.0/28", "datastore": {"type": "cluster-local-kubernetes"}}}]}`)
			reply := b.ipam("rename", "n1", "--yes")
			Expect(reply.Exit).To(Equal(exitUsage))
			Expect(reply.Stderr).To(ContainSubstring("pass an operator's credentials with --kubeconfig"))
		})
	})

	It("runs resync with the configuration of the network, and prints its error", func() {
		b := newIPAMBed()
		b.write("plugins/cluster-local", "#!/bin/sh\necho \"$1 $CNI_PATH $(/usr/bin/cat)\" >\"${0%/*}/resync\"\n")
		Expect(b.ipam("resync").Stdout).To(Equal("the store contains the addresses of this node in segment vlan7\n"))
		text := nstest.ReadFile(GinkgoTB(), filepath.Join(b.plugins, "resync"))
		Expect(text).To(And(HavePrefix("resync "+b.plugins+" {"), ContainSubstring(`"name":"pods"`), ContainSubstring(`"cniVersion":"1.1.0"`)))
		b.write("plugins/cluster-local", "#!/bin/sh\necho 'cluster-local resync: the segment is busy' >&2; exit 1\n")
		Expect(b.ipam("resync").Stderr).To(Equal("plumb: cluster-local resync: the segment is busy\n"))
	})

	It("names the networks if there are several or none, and datastores that fail", func() {
		b := newIPAMBed()
		b.answer("list", "nonsense")
		Expect(b.ipam("list").Stderr).To(And(HavePrefix("plumb: cluster-local-fake: "), ContainSubstring("nonsense")))
		b.addNetwork("other")
		reply := b.ipam("list")
		Expect(reply.Exit).To(Equal(exitUsage))
		Expect(reply.Stderr).To(ContainSubstring("plumb: the command needs a network with cluster-local; choose one with --network: other, pods\n"))
		Expect(b.ipam("list", "--network", "x").Stderr).To(ContainSubstring(`network "x": no such network on this host`))
		Expect(os.Remove(b.path("conf/10-other.conflist"))).To(Succeed())
		Expect(os.Remove(b.path("conf/10-pods.conflist"))).To(Succeed())
		Expect(b.ipam("list").Stderr).To(ContainSubstring("the network configurations of this host contain none"))
		reply = b.ipam("list", "--network", "pods", "--config", "x")
		Expect(reply.Exit).To(Equal(exitUsage))
		Expect(reply.Stderr).To(ContainSubstring("--config already selects a network; omit --network"))
		Expect(strings.TrimSpace(b.ipam("list", "--network", "").Stderr)).To(ContainSubstring("--network: the value is empty"))
	})
})

var _ = Describe("plumb ipam import", func() {
	It("imports the addresses of living containers of another IPAM plugin, and shows them before", func() {
		b := newIPAMBed()
		Expect(os.Remove(b.path("conf/10-pods.conflist"))).To(Succeed())
		former := `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.1.2.7/28"}]}}]}`
		p := newContainer("w1")
		b.add(b.network("10-pods.conflist", former), p)
		b.write("new.conflist", strings.ReplaceAll(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "ipam": {"type": "cluster-local", "segment": "vlan7",
			"dataDir": "DIR/leases", "subnet": "10.1.2.0/28", "datastore": {"type": "cluster-local-fake"}}}]}`, "DIR", b.dir))
		b.write("plugins/cluster-local", "#!/bin/sh\necho \"$1 $(/usr/bin/cat)\" >\"${0%/*}/import\"\n")
		reply := b.ipam("import", "--config", b.path("new.conflist"), "--dry-run")
		Expect(reply.Stdout).To(MatchRegexp(`^ADDRESS +CONTAINER +IF +FORMER IPAM\n10.1.2.7 +w1 +eth0 +static\n$`), reply.Stderr)
		Expect(filepath.Join(b.plugins, "import")).NotTo(BeAnExistingFile())
		reply = b.ipam("import", "--config", b.path("new.conflist"))
		Expect(reply.Stdout).To(HaveSuffix("imported 1 address\n"), reply.Stderr)
		text := nstest.ReadFile(GinkgoTB(), filepath.Join(b.plugins, "import"))
		Expect(text).To(And(HavePrefix("import {"), ContainSubstring(`"import":[{"containerID":"w1","ifName":"eth0","address":"10.1.2.7"}]`)))
		Expect(b.ipam("import").Stderr).To(ContainSubstring("the network configurations of this host contain none"))
		b.answer("list", `{"free": 9}`)
		reply = b.ipam("check", "--config", b.path("new.conflist"))
		Expect(reply.Exit).To(Equal(exitFound))
		Expect(reply.Stdout).To(ContainSubstring("10.1.2.7: container w1/eth0 uses it, but cluster-local has not reserved it\n    plumb ipam import\n"))
		p.Remove(GinkgoTB())
		Expect(b.ipam("import", "--config", b.path("new.conflist"), "--dry-run").Stdout).To(BeEmpty())
		b.write("plugins/cluster-local", "#!/bin/sh\necho 'cluster-local import: 10.1.2.7 of w1/eth0 is in no range' >&2; exit 1\n")
		Expect(b.ipam("import", "--config", b.path("new.conflist")).Stderr).To(Equal("plumb: cluster-local import: 10.1.2.7 of w1/eth0 is in no range\n"))
	})

	// The addresses of a result can be in the form that Go's net.IP has for IPv4.
	It("finds the containers of host-local in another directory, and thaw refuses until cluster-local owns their addresses", func() {
		b := newIPAMBed()
		config := func(ipam, keys string) string {
			return `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "ipam": {"type": "` + ipam + `", ` + keys + ` "subnet": "10.1.2.0/28"}}]}`
		}
		p := newContainer("w1")
		b.add(b.network("10-pods.conflist", config("host-local", `"dataDir": "DIR/former",`)), p)
		cached, err := filepath.Glob(b.path("cache/results/pods-w1-eth0"))
		Expect(err).NotTo(HaveOccurred())
		Expect(cached).To(HaveLen(1))
		text := nstest.ReadFile(GinkgoTB(), cached[0])
		mapped := regexp.MustCompile(`"address":"(10\.1\.2\.\d+)/28"`).ReplaceAllString(text, `"address":"::ffff:$1/124"`)
		Expect(mapped).NotTo(Equal(text))
		Expect(os.WriteFile(cached[0], []byte(mapped), 0o600)).To(Succeed())
		b.network("10-pods.conflist", config("cluster-local", `"dataDir": "DIR/leases", "segment": "vlan7", "datastore": {"type": "cluster-local-fake"},`))
		Expect(os.Remove(b.path("leases/pods/10.1.2.5"))).To(Succeed())
		b.answer("list", `{"free": 9}`)
		b.answer("thaw", `{"free": 9}`)
		Expect(b.ipam("import", "--dry-run").Stdout).To(MatchRegexp(`(?m)^10\.1\.2\.\d+ +w1 +eth0 +host-local$`))
		reply := b.ipam("thaw")
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("container w1/eth0 uses it, but cluster-local has not reserved it: plumb ipam import"))
		Expect(b.requests()).NotTo(ContainSubstring(`"verb":"thaw"`))
		p.Remove(GinkgoTB())
		Expect(b.ipam("thaw").Exit).To(BeZero())
	})
})
