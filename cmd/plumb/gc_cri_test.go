package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A fakeRuntime answers ListPodSandbox.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	list func(context.Context) ([]string, error)
}

func (r fakeRuntime) ListPodSandbox(ctx context.Context, _ *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	ids, err := r.list(ctx)
	answer := &runtimeapi.ListPodSandboxResponse{}
	for _, id := range ids {
		answer.Items = append(answer.Items, &runtimeapi.PodSandbox{Id: id, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY})
	}
	return answer, err
}

// serve starts a gRPC server at the socket until the end of the spec. The server has no CRI service if r is nil.
func serve(socket string, r runtimeapi.RuntimeServiceServer) {
	GinkgoHelper()
	Expect(os.MkdirAll(filepath.Dir(socket), 0o755)).To(Succeed())
	l, err := net.Listen("unix", socket)
	Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer()
	if r != nil {
		runtimeapi.RegisterRuntimeServiceServer(server, r)
	}
	go func() { _ = server.Serve(l) }()
	DeferCleanup(server.Stop)
}

// lists returns a runtime with these sandboxes.
func lists(ids ...string) fakeRuntime {
	return fakeRuntime{list: func(context.Context) ([]string, error) { return ids, nil }}
}

// runtime serves a runtime with these sandboxes, and returns the flag that names its socket.
func (b *testbed) runtime(ids ...string) string {
	GinkgoHelper()
	serve(b.path("cri.sock"), lists(ids...))
	return "--cri=unix://" + b.path("cri.sock")
}

const suspectsFile = "/run/cni/plumb-suspects.json"

// suspects returns the container IDs in the file of suspect attachments.
func suspects() (ids []string) {
	GinkgoHelper()
	for _, e := range readSuspects() {
		ids = append(ids, e["containerID"].(string))
	}
	return ids
}

func readSuspects() (entries []map[string]any) {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), suspectsFile)
	Expect(json.Unmarshal([]byte(text), &entries)).To(Succeed())
	return entries
}

// waitAMinute changes the file of suspect attachments as if the runs so far had been more than a minute ago.
func waitAMinute() {
	GinkgoHelper()
	waitFor(time.Minute)
}

// waitFor changes the file of suspect attachments as if the runs so far had been longer ago than d.
func waitFor(d time.Duration) {
	GinkgoHelper()
	entries := readSuspects()
	for _, e := range entries {
		e["since"] = time.Now().Add(-d - time.Second)
	}
	text, err := json.Marshal(entries)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(suspectsFile, text, 0o600)).To(Succeed())
}

// podman is a network of another runtime.
const podman = `{"cniVersion": "1.1.0", "name": "podman", "plugins": [{"type": "bridge", "bridge": "br8", "ipam":
	{"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.3.4.0/24"}}]}`

