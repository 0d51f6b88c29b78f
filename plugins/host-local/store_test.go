package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
	"golang.org/x/sys/unix"
)

// files is the folder of the attachments' files.
func (b *bed) files() string {
	GinkgoHelper()
	all, err := filepath.Glob(filepath.Join(b.dataDir, ".plumb", "net", "*.*"))
	Expect(err).NotTo(HaveOccurred())
	Expect(all).To(HaveLen(1))
	return all[0]
}

func (b *bed) fileOf(id string) string {
	GinkgoHelper()
	return filepath.Join(b.files(), owner{id, "eth0"}.fileID().fileName())
}

var _ = Describe("the attachments' files", func() {
	var b *bed
	BeforeEach(func() { b = newBed() })

	It("spare every verb the reading of the pool", func() {
		b.add("c1", try{})
		for i := range 300 {
			b.put(fmt.Sprintf("10.1.%d.%d", 3+i/250, 2+i%250), fmt.Sprint("x", i, "\r\neth0"))
		}
		b.ok("STATUS", "", try{})
		Expect(b.walked()).To(BeTrue())
		for _, c := range []string{"STATUS", "ADD", "CHECK", "DEL", "DEL"} {
			b.ok(c, "c2", try{})
			Expect(b.walked()).To(BeFalse(), c)
		}
	})

	It("let ADD find the last free address of a large pool, and say that there is none, without reading it", func() {
		t := try{ipam: `"subnet": "10.1.0.0/16", "rangeEnd": "10.1.15.255", "failStatusWhenFull": true`}
		for i := 2; i < 4096; i++ {
			if i != 3000 {
				b.put(fmt.Sprintf("10.1.%d.%d", i>>8, i&255), fmt.Sprint("x", i, "\r\neth0"))
			}
		}
		b.put("last_reserved_ip.0", "10.1.11.184")
		b.ok("STATUS", "", t)
		Expect(b.add("c1", t)).To(Equal("10.1.11.184/16"))
		Expect(b.walked()).To(BeFalse())
		for _, c := range []string{"ADD", "STATUS"} {
			b.fails(c, "c2", t)
			Expect(b.walked()).To(BeFalse(), c)
		}
	})

	It("do not keep an exhausted large pool from being read again after a while", func() {
		t := try{ipam: `"subnet": "10.1.0.0/16", "rangeEnd": "10.1.3.255", "failStatusWhenFull": true`}
		for i := 2; i < 1024; i++ {
			b.put(fmt.Sprintf("10.1.%d.%d", i>>8, i&255), fmt.Sprint("x", i, "\r\neth0"))
		}
		b.fails("STATUS", "", t)
		b.put("10.1.2.2", "") // in place: the folder does not change
		b.fails("ADD", "c1", t)
		b.clock += readInterval + time.Second
		Expect(b.add("c1", t)).To(Equal("10.1.2.2/16"))
	})

	// ramfs has no multigrain timestamps, so that its times are those of the clock's
	// ticks on every kernel.
	DescribeTable("are not taken for complete after a change within the same tick of the clock", func(on func(dir string, f func())) {
		Expect(os.MkdirAll(b.dataDir, 0o755)).To(Succeed())
		on(b.dataDir, func() {
			for i := range nstest.FullOrShort(400, 50) {
				mine, theirs := fmt.Sprint("mine", i), fmt.Sprint("theirs", i)
				b.add(mine, try{})
				b.referenceAdd(fmt.Sprint("10.1.2.", 100+i%100), theirs)
				b.ok("DEL", theirs, try{})
				Expect(b.reserved()).To(HaveLen(1), "the reference's reservation was not seen")
				b.likeReference(func() {
					Expect(os.Remove(b.net(strings.Fields(b.reserved()[0])[0]))).To(Succeed())
				})
				Expect(b.add(mine, try{})).NotTo(BeEmpty()) // not a duplicate: it is gone
				b.ok("DEL", mine, try{})
			}
		})
	},
		Entry("here", func(_ string, f func()) { f() }),
		Entry("on ramfs", onRamfs),
	)

	It("are not taken for complete when somebody restored the folder's times", func() {
		b.add("c1", try{})
		info, err := os.Stat(b.net(""))
		Expect(err).NotTo(HaveOccurred())
		b.put("10.1.2.50", "c2\r\neth0")
		Expect(os.Chtimes(b.net(""), info.ModTime(), info.ModTime())).To(Succeed())
		b.ok("DEL", "c2", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 c1/eth0"}))
	})

	DescribeTable("are made anew when they are not right", func(spoil func(before []byte)) {
		b.add("c0", try{})
		before, err := os.ReadFile(filepath.Join(b.files(), completeName))
		Expect(err).NotTo(HaveOccurred())
		b.add("c1", try{})
		b.ok("DEL", "c0", try{})
		spoil(before)
		b.ok("CHECK", "c1", try{})
		Expect(b.fails("ADD", "c1", try{}).Code).To(Equal(uint(codeDuplicate)))
		Expect(b.add("c2", try{})).To(Equal("10.1.2.4/24"))
		Expect(b.add("c3", try{args: "IP=10.1.2.2"})).To(Equal("10.1.2.2/24"))
		b.ok("CHECK", "c3", try{})
		Expect(b.walked()).To(BeFalse())
		for _, id := range []string{"c1", "c2", "c3"} {
			b.ok("DEL", id, try{})
		}
		Expect(b.reserved()).To(BeEmpty())
	},
		Entry("all gone", func([]byte) { Expect(os.RemoveAll(filepath.Join(b.dataDir, ".plumb"))).To(Succeed()) }),
		Entry("the network's folder gone", func([]byte) { Expect(os.RemoveAll(filepath.Dir(b.files()))).To(Succeed()) }),
		Entry("one gone", func([]byte) { Expect(os.Remove(b.fileOf("c1"))).To(Succeed()) }),
		Entry("one too many", func([]byte) {
			Expect(os.WriteFile(b.fileOf("c2"), []byte("10.1.2.3 1 1\n"), 0o600)).To(Succeed())
		}),
		Entry("one with another's address", func([]byte) {
			b.add("x", try{ipam: subnet + `, "rangeStart": "10.1.2.50"`})
			text, err := os.ReadFile(b.fileOf("x"))
			Expect(err).NotTo(HaveOccurred())
			b.ok("DEL", "x", try{})
			b.put("last_reserved_ip.0", "10.1.2.3")
			Expect(os.WriteFile(b.fileOf("c1"), text, 0o600)).To(Succeed())
		}),
		Entry("one empty", func([]byte) { Expect(os.Truncate(b.fileOf("c1"), 0)).To(Succeed()) }),
		Entry("one cut", func([]byte) { Expect(os.Truncate(b.fileOf("c1"), 12)).To(Succeed()) }),
		Entry("one of noise", func([]byte) {
			Expect(os.WriteFile(b.fileOf("c1"), []byte(strings.Repeat("noise", 3000)), 0o600)).To(Succeed())
		}),
		Entry("one a folder", func([]byte) {
			Expect(os.Remove(b.fileOf("c1"))).To(Succeed())
			Expect(os.MkdirAll(filepath.Join(b.fileOf("c1"), "x"), 0o700)).To(Succeed())
		}),
		Entry("complete: gone", func([]byte) { Expect(os.Remove(filepath.Join(b.files(), completeName))).To(Succeed()) }),
		Entry("complete: of another time", func(before []byte) {
			Expect(os.WriteFile(filepath.Join(b.files(), completeName), before, 0o600)).To(Succeed())
		}),
		Entry("complete: cut", func([]byte) { Expect(os.Truncate(filepath.Join(b.files(), completeName), 90)).To(Succeed()) }),
		Entry("complete: empty", func([]byte) { Expect(os.Truncate(filepath.Join(b.files(), completeName), 0)).To(Succeed()) }),
		Entry("their folder a file", func([]byte) {
			path := b.files()
			Expect(os.RemoveAll(path)).To(Succeed())
			Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		}),
		Entry("their folder a link", func([]byte) {
			path := b.files()
			Expect(os.Rename(path, filepath.Join(b.dataDir, "elsewhere"))).To(Succeed())
			Expect(os.Symlink(filepath.Join(b.dataDir, "elsewhere"), path)).To(Succeed())
		}),
	)

	It("do not outlive the removal of the network's folder", func() {
		b.add("c1", try{})
		Expect(os.RemoveAll(b.net(""))).To(Succeed())
		b.ok("DEL", "c1", try{})
		Expect(b.add("c1", try{})).To(Equal("10.1.2.2/24"))
	})
})

var _ = Describe("a filesystem without nameless files", func() {
	var b *bed
	link := func(name, content string) error {
		st := store{dir: b.net(""), privateDir: filepath.Join(b.dataDir, ".plumb", "net"), host: host{bootID: b.bootID, wait: b.wait, now: func() time.Duration { return 0 }}}
		return st.withLock(func(se *session) error { return se.createFileByLink(name, []byte(content)) })
	}
	BeforeEach(func() {
		b = newBed()
		b.add("c0", try{})
	})

	It("has whole reservations all the same", func() {
		Expect(link("10.1.2.7", "c1\r\neth0")).To(Succeed())
		Expect(link("10.1.2.7", "c2\r\neth0")).To(MatchError(os.ErrExist))
		// Killed between link and unlink: what is left is a second name of c1's.
		Expect(os.Link(b.net("10.1.2.7"), b.net("../.plumb/net/new"))).To(Succeed())
		Expect(link("10.1.2.8", "c3\r\neth0")).To(Succeed())
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 c0/eth0", "10.1.2.7 c1/eth0", "10.1.2.8 c3/eth0"}))
		Expect(b.net("../.plumb/net/new")).NotTo(BeAnExistingFile())
	})

	It("may have no links either", func() {
		onRamfs(filepath.Join(b.dataDir, ".plumb"), func() {
			Expect(link("10.1.2.7", "c1\r\neth0")).To(Succeed())
			Expect(link("10.1.2.7", "c2\r\neth0")).To(MatchError(os.ErrExist))
		})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 c0/eth0", "10.1.2.7 c1/eth0"}))
	})
})

var _ = Describe("a symbolic link", func() {
	DescribeTable("leads to nothing that is written", func(at string) {
		b := newBed()
		b.add("c0", try{})
		victim := filepath.Join(GinkgoTB().TempDir(), "victim")
		Expect(os.WriteFile(victim, []byte("precious"), 0o600)).To(Succeed())
		at = strings.NewReplacer("FILES", "../.plumb/net/"+filepath.Base(b.files()), "C0", owner{"c0", "eth0"}.fileID().fileName(),
			"C1", owner{"c1", "eth0"}.fileID().fileName()).Replace(at)
		Expect(os.RemoveAll(b.net(at))).To(Succeed())
		Expect(os.Symlink(victim, b.net(at))).To(Succeed())
		b.put("10.1.2.9", "x\r\neth0") // so that the attachments' files are written anew
		b.add("c1", try{})
		b.ok("DEL", "c0", try{ipam: subnet + `, "cooldown": 60`})
		Expect(os.ReadFile(victim)).To(BeEquivalentTo("precious"))
		Expect(b.reserved()).To(ContainElement(HaveSuffix(" c1/eth0")))
	},
		Entry(nil, "last_reserved_ip.0"), Entry(nil, "lock"), Entry(nil, "10.1.2.3"),
		Entry(nil, "FILES"), Entry(nil, "FILES/complete"), Entry(nil, "FILES/C0"), Entry(nil, "FILES/C1"),
		Entry(nil, "../.plumb/net/new"), Entry(nil, "../.plumb/net/releases"), Entry(nil, "../.plumb/net/releases.new"))
})

func onRamfs(dir string, f func()) { onFilesystem("ramfs", "mode=0755", dir, f) }

// onFilesystem runs f on a thread for which dir is a filesystem of that kind. The
// thread ends with f.
func onFilesystem(kind, options, dir string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer GinkgoRecover()
		runtime.LockOSThread()
		Expect(unix.Unshare(unix.CLONE_NEWNS)).To(Succeed())
		Expect(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")).To(Succeed())
		Expect(unix.Mount(kind, dir, kind, 0, options)).To(Succeed())
		f()
	}()
	<-done
}

var _ = Describe("a reboot", func() {
	var b *bed
	BeforeEach(func() { b = newBed() })

	It("makes stale what was seen before it, at the first call of any kind", func() {
		for n, c := range []string{"ADD", "DEL", "STATUS"} {
			b.add("c1", try{})
			b.put("10.1.2.99", "theirs\r\neth0")
			b.put("10.1.2.98", "legacy")
			b.ok("STATUS", "", try{})
			b.boot(fmt.Sprint("boot-", n))
			b.ok(c, "new", try{})
			b.ok("DEL", "new", try{})
			Expect(b.reserved()).To(BeEmpty(), c)
		}
	})

	It("keeps what others made since, even for the same owner at the same address", func() {
		b.add("c1", try{})
		b.add("c2", try{})
		b.boot("next")
		b.likeReference(func() { Expect(os.Remove(b.net("10.1.2.2"))).To(Succeed()) })
		b.referenceAdd("10.1.2.2", "c1")
		b.referenceAdd("10.1.2.9", "c9")
		b.ok("STATUS", "", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 c1/eth0", "10.1.2.9 c9/eth0"}))
		b.boot("and another")
		b.ok("STATUS", "", try{})
		Expect(b.reserved()).To(BeEmpty())
	})

	It("keeps all when the attachments' files are gone, or the boot is not known", func() {
		b.add("c1", try{})
		Expect(os.RemoveAll(filepath.Join(b.dataDir, ".plumb"))).To(Succeed())
		b.boot("next")
		b.ok("STATUS", "", try{})
		Expect(b.reserved()).To(HaveLen(1))

		Expect(os.Remove(b.bootID)).To(Succeed())
		b.ok("STATUS", "", try{})
		Expect(b.reserved()).To(HaveLen(1))
		b.boot("after")
		b.ok("STATUS", "", try{})
		Expect(b.reserved()).To(HaveLen(1))
	})

	It("does not take the same boot for another", func() {
		b.add("c1", try{})
		b.referenceAdd("10.1.2.9", "c9")
		b.ok("STATUS", "", try{})
		Expect(b.reserved()).To(HaveLen(2))
	})
})

var _ = Describe("the lock", func() {
	It("is not waited for without end, and its holder is named", func() {
		b := newBed()
		b.wait = 50 * time.Millisecond
		b.add("c1", try{})
		holder := exec.Command("flock", b.net("lock"), "sh", "-c", "echo held; read line")
		in, err := holder.StdinPipe()
		Expect(err).NotTo(HaveOccurred())
		out, err := holder.StdoutPipe()
		Expect(err).NotTo(HaveOccurred())
		Expect(holder.Start()).To(Succeed())
		DeferCleanup(func() { _ = in.Close(); _ = holder.Wait() })
		_, err = out.Read(make([]byte, 5))
		Expect(err).NotTo(HaveOccurred())

		for _, c := range []string{"ADD", "DEL", "CHECK"} {
			f := b.fails(c, "c1", try{})
			Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
			Expect(f.Msg).To(ContainSubstring("lock %s: held by process %d (flock) for over 50ms", b.net("lock"), holder.Process.Pid))
		}
		Expect(b.fails("STATUS", "", try{}).Code).To(Equal(uint(types.CodeNotAvailable)))
	})

	It("is that of the folder which is there when it is got", func() {
		b := newBed()
		b.add("c1", try{})
		waiting := make(chan struct{})
		done := make(chan nstest.Reply)
		b.likeReference(func() {
			go func() {
				defer GinkgoRecover()
				c := b.call("c2", try{}).With("ADD")
				c.Before = func(step string) error {
					if strings.HasPrefix(step, "lock") {
						select {
						case <-waiting:
						default:
							close(waiting)
						}
					}
					return nil
				}
				done <- nstest.Run(b.plugin(), c)
			}()
			<-waiting
			Expect(os.Rename(b.net(""), b.net("../old"))).To(Succeed())
			Expect(os.Mkdir(b.net(""), 0o755)).To(Succeed())
		})
		(<-done).OK(GinkgoTB())
		Expect(b.reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	})
})

var _ = Describe("a container ID that is long", func() {
	// Around 4096 bytes of the ID, and of the file, which has the interface, too.
	for _, size := range []int{4089, 4090, 4091, 4095, 4096, 4097, 100_000} {
		It(fmt.Sprint("is known by every verb: ", size), func() {
			b, id := newBed(), strings.Repeat("x", size-2)+"-1"
			other := id[:size-1] + "2"
			ranges := try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]`}
			Expect(b.add(id, ranges)).To(Equal("10.1.2.2/24 10.1.3.2/24"))
			b.add(other, try{})
			for _, walked := range []bool{false, true} {
				if walked {
					Expect(os.RemoveAll(b.net("../.plumb"))).To(Succeed())
				}
				b.ok("CHECK", id, ranges)
				Expect(b.walked()).To(Equal(walked))
				Expect(b.fails("ADD", id, ranges).Code).To(Equal(uint(codeDuplicate)))
			}
			b.ok("GC", "", try{more: fmt.Sprintf(`"cni.dev/valid-attachments": [{"containerID": %q, "ifname": "eth0"}]`, id)})
			Expect(b.reserved()).To(Equal([]string{"10.1.2.2 " + id + "/eth0", "10.1.3.2 " + id + "/eth0"}))
			b.ok("DEL", other, ranges)
			Expect(b.reserved()).To(HaveLen(2))
			b.ok("DEL", id, ranges)
			Expect(b.reserved()).To(BeEmpty())
		})
	}
})

var _ = Describe("what is no reservation", func() {
	It("takes its address, and is neither read to its end nor removed", func() {
		b := newBed()
		b.put("10.1.2.2", "c1\r\neth0")
		Expect(os.Truncate(b.net("10.1.2.2"), maxFileSize+1)).To(Succeed())
		Expect(unix.Mkfifo(b.net("10.1.2.3"), 0o600)).To(Succeed())
		Expect(unix.Mknod(b.net("10.1.2.4"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))).To(Succeed()) // zeros without end
		Expect(b.add("c1", try{})).To(Equal("10.1.2.5/24"))
		Expect(b.fails("ADD", "c2", try{args: "IP=10.1.2.3"}).Msg).To(ContainSubstring("allocated to an unknown owner"))
		b.ok("DEL", "c1", try{})
		b.ok("GC", "", try{more: `"cni.dev/valid-attachments": []`})
		for _, name := range []string{"10.1.2.2", "10.1.2.3", "10.1.2.4"} {
			Expect(b.net(name)).To(BeAnExistingFile())
		}
	})
})

// asNobodySpecial runs f on a thread that is refused what the mode of a file refuses.
// The thread ends with f.
func asNobodySpecial(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer GinkgoRecover()
		runtime.LockOSThread()
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		Expect(unix.Capget(&head, &caps[0])).To(Succeed())
		caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		Expect(unix.Capset(&head, &caps[0])).To(Succeed())
		f()
	}()
	<-done
}

var _ = Describe("a reservation that cannot be read", func() {
	var b *bed
	gc := try{more: `"cni.dev/valid-attachments": []`}
	BeforeEach(func() {
		b = newBed()
		for _, id := range []string{"c1", "c2", "c3"} {
			b.add(id, try{})
		}
		Expect(os.Chmod(b.net("10.1.2.3"), 0)).To(Succeed())
	})
	refused := func(command, id string, t try) {
		GinkgoHelper()
		f := b.fails(command, id, t)
		Expect(f.Code).To(Equal(uint(types.CodeIO)), f.Msg)
		Expect(f.Msg).To(ContainSubstring("open %s: permission denied", b.net("10.1.2.3")))
	}

	It("is named to whom it belongs, and to nobody else, while the attachments' files are up to date", func() {
		asNobodySpecial(func() {
			for range 2 {
				refused("CHECK", "c2", try{})
				refused("DEL", "c2", try{})
				refused("ADD", "c2", try{})
				b.ok("CHECK", "c1", try{})
				b.ok("DEL", "unknown", try{})
				Expect(b.walked()).To(BeFalse())
			}
			Expect(b.fails("ADD", "c4", try{args: "IP=10.1.2.3"}).Msg).To(ContainSubstring("allocated to an unknown owner"))
			b.ok("DEL", "c1", try{})
		})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.3 c2/eth0", "10.1.2.4 c3/eth0"}))
	})

	It("may be anybody's without the attachments' files, until it can be read", func() {
		Expect(os.RemoveAll(b.net("../.plumb"))).To(Succeed())
		asNobodySpecial(func() {
			for range 2 {
				refused("CHECK", "c2", try{})
				refused("DEL", "c2", try{})
				refused("DEL", "unknown", try{})
				b.ok("CHECK", "c1", try{})
				b.ok("STATUS", "", try{})
			}
			Expect(b.add("c4", try{})).To(Equal("10.1.2.5/24"))
			b.ok("DEL", "c1", try{})
		})
		Expect(os.Chmod(b.net("10.1.2.3"), 0o600)).To(Succeed())
		b.ok("DEL", "c2", try{})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.4 c3/eth0", "10.1.2.5 c4/eth0"}))
		b.ok("DEL", "unknown", try{})
		Expect(b.walked()).To(BeFalse())
	})

	It("is left by GC, which does the rest and says so", func() {
		asNobodySpecial(func() {
			for range 2 {
				refused("GC", "", gc)
				Expect(b.add("c4", try{args: "IP=10.1.2.2"})).To(Equal("10.1.2.2/24"))
			}
			refused("GC", "", gc)
		})
		Expect(b.reserved()).To(Equal([]string{"10.1.2.3 c2/eth0"}))
		Expect(os.Chmod(b.net("10.1.2.3"), 0o600)).To(Succeed())
		b.ok("GC", "", gc)
		Expect(b.reserved()).To(BeEmpty())
	})
})

var _ = Describe("a store without a folder", func() {
	It("is not looked for where standard input is", func() {
		dir := GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, cursorName(0)), []byte("10.1.2.77"), 0o600)).To(Succeed())
		in, err := os.Open(dir)
		Expect(err).NotTo(HaveOccurred())
		stdin, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
		Expect(err).NotTo(HaveOccurred())
		Expect(unix.Dup2(int(in.Fd()), 0)).To(Succeed())
		cursor := store{dir: filepath.Join(dir, "net")}.newSession().cursor(0)
		Expect(unix.Dup2(stdin, 0)).To(Succeed())
		Expect(unix.Close(stdin)).To(Succeed())
		Expect(in.Close()).To(Succeed())
		Expect(cursor.IsValid()).To(BeFalse())
	})
})

var _ = Describe("a folder that is read-only", func() {
	It("lets DEL of the unknown finish, and says so of the known", func() {
		b := newBed()
		b.add("c1", try{})
		bin := filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local")
		call := func(command, id string) nstest.Reply {
			script := filepath.Join(GinkgoT().TempDir(), "in-a-read-only-folder")
			Expect(os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec unshare -m sh -c 'mount --bind %s %s && mount -o remount,ro,bind %s && exec %s'\n",
				b.dataDir, b.dataDir, b.dataDir, bin), 0o700)).To(Succeed())
			return nstest.Exec(GinkgoTB(), script, b.call(id, try{}).With(command))
		}
		call("DEL", "c2").OK(GinkgoTB())
		f := call("DEL", "c1").Failure(GinkgoTB())
		Expect(f.Code).To(Equal(uint(types.CodeIO)))
		Expect(f.Msg).To(ContainSubstring("read-only file system"))
		Expect(call("STATUS", "").Failure(GinkgoTB()).Code).To(Equal(uint(types.CodeNotAvailable)))
		Expect(call("ADD", "c3").Failure(GinkgoTB()).Code).To(Equal(uint(types.CodeIO)))
		Expect(os.Remove(b.net("lock"))).To(Succeed())
		call("DEL", "c2").OK(GinkgoTB())
		Expect(call("DEL", "c1").Failure(GinkgoTB()).Code).To(Equal(uint(types.CodeIO)))
		Expect(b.reserved()).To(HaveLen(1))
	})
})

var _ = Describe("a disk that is full", func() {
	// The folder above is the first inode.
	full := func(b *bed, inodes int, f func()) {
		Expect(os.MkdirAll(b.dataDir, 0o755)).To(Succeed())
		onFilesystem("tmpfs", fmt.Sprint("nr_inodes=", inodes), b.dataDir, f)
	}

	It("with no room for the lock has nothing to release", func() {
		b := newBed()
		full(b, 2, func() {
			Expect(b.fails("ADD", "c1", try{}).Code).To(Equal(uint(types.CodeIO)))
			b.ok("DEL", "c1", try{})
			b.ok("GC", "", try{more: `"cni.dev/valid-attachments": []`})
		})
	})

	It("with no room for the time of a release releases all the same", func() {
		b := newBed()
		cool := try{ipam: subnet + `, "cooldown": 30`}
		full(b, 10, func() { // folder, lock, cursor, reservation; 3 folders and 2 files beside
			b.add("c1", cool)
			b.fails("ADD", "c2", cool)
			b.ok("DEL", "c1", cool)
			Expect(b.reserved()).To(BeEmpty())
			Expect(filepath.Join(b.dataDir, ".plumb", "net", "releases")).To(BeAnExistingFile(), "in the room that it made")
		})
	})

	It("keeps no attachments' files that are not all there", func() {
		b := newBed()
		Expect(os.MkdirAll(filepath.Join(b.dataDir, ".plumb"), 0o755)).To(Succeed())
		onFilesystem("tmpfs", "nr_blocks=1", filepath.Join(b.dataDir, ".plumb"), func() {
			b.add("c1", try{})
			Expect(filepath.Glob(filepath.Join(b.dataDir, ".plumb", "net", "*"))).To(BeEmpty())
			Expect(b.add("c2", try{})).To(Equal("10.1.2.3/24"))
		})
	})
})

var _ = Describe("many at a time", func() {
	It("gives no address twice and loses none", func() {
		b := newBed()
		bin := filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local")
		count := nstest.FullOrShort(200, 50)
		all := func(command string, each func(i int, r nstest.Reply)) {
			var wg sync.WaitGroup
			turns := make(chan struct{}, 32)
			for i := range count {
				wg.Go(func() {
					defer GinkgoRecover()
					turns <- struct{}{}
					defer func() { <-turns }()
					each(i, nstest.Exec(GinkgoTB(), bin, b.call(fmt.Sprint("c", i), try{}).With(command)))
				})
			}
			wg.Wait()
		}
		given := make([]string, count)
		all("ADD", func(i int, r nstest.Reply) { given[i] = r.Result(GinkgoTB()).IPs[0].Address.String() })
		slices.Sort(given)
		Expect(slices.Compact(given)).To(HaveLen(count))
		Expect(b.reserved()).To(HaveLen(count))
		all("DEL", func(_ int, r nstest.Reply) { r.OK(GinkgoTB()) })
		Expect(b.reserved()).To(BeEmpty())
	})
})

var _ = Describe("a crash", func() {
	It("at any instruction leaves nothing that the next calls do not repair", func() {
		b := newBed()
		bin := filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local")
		r := rand.New(rand.NewPCG(5, 6))
		cool := try{ipam: subnet + `, "cooldown": 1`}
		for i := range nstest.FullOrShort(300, 50) {
			id := fmt.Sprint("c", i%20)
			// A runtime follows a failed ADD with a DEL, which may be killed as well.
			for _, c := range []string{"ADD", "DEL", "GC"} {
				if r.IntN(2) == 0 {
					continue
				}
				cmd := exec.Command(bin)
				call := b.call(id, cool).With(c)
				if c == "GC" {
					call.Config = b.config(try{more: `"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]`})
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
			// An address is in the hands of one, and its DEL frees it.
			b.clock += time.Minute
			b.add("witness", try{})
			for _, line := range b.reserved() {
				Expect(line).To(MatchRegexp(`^10\.1\.2\.\d+ (c\d+|witness)/eth0$`))
			}
			b.ok("DEL", "witness", try{})
			for n := range 20 {
				b.ok("DEL", fmt.Sprint("c", n), try{})
			}
			Expect(b.reserved()).To(BeEmpty())
		}
	})
})

// environ is what nstest.Exec would give the call.
func environ(c nstest.Call) []string {
	return []string{
		"CNI_COMMAND=" + c.Command, "CNI_CONTAINERID=" + c.ContainerID, "CNI_IFNAME=eth0",
		"CNI_NETNS=" + c.NetNS, "CNI_PATH=/nonexistent",
	}
}

var _ = Describe("a step that fails", func() {
	It("leaves nothing", func() {
		b := newBed()
		nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
			Plugin: b.plugin(),
			Config: b.config(try{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}),
			Dirs:   []string{b.net("")},
			// A bed of the sweep is a fresh node.
			Prepare: func(_, _ *nstest.NS) { Expect(os.RemoveAll(b.dataDir)).To(Succeed()) },
			// Where the next search begins belongs to the network.
			Ignore: func(line string) bool { return strings.Contains(line, "last_reserved_ip.") },
		})
	})
})
