package datastore

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// startContainers starts perNode containers on each node, all at the same time. Like a runtime, it calls DEL and tries
// again if an ADD fails. It returns the number of failed ADDs.
func (n *nemesis) startContainers(perNode int) (failed int) {
	GinkgoHelper()
	limit := time.Now().Add(5 * time.Minute)
	failures := make([]int, len(n.nodes)*perNode)
	Expect(inParallel(len(failures), func(i int) error {
		m := n.nodes[i%len(n.nodes)]
		container := fmt.Sprintf("%s-boot%d-%d", m.name, m.boots, i)
		for {
			addrs, err := m.add(container)
			if err == nil {
				m.Lock()
				defer m.Unlock()
				m.ledger.added(container, addrs...)
				m.containers[container] = addrs
				return nil
			}
			failures[i]++
			if err := m.del(container); err != nil || time.Now().After(limit) {
				return fmt.Errorf("ADD of %s: %w", container, err)
			}
		}
	})).To(Succeed())
	for _, f := range failures {
		failed += f
	}
	return failed
}

var _ = Describe("30 nodes", func() {
	It("that boot at the same time assign different addresses to all their containers", func() {
		const booting, perNode = 30, 3
		n := newPluginNemesis(booting, defaultSetting)
		n.killRate.Store(0.0)
		n.caller.base.Datastore = n.operatorDatastore
		for _, step := range []string{"for the first time", "again", "again, while a member of etcd is dead"} {
			By(step)
			if step == "again, while a member of etcd is dead" {
				n.leader().kill()
			}
			for _, m := range n.nodes {
				m.bootAgain()
			}
			start := time.Now()
			failed := n.startContainers(perNode)
			AddReportEntry("boot "+step, fmt.Sprintf("%d containers in %v, %d ADDs failed", booting*perNode, time.Since(start).Round(time.Millisecond), failed))
			Expect(n.ledger.duplicates).To(BeEmpty())
		}
		n.settleNodes()
	})
})