var _ = Describe("plumb gc --cri", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		Expect(os.RemoveAll(suspectsFile)).To(Succeed())
		b.add(b.network("10-pods.conflist", chain), newContainer("live", 8080))
	})
	// collect calls gc, which must succeed, and returns stdout.
	collect := func(args ...string) string {
		GinkgoHelper()
		reply := b.gc("", args...)
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		return reply.Stdout
	}
	checkLive := func() {
		GinkgoHelper()
		Expect(b.check(b.network("10-pods.conflist", chain), "live")).To(Succeed())
	}

	It("removes what a failed ADD left if two runs, at least --min-age apart, find it suspect", func() {
		first := newContainer("cri-first")
		list := b.network("10-pods.conflist", chain)
		b.add(list, first)
		Expect(b.cni.DelNetworkList(context.Background(), list, first.RT)).To(Succeed())
		before := nstest.WaitStable(b.holdings)
		b.addHalf(newContainer("cri-half", 9090)) // with a namespace
		gone := newContainer("cri-gone", 9091)
		b.addHalf(gone)
		gone.Remove(GinkgoTB())
		b.awaitPorts(2)
		Expect(os.WriteFile(b.path("leases/pods/10.1.2.99"), []byte("cri-nameless"), 0o600)).To(Succeed()) // without an interface
		b.age()
		socket := b.runtime("live")
		for range 2 {
			Expect(collect(socket)).To(And(ContainSubstring("kept pods cri-half eth0: the container's namespace exists, because veth"),
				ContainSubstring("kept pods cri-gone eth0: the runtime does not list the container"), ContainSubstring("kept pods cri-nameless "),
				HaveSuffix("kept 3, left 0\nsuspect on the runtime's networks: 3; a run of gc --cri at least a minute later removes them\n")))
			Expect(b.path("leases/pods/10.1.2.99")).To(BeAnExistingFile())
		}
		waitAMinute()
		Expect(collect(socket, "--min-age", "2m")).To(ContainSubstring("kept 3, left 0\n"))
		Expect(collect(socket)).To(And(ContainSubstring("removed pods cri-half eth0\n"), ContainSubstring("removed pods cri-gone eth0\n"),
			ContainSubstring("removed pods cri-nameless "), HaveSuffix("kept 0, left 0\n")))
		Expect(nstest.WaitEqual(before, b.holdings)).To(BeEmpty())
		checkLive()
		collect(socket)
		Expect(suspects()).To(BeEmpty())
	})

	It("removes an interface of unknown age after two runs", func() {
		list := b.network("20-flat.conflist", `{"cniVersion": "1.1.0", "name": "flat", "plugins": [{"type": "bridge", "bridge": "br7"}]}`)
		b.add(list, newContainer("live"))
		b.add(list, newContainer("cri-bare"))
		Expect(os.Remove(b.path("cache/results/flat-cri-bare-eth0"))).To(Succeed())
		socket := b.runtime("live")
		Expect(collect(socket, "--force")).To(ContainSubstring("kept flat cri-bare eth0: the container's namespace exists"))
		waitAMinute()
		Expect(collect(socket)).To(ContainSubstring("removed flat cri-bare eth0\n"))
	})

	It("removes a container whose namespace is gone in the first run", func() {
		dead := newContainer("cri-dead", 9090)
		b.add(b.network("10-pods.conflist", chain), dead)
		dead.Remove(GinkgoTB())
		b.awaitPorts(1)
		b.age()
		socket := b.runtime("live")
		Expect(collect(socket)).To(And(ContainSubstring("removed pods cri-dead eth0\n"), HaveSuffix("kept 0, left 0\n")))
		checkLive()
	})

	It("never touches a namespace with a process", func() {
		for _, id := range []string{"cri-runs", "cri-fails"} {
			p := newContainer(id)
			if id == "cri-runs" {
				b.add(b.network("10-pods.conflist", chain), p)
			} else {
				b.addHalf(p)
			}
			startProcess(p)
		}
		b.age()
		socket := b.runtime("live")
		for range 2 {
			Expect(collect(socket, "--min-age", "0", "--force")).To(And(MatchRegexp(`kept pods cri-runs eth0: process \d+ runs`),
				MatchRegexp(`kept pods cri-fails eth0: process \d+ runs`), HaveSuffix("kept 2, left 0\n")))
		}
		Expect(suspects()).To(BeEmpty())
		Expect(b.check(b.network("10-pods.conflist", chain), "cri-runs")).To(Succeed())
	})

	It("forgets an attachment that a run did not find suspect, and one that the runtime added again", func() {
		p := newContainer("cri-again")
		b.addHalf(p)
		b.age()
		socket := b.runtime("live")
		Expect(collect(socket)).To(ContainSubstring("kept pods cri-again"))
		waitAMinute()
		Expect(os.Chtimes(b.path("leases/pods/10.1.2.3"), time.Now(), time.Now())).To(Succeed()) // a new ADD
		Expect(collect(socket, "--min-age", "0")).To(ContainSubstring("kept pods cri-again eth0: the container's namespace exists"))
		waitAMinute()
		b.age()
		startProcess(p)
		Expect(collect(socket)).To(MatchRegexp(`kept pods cri-again eth0: process`))
		Expect(suspects()).To(BeEmpty())
	})

	It("collects only networks in which the runtime's sandboxes have attachments", func() {
		other := b.network("30-podman.conflist", podman)
		dead := newContainer("cri-other")
		b.add(other, dead)
		dead.Remove(GinkgoTB())
		Expect(os.WriteFile(b.path("leases/podman/10.3.4.99"), nil, 0o600)).To(Succeed()) // which GC would release
		b.age()
		socket := b.runtime("live")
		for range 2 {
			Expect(collect(socket, "--min-age", "0", "--force")).To(And(HavePrefix("kept podman cri-other eth0: no list contains a container of its network\n"),
				HaveSuffix("kept 1, left 0\n")))
		}
		Expect(b.path("leases/podman/10.3.4.99")).To(BeAnExistingFile())
		Expect(suspects()).To(BeEmpty())
	})

	It("counts the runtime's list and --live FILE, which covers only its own networks, and may contain no container of the host", func() {
		pods, other := b.network("10-pods.conflist", chain), b.network("30-podman.conflist", podman)
		third := b.network("40-third.conflist", strings.NewReplacer(`"podman"`, `"third"`, "br8", "br9", "10.3", "10.5").Replace(podman))
		b.add(other, newContainer("p-live"))
		mounted := newContainer("p-mounted")
		b.add(other, mounted)
		for id, list := range map[string]int{"p-dead": 1, "cri-dead2": 0, "third-dead": 2} {
			p := newContainer(id)
			b.add([]*libcni.NetworkConfigList{pods, other, third}[list], p)
			p.Remove(GinkgoTB())
		}
		b.addHalf(newContainer("p-listed")) // which only the file lists
		Eventually(func() int {
			return strings.Count(b.host.Must(GinkgoTB(), "ip", "-o", "link", "show", "type", "veth"), "\n")
		}).Should(Equal(4))
		b.age()
		file := b.path("list")
		Expect(os.WriteFile(file, []byte("p-live p-listed"), 0o600)).To(Succeed())
		socket := b.runtime("live")
		Expect(collect(socket, "--live", file)).To(And(ContainSubstring("removed podman p-dead eth0\n"), ContainSubstring("removed pods cri-dead2 eth0\n"),
			ContainSubstring("kept third third-dead eth0: no list contains"), ContainSubstring("kept podman p-mounted eth0: its namespace"),
			Not(ContainSubstring("p-listed")), ContainSubstring("kept 2, left 0\n")))
		Expect(suspects()).To(BeEmpty()) // no runtime answered for the network podman
		for _, text := range []string{"", "unknown"} {
			Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
			Expect(collect(socket, "--live", file)).To(ContainSubstring("kept podman p-mounted eth0: no list contains a container of its network"))
		}
		Expect(os.WriteFile(file, []byte("p-mount"), 0o600)).To(Succeed())
		reply := b.gc("", socket, "--live", file)
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("which is the beginning of the container ID p-mounted"))
		checkLive()
	})

	It("keeps the suspect attachments of other networks in the file with --network, and writes nothing with --dry-run", func() {
		other := b.network("30-podman.conflist", podman)
		b.add(other, newContainer("live"))
		b.add(other, newContainer("cri-mounted"))
		b.addHalf(newContainer("cri-half2"))
		b.age()
		socket := b.runtime("live")
		Expect(collect(socket, "--dry-run")).To(ContainSubstring("0 attachments would be removed, 2 kept\nsuspect on the runtime's networks: 2; a run of gc --cri at least 10 minutes later "))
		Expect(suspectsFile).NotTo(BeAnExistingFile())
		collect(socket)
		Expect(suspects()).To(ConsistOf("cri-mounted", "cri-half2"))
		waitAMinute()
		Expect(collect(socket, "--dry-run", "--min-age", "0", "--force")).To(ContainSubstring("1 attachment would be removed, 1 kept\n"), "cri-mounted may start")
		waitFor(10 * time.Minute)
		Expect(collect(socket, "--dry-run")).To(HaveSuffix("2 attachments would be removed, 0 kept\n"))
		Expect(collect(socket, "--network", "pods")).To(And(ContainSubstring("removed pods cri-half2"), Not(ContainSubstring("cri-mounted"))))
		Expect(suspects()).To(ContainElement("cri-mounted"))
		Expect(collect(socket)).To(ContainSubstring("removed podman cri-mounted"))
	})

	It("reads the host before the list, so that it does not touch a pod that starts in between", func() {
		added := false
		serve(b.path("cri.sock"), fakeRuntime{list: func(context.Context) ([]string, error) {
			if !added {
				b.add(b.network("10-pods.conflist", chain), newContainer("cri-late"))
				added = true
			}
			return []string{"live"}, nil
		}})
		Expect(collect("--cri="+b.path("cri.sock"), "--min-age", "0", "--force")).To(HaveSuffix("kept 0, left 0\n"))
		Expect(added).To(BeTrue())
		Expect(b.check(b.network("10-pods.conflist", chain), "cri-late")).To(Succeed())
	})

	// The spec takes ten seconds, the time limit for a runtime that hangs.
	It("exits with status 3 and removes nothing if a runtime does not answer, or answers an error or a list that cannot be right", func() {
		b.addHalf(newContainer("cri-left"))
		b.age()
		before := nstest.WaitStable(b.state)
		serve(b.path("fails"), fakeRuntime{list: func(context.Context) ([]string, error) {
			return []string{"live"}, status.Error(codes.Unavailable, "server is not initialized yet")
		}})
		serve(b.path("hangs"), fakeRuntime{list: func(ctx context.Context) ([]string, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		serve(b.path("docker"), nil)
		serve(b.path("wrong"), lists("b1", "b2"))
		serve(b.path("empty"), lists())
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.path("dead")})
		Expect(err).NotTo(HaveOccurred())
		l.SetUnlinkOnClose(false)
		Expect(l.Close()).To(Succeed())
		for socket, stderr := range map[string]string{
			"fails": "server is not initialized yet", "hangs": "it does not answer within 10s; restart the runtime, and try again",
			"docker": "the program there has no CRI v1; name the socket",
			"dead":   "/dead: no program answers at this socket (connection refused); start the runtime, or name its socket",
			"none":   "/none: there is no such socket; start the runtime, or name its socket with --cri=SOCKET\n", "wrong": "none of the 2 pod sandboxes of the runtime has an attachment",
			"empty": "none of the 0 pod sandboxes of the runtime has an attachment; name the socket of the runtime that uses this host's networks (--cri=SOCKET); if no",
		} {
			reply := b.gc("", "--cri="+b.path(socket), "--min-age", "0", "--force")
			Expect(reply.Exit).To(Equal(exitError), socket)
			Expect(reply.Stderr).To(And(ContainSubstring(stderr), Not(ContainSubstring("rpc error"))), socket)
		}
		for _, args := range [][]string{{"--cri", "--no-live"}, {"--cri="}, {"--cri", b.path("wrong")}} {
			Expect(b.gc("", args...).Exit).To(Equal(exitUsage), "%q", args)
		}
		for _, socket := range []string{"fails", "hangs", "docker", "wrong", "empty", "dead"} { // not part of the state
			_ = os.Remove(b.path(socket))
		}
		Expect(nstest.Compare(before, b.state())).To(BeEmpty())
	})

	It("asks the default sockets that exist, and skips Docker's containerd", func() {
		dead := newContainer("cri-dead3")
		b.add(b.network("10-pods.conflist", chain), dead)
		dead.Remove(GinkgoTB())
		b.awaitPorts(1)
		b.age()
		reply := b.gc("", "--cri")
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("no runtime with CRI v1 found at /run/containerd/containerd.sock, /run/crio/crio.sock, /run/k3s/"))
		serve("/run/containerd/containerd.sock", nil)
		Expect(b.gc("", "--cri").Stderr).To(ContainSubstring("no runtime with CRI v1 found"))
		serve("/run/k3s/containerd/containerd.sock", lists("live"))
		Expect(collect("--cri")).To(ContainSubstring("removed pods cri-dead3 eth0\n"))
		serve("/run/crio/crio.sock", fakeRuntime{list: func(context.Context) ([]string, error) { return nil, status.Error(codes.Internal, "broken") }})
		reply = b.gc("", "--cri")
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("runtime /run/crio/crio.sock: it answers \"broken\" (Internal); look for the reason in its log"))
		checkLive()
	})

	It("succeeds on a host without attachments and sandboxes", func() {
		b = newTestbed()
		Expect(collect(b.runtime())).To(Equal("removed resources of 0 attachments, kept 0, left 0\n"))
	})
})
