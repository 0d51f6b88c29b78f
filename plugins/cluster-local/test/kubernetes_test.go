package datastore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

var _ = Describe("cluster-local-kubernetes", Ordered, ContinueOnFailure, func() {
	var k *kubernetes
	BeforeAll(func() { k = newKubernetes() })
	describeVerbs(func() bed { return k })
	describeReplacement(func() bed { return k })

	It("claims, releases and counts addresses", func() {
		n1 := k.newCaller("claims", "n1", "10.7.0.1-10.7.0.10")
		n1.base.Exclude = []netip.Prefix{netip.MustParsePrefix("10.7.0.8/30")} // .8, .9, .10
		Expect(n1.succeed(datastore.Register).Addresses).To(BeEmpty())
		a := n1.succeed(datastore.Claim, want(4))
		Expect(a.Addresses).To(HaveLen(4))
		Expect(a.Free).To(BeEquivalentTo(3))
		rest := n1.succeed(datastore.Claim, want(256))
		Expect(rest.Addresses).To(HaveLen(3))
		Expect(rest.Revision).To(BeNumerically(">", a.Revision))
		full := requireError(k.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFull, "n1", "claims")
		Expect(full.Free).To(BeZero())
		wrong := map[netip.Addr]string{addrs(a)[0]: "another-claim"}
		Expect(n1.succeed(datastore.Release, addresses(wrong)).Addresses).To(BeEmpty())
		Expect(n1.succeed(datastore.Release, addresses(a.Addresses)).Addresses).To(Equal(a.Addresses))
		Expect(n1.succeed(datastore.Status).Free).To(BeEquivalentTo(4))
		n1.succeed(datastore.Release, addresses(rest.Addresses))
		Expect(n1.succeed(datastore.Status).Free).To(BeEquivalentTo(7))
		Expect(owned(k, "claims", "n1")).To(BeEmpty())
	})

	It("claims the addresses of all chunks before it returns that the pool is full", func() {
		n1 := k.newCaller("windows", "n1", "10.7.0.200-10.7.4.20", "fd00::7-fd00::9")
		n1.succeed(datastore.Register)
		size := 1024 + 20 - 200 + 1 + 3
		all := map[netip.Addr]string{}
		for len(all) < size {
			a := n1.succeed(datastore.Claim, want(250))
			for addr, claim := range a.Addresses {
				Expect(all).NotTo(HaveKey(addr))
				all[addr] = claim
			}
			Expect(a.Free > 0 || len(all) == size).To(BeTrue(), "free is 0 only if no address is free")
		}
		requireError(k.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFull)
		one := map[netip.Addr]string{netip.MustParseAddr("10.7.3.3"): all[netip.MustParseAddr("10.7.3.3")]}
		n1.succeed(datastore.Release, addresses(one))
		Expect(n1.succeed(datastore.Status).Free).To(BeEquivalentTo(1))
		Expect(addrs(n1.succeed(datastore.Claim, want(8)))).To(HaveExactElements(netip.MustParseAddr("10.7.3.3")))
	})

	It("counts the free addresses again after it has read two chunks without a free address", func() {
		n1, n2 := k.newCaller("crowded", "n1", "10.7.0.0-10.7.4.255"), k.newCaller("crowded", "n2", "10.7.0.0-10.7.4.255")
		n2.succeed(datastore.Register) // before n1 claims
		n1.succeed(datastore.Register)
		all := map[netip.Addr]string{}
		for len(all) < 5*256 {
			maps.Copy(all, n1.succeed(datastore.Claim, want(64)).Addresses)
		}
		some := map[netip.Addr]string{}
		for i := range byte(10) {
			a := netip.AddrFrom4([4]byte{10, 7, 3, i})
			some[a] = all[a]
		}
		n1.succeed(datastore.Release, addresses(some))
		Expect(n2.succeed(datastore.Claim, want(1)).Free).To(BeEquivalentTo(10), "as many as before the claim")
	})

	It("sends two requests for a claim or release in a chunk in which the node owns addresses", func() {
		n1 := k.newCaller("requests", "n1", "10.7.0.1-10.7.3.250")
		count := 0
		n1.base.Datastore = k.proxyConfig(func(n int, forward func(http.ResponseWriter), w http.ResponseWriter) { count = n; forward(w) })
		requests := func(verb string, changes ...func(*datastore.Request)) (datastore.Answer, int) {
			before := count
			return n1.succeed(verb, changes...), count - before
		}
		n1.base.Store = n1.succeed(datastore.Register).Store
		_, first := requests(datastore.Claim, want(2)) // the chunk does not exist yet
		Expect(first).To(BeNumerically("<=", 6))
		a, again := requests(datastore.Claim, want(2))
		Expect(again).To(Equal(2))
		_, released := requests(datastore.Release, addresses(a.Addresses))
		Expect(released).To(Equal(2))
		n1.succeed(datastore.Register, boot("boot2"))
	})

	It("freezes all chunks, and the first claim after thaw opens one", func() {
		n1 := k.newCaller("chunks", "n1", "10.7.0.1-10.7.3.250")
		n1.succeed(datastore.Register)
		n1.succeed(datastore.Claim, requested("10.7.0.5", "10.7.1.5", "10.7.2.5"))
		n1.succeed(datastore.Freeze)
		open := func() (n int) {
			for _, chunk := range k.chunks("chunks") {
				if chunk["spec"].(map[string]any)["open"] == true {
					n++
				}
			}
			return n
		}
		Expect(open()).To(BeZero())
		n1.succeed(datastore.Thaw)
		Expect(open()).To(BeZero())
		n1.succeed(datastore.Claim, want(1))
		Expect(open()).To(Equal(1))
	})

	It("freezes all chunks if the API server first answers with a list that is older than the freeze", func() {
		old := k.as(adminToken, http.MethodGet, resources+"addresschunks", nil)
		old["items"] = []any{}
		n1 := k.newCaller("outdated", "n1", "10.7.0.1-10.7.0.40")
		n1.succeed(datastore.Register)
		n1.succeed(datastore.Claim, want(1))
		lists := 0
		freeze := n1.request(datastore.Freeze)
		freeze.Datastore = k.proxyConfig(func(_ int, forward func(http.ResponseWriter), w http.ResponseWriter) {
			answer := httptest.NewRecorder()
			forward(answer)
			if strings.Contains(answer.Body.String(), `"kind":"AddressChunkList"`) {
				if lists++; lists == 1 {
					_ = json.NewEncoder(w).Encode(old)
					return
				}
			}
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = answer.Body.WriteTo(w)
		})
		Expect(call(k.clients, freeze).Error).To(BeNil())
		Expect(lists).To(BeNumerically(">", 1))
		Expect(k.chunks("outdated")).To(HaveExactElements(HaveKeyWithValue("spec", Not(HaveKeyWithValue("open", true)))))
	})

	DescribeTable("ignores a claim that arrives after the next register", func(owning int) {
		for at, reached := 1, true; reached; at++ {
			n1 := k.newCaller(fmt.Sprintf("late-%d-%d", owning, at), "n1", "10.7.0.1-10.7.0.20")
			n1.succeed(datastore.Register)
			if owning > 0 {
				n1.succeed(datastore.Claim, want(owning))
			}
			reached = false
			known := map[netip.Addr]string{}
			late := n1.request(datastore.Claim, want(3))
			late.Datastore = k.configAt(at, func() {
				reached = true
				maps.Copy(known, n1.succeed(datastore.Register).Addresses)
			})
			answer := call(k.clients, late)
			if reached {
				maps.Copy(known, answer.Addresses)
				Expect(owned(k, n1.base.Segment, "n1")).To(Equal(known), "at request %d", at)
			}
		}
	}, Entry("in a new chunk", 0), Entry("in a chunk in which the node owns addresses", 2))

	It("ignores a freeze or thaw that arrives after a later one", func() {
		n1 := k.newCaller("fence", "n1", "10.7.0.1-10.7.0.40")
		n1.succeed(datastore.Register)
		freeze := n1.request(datastore.Freeze)
		freeze.Datastore = k.configAt(3, func() { n1.succeed(datastore.Thaw) }) // at the PUT of the Segment
		call(k.clients, freeze)
		n1.succeed(datastore.Thaw)
		thaw := n1.request(datastore.Thaw)
		frozen := ""
		thaw.Datastore = k.proxyConfig(func(n int, forward func(http.ResponseWriter), w http.ResponseWriter) {
			if n == 2 {
				frozen = n1.succeed(datastore.Freeze).Frozen
				forward(httptest.NewRecorder())
				cut(w)
				return
			}
			forward(w)
		})
		requireError(k.clients, thaw, types.CodeTryAgain, datastore.ReasonUnknown)
		Expect(n1.succeed(datastore.Status).Frozen).To(Equal(frozen))
		n1.succeed(datastore.Thaw)
	})

	It("recognizes another store by the UID of the Segment, and an older one by the resource version", func() {
		n1 := k.newCaller("others", "n1", "10.7.0.1-10.7.0.8")
		first := n1.succeed(datastore.Register)
		a := n1.succeed(datastore.Claim, store(first.Store), seen(first.Revision), want(2))
		Expect(a.Store).To(HavePrefix(first.Store + ","))
		requireError(k.clients, n1.request(datastore.Claim, seen(1<<40), want(1)), types.CodeTryAgain, datastore.ReasonBehind, "revision")
		Expect(owned(k, "others", "n1")).To(Equal(a.Addresses))
		chunk := strings.Split(a.Store, ",")[1]
		newer := first.Store + "," + chunk[:strings.Index(chunk, "=")] + "=1000"
		for verb, change := range map[string]func(*datastore.Request){datastore.Claim: want(1), datastore.Register: want(0), datastore.Release: addresses(a.Addresses)} {
			requireError(k.clients, n1.request(verb, store(newer), change), types.CodeTryAgain, datastore.ReasonBehind, "with the fence 1000 or later")
		}
		requireError(k.clients, n1.request(datastore.Register, store(first.Store+",10.9.0.0=1")), types.CodeTryAgain, datastore.ReasonBehind, "10-9-0-0.others", "got 0")
		requireError(k.clients, n1.request(datastore.Claim, store("another"), want(1)), types.CodeTryAgain, datastore.ReasonBehind, "another")
		next := n1.succeed(datastore.Resync, store("another"), addresses(a.Addresses))
		Expect(next.Frozen).To(HaveSuffix(" by n1"))
		Expect(addrs(next)).To(Equal(addrs(a)))
		requireError(k.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFrozen, "thaw")
		n1.succeed(datastore.Thaw)
	})

	It("serves nodes that claim in one chunk at the same time", func() {
		const nodes = 8
		started := time.Now()
		Expect(inParallel(nodes, func(i int) error {
			n := k.newCaller("contended", fmt.Sprintf("n%d", i+1), "10.7.0.0-10.7.0.63")
			n.succeed(datastore.Register)
			Expect(n.succeed(datastore.Claim, want(8)).Addresses).To(HaveLen(8))
			return nil
		})).To(Succeed())
		AddReportEntry("8 nodes claim all 64 addresses of a chunk", time.Since(started).Round(time.Millisecond).String())
	})

	It("continues a removal that was interrupted after each request", func() {
		for at := 1; ; at++ {
			n1 := k.newCaller(fmt.Sprint("half", at), "n1", "10.7.0.1-10.7.0.40")
			n1.succeed(datastore.Register)
			n1.succeed(datastore.Claim, want(3))
			done := true
			remove := n1.request(datastore.RemoveNode, removed("n1"))
			remove.Datastore = k.proxyConfig(func(n int, forward func(http.ResponseWriter), w http.ResponseWriter) {
				if n >= at {
					done = false
					cut(w)
					return
				}
				forward(w)
			})
			text := string(remove.Datastore)
			remove.Datastore = []byte(strings.Replace(text, `"timeout": 30`, `"timeout": 1`, 1))
			answer := call(k.clients, remove)
			if done {
				Expect(answer.Error).To(BeNil())
				break
			}
			again := call(k.clients, n1.request(datastore.RemoveNode, removed("n1")))
			Expect(again.Error).To(BeNil())
			Expect(owned(k, n1.base.Segment, "n1")).To(BeEmpty(), "after request %d", at)
			Expect(n1.succeed(datastore.List).Nodes).To(BeEmpty())
		}
	})

	It("rejects all changes of another node's registration and addresses with a node's token", func() {
		n1 := k.newCaller("policy", "n1", "10.7.0.1-10.7.0.40")
		n1.succeed(datastore.Register)
		a := n1.succeed(datastore.Claim, want(3))
		foreign := n1
		foreign.configure, foreign.base.Datastore = nil, config(k.kubeconfig("n2"))
		for verb, change := range map[string]func(*datastore.Request){
			datastore.Register: want(0), datastore.Claim: want(1), datastore.Release: addresses(a.Addresses), datastore.Resync: addresses(nil),
			datastore.RemoveNode: removed("n1"), datastore.Thaw: want(0),
		} {
			requireError(k.clients, foreign.request(verb, change), types.CodeConfig, datastore.ReasonDenied, "plumb-cluster-local")
			Expect(owned(k, "policy", "n1")).To(Equal(a.Addresses), verb)
		}
		foreign.base.Node = "n2"
		requireError(k.clients, foreign.request(datastore.Claim, requested(addrs(a)[0].String())), types.CodeTryAgain, datastore.ReasonTaken)
		Expect(foreign.succeed(datastore.Freeze).Frozen).NotTo(BeEmpty(), "a node that notices a restore freezes the segment")
		n1.succeed(datastore.Thaw)
	})

	Describe("with the stolen token of a node", func() { describeStolenToken(func() *kubernetes { return k }) })
	Describe("with values that no datastore has written", func() { describeNonsense(func() *kubernetes { return k }) })

	DescribeTable("names an object that was edited into nonsense, and changes nothing",
		func(path string, edit func(spec map[string]any), text string) {
			segment := fmt.Sprint("nonsense", time.Now().UnixNano())
			n1 := k.newCaller(segment, "n1", "10.7.0.1-10.7.0.40")
			n1.succeed(datastore.Register)
			n1.succeed(datastore.Claim, want(3))
			for _, item := range k.as(adminToken, http.MethodGet, resources+path, nil)["items"].([]any) {
				object := item.(map[string]any)
				if spec := object["spec"].(map[string]any); spec["segment"] == segment {
					edit(spec)
					k.as(adminToken, http.MethodPut, resources+path+"/"+object["metadata"].(map[string]any)["name"].(string), object)
				}
			}
			before := owned(k, segment, "n1")
			requireError(k.clients, n1.request(datastore.Register), types.CodeInternal, datastore.ReasonInternal, text, "restore it from a backup")
			Expect(owned(k, segment, "n1")).To(Equal(before))
		},
		Entry("the node of a registration", "segmentnodes", func(spec map[string]any) { spec["node"] = "n9" }, `of node "n9"`),
	)

	Describe("when the API server does not answer as usual", func() {
		status := func(code int, header ...string) func(int, func(http.ResponseWriter), http.ResponseWriter) {
			return func(_ int, _ func(http.ResponseWriter), w http.ResponseWriter) {
				if len(header) > 0 {
					w.Header().Set(header[0], header[1])
				}
				w.WriteHeader(code)
				_, _ = fmt.Fprintf(w, `{"kind": "Status", "message": "this is status %d"}`, code)
			}
		}
		DescribeTable("returns the reason and code of the contract, and a later register finds what the node owns",
			func(at int, handle func(int, func(http.ResponseWriter), http.ResponseWriter), code uint, reason string, texts ...string) {
				n1 := k.newCaller(fmt.Sprint("faults", time.Now().UnixNano()), "n1", "10.7.0.1-10.7.0.40")
				n1.base.Store = n1.succeed(datastore.Register).Store
				n1.succeed(datastore.Claim, want(2))
				request := n1.request(datastore.Claim, want(2))
				request.Datastore = k.proxyConfig(func(n int, forward func(http.ResponseWriter), w http.ResponseWriter) {
					if n >= at {
						handle(n, forward, w)
						return
					}
					forward(w)
				})
				request.Datastore = []byte(strings.Replace(string(request.Datastore), `"timeout": 30`, `"timeout": 5`, 1))
				requireError(k.clients, request, code, reason, texts...)
				Expect(n1.succeed(datastore.Register).Addresses).To(Equal(owned(k, n1.base.Segment, "n1")))
			},
			Entry("503 to a read", 1, status(503), uint(types.CodeTryAgain), datastore.ReasonUnreachable, "within 5s", "status 503"),
			Entry("500 to a change", 2, status(500), uint(types.CodeTryAgain), datastore.ReasonUnknown, "status 500", "register"),
			Entry("504 to a change", 2, status(504), uint(types.CodeTryAgain), datastore.ReasonUnknown, "register"),
			Entry("429 to each request", 1, status(429, "Retry-After", "1"), uint(types.CodeTryAgain), datastore.ReasonUnreachable, "status 429"),
			Entry("429 to each change", 2, status(429, "Retry-After", "1"), uint(types.CodeTryAgain), datastore.ReasonUnreachable, "status 429"),
			Entry("401", 1, status(401), uint(types.CodeTryAgain), datastore.ReasonUnreachable, "credentials", "status 401"),
			Entry("401 to a change", 2, status(401), uint(types.CodeTryAgain), datastore.ReasonUnreachable, "credentials"),
			Entry("403", 1, status(403), uint(types.CodeConfig), datastore.ReasonDenied, "rbac.yaml"),
			Entry("404 without an object", 1, status(404), uint(types.CodeConfig), datastore.ReasonDenied, "crds.yaml"),
			Entry("a conflict at each change", 2, func(n int, forward func(http.ResponseWriter), w http.ResponseWriter) {
				if n%2 == 0 {
					status(409)(n, forward, w)
					return
				}
				forward(w)
			}, uint(types.CodeTryAgain), datastore.ReasonUnreachable, "try again"),
			Entry("a connection that ends before a read", 1, func(_ int, _ func(http.ResponseWriter), w http.ResponseWriter) { cut(w) },
				uint(types.CodeTryAgain), datastore.ReasonUnreachable, "within 5s"),
			Entry("a connection that ends before a change", 2, func(_ int, _ func(http.ResponseWriter), w http.ResponseWriter) { cut(w) },
				uint(types.CodeTryAgain), datastore.ReasonUnknown, "register"),
			Entry("a connection that ends after a change", 2, func(_ int, forward func(http.ResponseWriter), w http.ResponseWriter) {
				forward(httptest.NewRecorder())
				cut(w)
			}, uint(types.CodeTryAgain), datastore.ReasonUnknown, "register"),
		)

		It("sends a change again after 429, and reads again after 503", func() {
			n1 := k.newCaller("retries", "n1", "10.7.0.1-10.7.0.40")
			n1.succeed(datastore.Register)
			for _, at := range []int{1, 2, 4, 6} {
				request := n1.request(datastore.Claim, want(2))
				request.Datastore = k.proxyConfig(func(n int, forward func(http.ResponseWriter), w http.ResponseWriter) {
					if n == at {
						status(429)(n, forward, w)
						return
					}
					forward(w)
				})
				Expect(succeed(k.clients, request).Addresses).To(HaveLen(2), "429 to request %d", at)
			}
		})

		It("reports missing and wrong files of the configuration", func() {
			n1 := k.newCaller("files", "n1", "10.7.0.1-10.7.0.40")
			write := func(name, text string) string {
				path := filepath.Join(filepath.Dir(k.kubeconfig("n1")), name)
				Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
				return path
			}
			good, err := os.ReadFile(k.kubeconfig("n1"))
			Expect(err).NotTo(HaveOccurred())
			for path, want := range map[string]struct {
				code         uint
				reason, text string
			}{
				filepath.Join(k.dir, "absent"):                                           {types.CodeTryAgain, datastore.ReasonUnreachable, "no such file"},
				write("no-token", strings.Replace(string(good), ".token", ".absent", 1)): {types.CodeTryAgain, datastore.ReasonUnreachable, "no such file"},
				write("nonsense", "a: [b"):                                               {types.CodeConfig, datastore.ReasonRequest, "nonsense"},
				write("no-context", strings.Replace(string(good), "current-context: plumb", "current-context: x", 1)):                                     {types.CodeConfig, datastore.ReasonRequest, `no context "x"`},
				write("plain", strings.Replace(string(good), "https://", "http://", 1)):                                                                   {types.CodeConfig, datastore.ReasonRequest, "https://host:port"},
				write("exec", strings.Replace(string(good), "tokenFile:", "exec: {command: x}, tokenFile:", 1)):                                           {types.CodeConfig, datastore.ReasonRequest, "exec"},
				write("insecure", strings.Replace(string(good), "certificate-authority: ", "insecure-skip-tls-verify: true, certificate-authority: ", 1)): {types.CodeConfig, datastore.ReasonRequest, "insecure-skip-tls-verify is not supported"},
				write("other-ca", strings.Replace(string(good), "ca.crt", "root.crt", 1)):                                                                 {types.CodeTryAgain, datastore.ReasonUnreachable, "certificate"},
				k.writeKubeconfig("expired", k.url(), "expired-token"):                                                                                    {types.CodeTryAgain, datastore.ReasonUnreachable, "credentials"},
			} {
				request := n1.request(datastore.Register)
				request.Datastore = []byte(strings.Replace(string(config(path)), `"timeout": 30`, `"timeout": 1`, 1))
				requireError(k.clients, request, want.code, want.reason, want.text)
			}
		})

		It("reports a CA that is rotated during a call, and serves again with the new CA", func() {
			n1 := k.newCaller("rotation", "n1", "10.7.0.1-10.7.0.40")
			n1.succeed(datastore.Register)
			n1.succeed(datastore.Claim, want(2))
			rotated := newPKI()
			var certs []tls.Certificate
			for _, p := range []*pki{k.pki, rotated} {
				p.issue("front", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
				cert, err := tls.LoadX509KeyPair(p.certFile("front"), p.keyFile("front"))
				Expect(err).NotTo(HaveOccurred())
				certs = append(certs, cert)
			}
			// The front changes its certificate after the first request, which reads the chunk.
			var current atomic.Int32
			target, err := url.Parse(k.proxy(func(_ int, forward func(http.ResponseWriter), w http.ResponseWriter) { forward(w) }))
			Expect(err).NotTo(HaveOccurred())
			forward := httputil.NewSingleHostReverseProxy(target)
			forward.Transport = &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return k.dial(ctx, addr) }}
			front := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if current.CompareAndSwap(0, 1) {
					w.Header().Set("Connection", "close")
				}
				forward.ServeHTTP(w, r)
			})}
			listener := k.listen("127.0.0.1:0")
			DeferCleanup(front.Close)
			go func() {
				_ = front.Serve(tls.NewListener(listener, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certs[current.Load()], nil }}))
			}()
			file := k.writeKubeconfig("rotated", "https://"+listener.Addr().String(), adminToken)
			request := n1.request(datastore.Claim, want(1))
			request.Datastore = config(file)
			for range 2 { // during the call, and before it
				requireError(k.clients, request, types.CodeTryAgain, datastore.ReasonUnreachable, "the CA in "+file+" does not fit the API server's certificate")
			}
			text, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			Expect(os.WriteFile(file, []byte(strings.Replace(string(text), k.certFile("ca"), rotated.certFile("ca"), 1)), 0o600)).To(Succeed())
			Expect(succeed(k.clients, request).Addresses).To(HaveLen(1))
			Expect(n1.succeed(datastore.Register).Addresses).To(And(HaveLen(3), Equal(owned(k, "rotation", "n1"))))
		})

		It("serves again after a kill of the API server, and of etcd", func() {
			n1 := k.newCaller("kills", "n1", "10.7.0.1-10.7.0.40")
			n1.succeed(datastore.Register)
			n1.succeed(datastore.Claim, want(2))
			short := n1.request(datastore.Claim, want(1))
			short.Datastore = []byte(strings.Replace(string(short.Datastore), `"timeout": 30`, `"timeout": 1`, 1))
			k.killServer()
			requireError(k.clients, short, types.CodeTryAgain, datastore.ReasonUnreachable)
			k.startServer()
			k.members[0].signal(syscall.SIGSTOP)
			requireError(k.clients, short, types.CodeTryAgain, datastore.ReasonUnreachable)
			k.members[0].signal(syscall.SIGCONT)
			n1.succeed(datastore.Register)
			n1.succeed(datastore.Claim, want(1))
		})

		It("serves again after etcd had no space", func() {
			k := newKubernetes("--quota-backend-bytes=16777216")
			n1 := k.newCaller("space", "n1", "10.7.0.1-10.7.0.40")
			n1.succeed(datastore.Register)
			n1.succeed(datastore.Claim, want(2))
			client := k.connect("root", k.members...)
			DeferCleanup(client.Close)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			var err error
			for i := 0; err == nil; i++ {
				_, err = client.Put(ctx, fmt.Sprint("/large/", i), strings.Repeat("x", 1<<20))
			}
			Expect(err).To(MatchError(rpctypes.ErrNoSpace))
			requireError(k.clients, n1.request(datastore.Claim, want(2)), types.CodeTryAgain, datastore.ReasonUnknown, "space exceeded", "register")
			requireError(k.clients, n1.request(datastore.Register), types.CodeTryAgain, datastore.ReasonUnknown, "space exceeded")
			deleted, err := client.Delete(ctx, "/large/", clientv3.WithPrefix())
			Expect(err).NotTo(HaveOccurred())
			_, compactErr := client.Compact(ctx, deleted.Header.Revision)
			_, defragErr := client.Defragment(ctx, k.members[0].clientURL())
			_, alarmErr := client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			Expect(errors.Join(compactErr, defragErr, alarmErr)).To(Succeed())
			Expect(n1.succeed(datastore.Register).Addresses).To(Equal(owned(k, "space", "n1")))
		})
	})
})
