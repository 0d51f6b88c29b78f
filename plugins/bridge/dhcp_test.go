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
	It("asks it when the link is a port and up, and has it release before the link goes", func() {
		nstest.LeakCheck(GinkgoTB())
		node, pod := nstest.NewNode(GinkgoTB()), newPod()
		dir := GinkgoTB().TempDir()
		notes := filepath.Join(dir, "notes")
		// A stand-in for the plugin dhcp. It notes the state of the container's interface and
		// how many ports the bridge has.
		script := fmt.Sprintf(`#!/bin/sh
cat >/dev/null
set -- "$CNI_COMMAND" $(nsenter --net="$CNI_NETNS" ip -br link show "$CNI_IFNAME")
echo "$1 $3 $(nsenter --net=%s ip -o link show master cni0 | wc -l)" >>%s
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.2/24"}]}'
`, node.Path(), notes)
		Expect(os.WriteFile(filepath.Join(dir, "dhcp"), []byte(script), 0o755)).To(Succeed())
		c := nstest.Call{Node: node, Pod: pod, Path: dir, Config: `{"cniVersion":"1.1.0","name":"net1","type":"bridge","ipam":{"type":"dhcp"}}`}
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "add link veth") {
				time.Sleep(200 * time.Millisecond) // for a plugin that was asked too early to show it
			}
			return nil
		}
		add1(c)
		c.Before = nil
		run(c, "DEL").OK(GinkgoTB())
		noted, err := os.ReadFile(notes)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(noted)).To(Equal("ADD UP 1\nDEL UP 1\n"))
		Expect(pod.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("eth0"))
	})
})
