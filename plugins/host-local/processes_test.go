package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("a read-only directory", func() {
	It("lets DEL of an unknown attachment succeed, but not DEL of an attachment with an address", func() {
		host := newTestHost()
		host.Add("c1", variant{})
		bin := filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local")
		call := func(command, id string) nstest.Reply {
			script := filepath.Join(GinkgoT().TempDir(), "in-a-read-only-directory")
			Expect(os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec unshare -m sh -c 'mount --bind %s %s && mount -o remount,ro,bind %s && exec %s'\n",
				host.DataDir, host.DataDir, host.DataDir, bin), 0o700)).To(Succeed())
			return nstest.Exec(GinkgoTB(), script, host.Call(id, variant{}).With(command))
		}
		call("DEL", "c2").OK(GinkgoTB())
		call("DEL", "c1").RequireFailure(GinkgoTB(), types.CodeIO, "read-only file system")
		Expect(call("STATUS", "").Failure(GinkgoTB()).Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(call("ADD", "c3").Failure(GinkgoTB()).Code).To(Equal(uint(types.CodeIO)))
		Expect(os.Remove(host.Net("lock"))).To(Succeed())
		call("DEL", "c2").OK(GinkgoTB())
		Expect(call("DEL", "c1").Failure(GinkgoTB()).Code).To(Equal(uint(types.CodeIO)))
		Expect(host.Reserved()).To(HaveLen(1))
	})
})

var _ = Describe("many concurrent processes", func() {
	It("each reserve a different address, and release all addresses", func() {
		host := newTestHost()
		bin := filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local")
		count := nstest.FullOrShort(200, 50)
		all := func(command string, each func(i int, r nstest.Reply)) {
			var wg sync.WaitGroup
			slots := make(chan struct{}, 32)
			for i := range count {
				wg.Go(func() {
					defer GinkgoRecover()
					slots <- struct{}{}
					defer func() { <-slots }()
					each(i, nstest.Exec(GinkgoTB(), bin, host.Call(fmt.Sprint("c", i), variant{}).With(command)))
				})
			}
			wg.Wait()
		}
		allocated := make([]string, count)
		all("ADD", func(i int, r nstest.Reply) { allocated[i] = r.Result(GinkgoTB()).IPs[0].Address.String() })
		slices.Sort(allocated)
		Expect(slices.Compact(allocated)).To(HaveLen(count))
		Expect(host.Reserved()).To(HaveLen(count))
		all("DEL", func(_ int, r nstest.Reply) { r.OK(GinkgoTB()) })
		Expect(host.Reserved()).To(BeEmpty())
	})
})

var _ = Describe("a crash", func() {
	It("at any time is repaired by the next calls", func() {
		host := newTestHost()
		bin := filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local")
		r := rand.New(rand.NewPCG(5, 6))
		cool := variant{IPAM: subnet + `, "cooldown": 1`}
		for i := range nstest.FullOrShort(300, 50) {
			id := fmt.Sprint("c", i%20)
			// A runtime calls DEL after a failed ADD. The DEL may be killed as well.
			for _, c := range []string{"ADD", "DEL", "GC"} {
				if r.IntN(2) == 0 {
					continue
				}
				cmd := exec.Command(bin)
				call := host.Call(id, cool).With(c)
				if c == "GC" {
					call.Config = host.Config(variant{More: `"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]`})
				}
				cmd.Env = environ(call)
				cmd.Stdin = strings.NewReader(call.Config)
				Expect(cmd.Start()).To(Succeed())
				timer := time.AfterFunc(time.Duration(r.IntN(3500))*time.Microsecond, func() { _ = cmd.Process.Kill() })
				_ = cmd.Wait()
				timer.Stop()
			}
			if i%10 != 9 {
				continue
			}
			// Each address has one owner, and the DEL of that owner releases it.
			host.Clock += time.Minute
			host.Add("witness", variant{})
			for _, line := range host.Reserved() {
				Expect(line).To(MatchRegexp(`^10\.1\.2\.\d+ (c\d+|witness)/eth0$`))
			}
			host.OK("DEL", "witness", variant{})
			for n := range 20 {
				host.OK("DEL", fmt.Sprint("c", n), variant{})
			}
			Expect(host.Reserved()).To(BeEmpty())
		}
	})
})

// environ returns the environment that nstest.Exec sets for the call.
func environ(c nstest.Call) []string {
	return []string{
		"CNI_COMMAND=" + c.Command, "CNI_CONTAINERID=" + c.ContainerID, "CNI_IFNAME=eth0",
		"CNI_NETNS=" + c.NetNS, "CNI_PATH=/nonexistent",
	}
}
