package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("with an IPAM plugin that works over the link", func() {
	It("calls its ADD when the port is up, and its DEL before the link is deleted", func() {
		nstest.LeakCheck(GinkgoTB())
		node, pod := nstest.NewNode(GinkgoTB()), newPod()
		dir := GinkgoTB().TempDir()
		records := filepath.Join(dir, "records")
		// This script stands in for the plugin dhcp. It records the state of the container's
		// interface and the number of ports of the bridge.
		script := fmt.Sprintf(`#!/bin/sh
cat >/dev/null
set -- "$CNI_COMMAND" $(nsenter --net="$CNI_NETNS" ip -br link show "$CNI_IFNAME")
echo "$1 $3 $(nsenter --net=%s ip -o link show master cni0 | wc -l)" >>%s
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.2/24"}]}'
`, node.Path(), records)
		Expect(os.WriteFile(filepath.Join(dir, "dhcp"), []byte(script), 0o755)).To(Succeed())
		c := nstest.Call{Node: node, Pod: pod, Path: dir, Config: `{"cniVersion":"1.1.0","name":"net1","type":"bridge","ipam":{"type":"dhcp"}}`}
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "add link veth") {
				time.Sleep(200 * time.Millisecond) // so that a plugin that was called too early has time to record it
			}
			return nil
		}
		mustAdd(c)
		c.Before = nil
		run(c, "DEL").OK(GinkgoTB())
		recorded, err := os.ReadFile(records)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(recorded)).To(Equal("ADD UP 1\nDEL UP 1\n"))
		Expect(pod.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("eth0"))
	})
})
