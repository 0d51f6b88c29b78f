package datastore

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// inParallel calls f(0) … f(n-1) at the same time, and joins the errors.
func inParallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			defer GinkgoRecover()
			errs[i] = f(i)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// withRoles creates the user root, and the user "node" with a role for the segment "mine", and enables authentication.
func (c *cluster) withRoles() {
	GinkgoHelper()
	client := c.connect("root", c.members...)
	prefix := "/plumb/v1/mine/"
	Expect(do(func(ctx context.Context) error {
		_, err1 := client.RoleAdd(ctx, "root")
		_, err2 := client.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true})
		_, err3 := client.UserGrantRole(ctx, "root", "root")
		_, err4 := client.RoleAdd(ctx, "segment-mine")
		_, err5 := client.RoleGrantPermission(ctx, "segment-mine", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
		_, err6 := client.UserAddWithOptions(ctx, "node", "", &clientv3.UserAddOptions{NoPassword: true})
		_, err7 := client.UserGrantRole(ctx, "node", "segment-mine")
		_, err8 := client.AuthEnable(ctx)
		return errors.Join(err1, err2, err3, err4, err5, err6, err7, err8)
	})).To(Succeed())
}

var _ = Describe("cluster-local-etcd, when etcd rejects requests", func() {
	It("serves a segment with a role for its prefix, and no other segment", func() {
		c := newCluster(1)
		c.withRoles()
		mine, other := c.newCaller("mine", "n1", "10.7.0.1-10.7.0.9"), c.newCaller("other", "n1", "10.7.0.1-10.7.0.9")
		mine.succeed(datastore.Register)
		a := mine.succeed(datastore.Claim, want(3))
		mine.succeed(datastore.Freeze)
		mine.succeed(datastore.Thaw)
		mine.succeed(datastore.List)
		mine.succeed(datastore.Register)
		mine.succeed(datastore.RemoveNode, removed("n1"))
		Expect(a.Addresses).To(HaveLen(3))
		for verb, change := range map[string]func(*datastore.Request){
			datastore.Register: want(0), datastore.Claim: want(1), datastore.Release: addresses(a.Addresses), datastore.List: want(0), datastore.Status: want(0),
			datastore.Freeze: want(0), datastore.Thaw: want(0), datastore.RemoveNode: removed("n2"), datastore.Resync: addresses(a.Addresses),
		} {
			requireError(c.clients, other.request(verb, change), types.CodeConfig, datastore.ReasonDenied, "/plumb/v1/other/")
		}
		c.client("stranger")
		mine.base.Datastore = c.datastoreConfig("stranger", nil)
		requireError(c.clients, mine.request(datastore.Status), types.CodeConfig, datastore.ReasonDenied, "stranger.crt")
	})

	It("releases addresses when the database is full", func() {
		c := newCluster(1, "--quota-backend-bytes=600000")
		n1 := c.newCaller("full", "n1", "10.7.0.1-10.7.0.40")
		n1.succeed(datastore.Register)
		a := n1.succeed(datastore.Claim, want(4))
		client := c.connect("root", c.members...)
		Expect(do(func(ctx context.Context) error {
			for {
				if _, err := client.Put(ctx, "/filler", string(make([]byte, 100_000))); err != nil {
					return err
				}
			}
		})).To(MatchError(ContainSubstring("database space exceeded")))
		// etcd returns this error even if it has applied the change
		requireError(c.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonUnknown, "NOSPACE", "compact", "register")
		requireError(c.clients, n1.request(datastore.Register), types.CodeTryAgain, datastore.ReasonUnknown, "NOSPACE")
		Expect(n1.succeed(datastore.List).Owners).To(HaveLen(4))
		one := map[netip.Addr]string{addrs(a)[0]: a.Addresses[addrs(a)[0]]}
		Expect(n1.succeed(datastore.Release, addresses(one)).Addresses).To(Equal(one))
		Expect(n1.succeed(datastore.RemoveNode, removed("n1")).Addresses).To(HaveLen(3))
	})

	It("names the endpoints that do not answer, with the causes", func() {
		c := newCluster(1)
		n1 := c.newCaller("tls", "n1", "10.7.0.1-10.7.0.40")
		unreachable := func(keys map[string]any, pattern string) {
			GinkgoHelper()
			keys["timeout"] = 1
			n1.base.Datastore = c.datastoreConfig("node", keys)
			// On a busy machine, the time may expire before the datastore knows the cause.
			Eventually(func() *datastore.Error { return call(c.clients, n1.request(datastore.Status)).Error }, "1m").Should(
				HaveValue(And(HaveField("Code", uint(types.CodeTryAgain)), HaveField("Reason", datastore.ReasonUnreachable), HaveField("Msg", MatchRegexp(pattern)))))
		}
		unreachable(map[string]any{"endpoints": []string{"https://10.9.0.100:1"}}, `within 1s: .*https://10\.9\.0\.100:1\b.*connection refused`)

		other := newPKI()
		other.client("node")
		unreachable(map[string]any{"certFile": other.certFile("node"), "keyFile": other.keyFile("node")}, "its log says so")
		unreachable(map[string]any{"caFile": other.certFile("ca")}, "x509: ")

		n1.base.Datastore = c.datastoreConfig("node", map[string]any{"endpoints": []string{"https://10.9.0.100:1", c.members[0].clientURL()}})
		for range 4 {
			n1.succeed(datastore.Status)
		}
	})

	DescribeTable("reports as unknown, with advice,", func(config func(*cluster) json.RawMessage) {
		c := newCluster(1)
		n1 := c.newCaller("unknown", "n1", "10.7.0.1-10.7.0.40")
		n1.succeed(datastore.Register)
		usual := n1.base.Datastore
		n1.base.Datastore = config(c)
		requireError(c.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonUnknown, "register")
		n1.base.Datastore = usual
		Expect(n1.succeed(datastore.List).Owners).To(HaveLen(1))
	},
		Entry("a change without an answer", func(c *cluster) json.RawMessage { return c.interruptedConfig(blackhole) }),
		Entry("a change that etcd applied without space", func(c *cluster) json.RawMessage {
			return c.datastoreConfig("node", map[string]any{"endpoints": []string{c.members[0].fullEndpoint(1)}})
		}),
	)
})
