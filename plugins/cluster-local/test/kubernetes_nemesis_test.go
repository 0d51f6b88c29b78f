package datastore

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// newUnreliableNemesis returns a nemesis whose nodes call the API server through unreliably.
func newUnreliableNemesis(count int, s setting) *nemesis {
	GinkgoHelper()
	k := newKubernetes()
	n := newKubernetesNemesis(k, count, s)
	faulty, configs := k.proxy(unreliably), map[string]json.RawMessage{}
	for _, m := range n.nodes {
		configs[m.name] = json.RawMessage(`{"type": "cluster-local-kubernetes", "timeout": 3, "kubeconfig": "` + k.writeKubeconfig(m.name, faulty, k.token(m.name)) + `"}`)
	}
	n.datastoreOf = func(node string) json.RawMessage { return configs[node] }
	return n
}

// calmKubernetesNodes returns two nodes without a warm pool, in a nemesis without disturbances.
func calmKubernetesNodes() *nemesis {
	GinkgoHelper()
	return newKubernetesNemesis(newKubernetes(), 2, otherSettings[0])
}

// newKubernetesNemesis returns a nemesis of cluster-local-kubernetes with nodes that run the executables. Each node uses its
// own token, to which the policy applies.
func newKubernetesNemesis(k *kubernetes, count int, s setting) *nemesis {
	GinkgoHelper()
	n := &nemesis{cluster: k.cluster, bed: k, ledger: newLedger(), operator: k.operator, caller: k.newCaller(segment, "n1", "10.7.0.1-"+poolAddr(poolSize-1).String()),
		operatorDatastore: config(k.kubeconfig("")), disturbOnce: k.disturb}
	n.caller.configure = nil
	n.caller.base.Node = ""
	n.farDatastore = k.proxyConfig(func(_ int, forward func(http.ResponseWriter), w http.ResponseWriter) {
		wait, _ := farAway(nil)
		time.Sleep(wait)
		forward(w)
	})
	n.restoreStore = func(file string) {
		k.killServer()
		k.restore(file)
		k.startServer()
	}
	n.datastoreOf = func(node string) json.RawMessage { return config(k.kubeconfig(node)) }
	n.addNodes(count, func(name string) plugin { return newExecutable(n, name, s) })
	n.caller.base.Datastore = n.operatorDatastore
	n.killRate.Store(0.05)
	return n
}

// unreliably forwards most requests. It delays some by up to 4.5 s, so that the client may have given up or been killed. It
// loses the answers of others, or answers that the API server is overloaded or has failed.
func unreliably(_ int, forward func(http.ResponseWriter), w http.ResponseWriter) {
	switch rand.IntN(60) {
	case 0, 1:
		time.Sleep(time.Duration(rand.IntN(4500)) * time.Millisecond)
		forward(w)
	case 2:
		forward(httptest.NewRecorder())
		cut(w)
	case 3:
		cut(w)
	case 4:
		w.WriteHeader(http.StatusTooManyRequests)
	case 5:
		forward(httptest.NewRecorder())
		w.WriteHeader(http.StatusInternalServerError)
	default:
		forward(w)
	}
}

// disturb breaks the API server, etcd, or the network of the nodes for some seconds.
func (k *kubernetes) disturb(ctx context.Context, i int) {
	GinkgoHelper()
	member := k.members[0]
	repair := func() {}
	switch i % 5 {
	case 0:
		Expect(k.cmd.Process.Signal(syscall.SIGSTOP)).To(Succeed())
		repair = func() { Expect(k.cmd.Process.Signal(syscall.SIGCONT)).To(Succeed()) }
	case 1:
		k.killServer()
		repair = k.startServer
	case 2:
		member.signal(syscall.SIGSTOP)
		repair = func() { member.signal(syscall.SIGCONT) }
	case 3:
		member.kill()
		repair = member.start
	case 4:
		k.setLink("clients", "down")
		repair = func() { k.setLink("clients", "up") }
	}
	pause(ctx, 2*time.Second)
	repair()
}

var _ = Describe("cluster-local with Kubernetes", func() {
	It("never assigns an address to two containers in the nemesis", func() {
		runNemesis(newUnreliableNemesis(nodes, defaultSetting), defaultSetting, *duration)
	})
})
