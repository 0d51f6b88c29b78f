package pool

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

var _ = Describe("the reservations", func() {
	var host *testHost
	BeforeEach(func() { host = newTestHost() })

	It("let ADD find the last free address of a large pool, and STATUS report that it is exhausted, without reading all", func() {
		t := variant{IPAM: `"subnet": "10.1.0.0/16", "rangeEnd": "10.1.15.255", "failStatusWhenFull": true`}
		for i := 2; i < 4096; i++ {
			if i != 3000 {
				host.Put(fmt.Sprintf("10.1.%d.%d", i>>8, i&255), fmt.Sprint("x", i, "\r\neth0"))
			}
		}
		host.Put("last_reserved_ip.0", "10.1.11.184")
		host.OK("STATUS", "", t)
		Expect(host.Add("c1", t)).To(Equal("10.1.11.184/16"))
		Expect(host.ReadAll()).To(BeFalse())
		host.Fails("STATUS", "", t)
		Expect(host.ReadAll()).To(BeFalse())
		host.Fails("ADD", "c2", t)
		Expect(host.ReadAll()).To(BeTrue(), "a reservation may be incomplete")
	})

	It("may be added and removed by the reference plugin between two calls", func() {
		host.Add("mine", variant{})
		host.ReferenceAdd("10.1.2.100", "theirs")
		host.OK("DEL", "theirs", variant{})
		Expect(host.Reserved()).To(HaveLen(1), "the reservation of the reference plugin was not found")
		host.WithReferenceLock(func() { Expect(os.Remove(host.Net("10.1.2.2"))).To(Succeed()) })
		Expect(host.Add("mine", variant{})).NotTo(BeEmpty()) // a free address, because the reference plugin has removed the reservation
		host.OK("DEL", "mine", variant{})
		Expect(host.Reserved()).To(BeEmpty())
	})

	It("are gone after the directory of the network was removed", func() {
		host.Add("c1", variant{})
		Expect(os.RemoveAll(host.Net(""))).To(Succeed())
		host.OK("DEL", "c1", variant{})
		Expect(host.Add("c1", variant{})).To(Equal("10.1.2.2/24"))
	})
})

var _ = Describe("write", func() {
	var host *testHost
	write := func(addr, id string) error {
		return host.store().Lock(func(se *Session) error { return se.write(ip(addr), owner{id, "eth0"}) })
	}
	BeforeEach(func() {
		host = newTestHost()
		host.Add("c0", variant{})
	})

	It("writes a reservation completely, even after a crash", func() {
		Expect(write("10.1.2.7", "c1")).To(Succeed())
		Expect(write("10.1.2.7", "c2")).To(MatchError(os.ErrExist))
		// A process that was killed between link and unlink leaves a second name of the reservation of c1.
		Expect(os.Link(host.Net("10.1.2.7"), host.Net("../.plumb/net/new"))).To(Succeed())
		Expect(write("10.1.2.8", "c3")).To(Succeed())
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c0/eth0", "10.1.2.7 c1/eth0", "10.1.2.8 c3/eth0"}))
		Expect(host.Net("../.plumb/net/new")).NotTo(BeAnExistingFile())
	})

	It("leaves no address file that may lack an address if it cannot write a reservation before it names the address", func() {
		Expect(host.store().Lock(func(se *Session) error {
			first := se.write(ip("10.1.2.7"), owner{"c1", "eth0"})
			Expect(os.Mkdir(host.Net("../.plumb/net/new"), 0o700)).To(Succeed())
			return errors.Join(first, se.write(ip("10.1.2.8"), owner{"c1", "eth0"}))
		})).To(Succeed())
		Expect(filepath.Join(host.addressFiles(), owner{"c1", "eth0"}.addressFileName())).NotTo(BeAnExistingFile())
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c0/eth0"}))
	})

	It("writes a reservation on a file system without hard links", func() {
		onRamfs(filepath.Join(host.DataDir, ".plumb"), func() {
			Expect(write("10.1.2.7", "c1")).To(Succeed())
			Expect(write("10.1.2.7", "c2")).To(MatchError(os.ErrExist))
		})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c0/eth0", "10.1.2.7 c1/eth0"}))
	})
})

var _ = Describe("a symbolic link", func() {
	DescribeTable("is not followed when the plugin writes", func(at string) {
		host, foreign := newTestHost(), GinkgoTB().TempDir()
		host.Add("c0", variant{})
		victim := filepath.Join(foreign, "victim")
		Expect(os.WriteFile(victim, []byte("precious"), 0o600)).To(Succeed())
		path := host.Net(strings.NewReplacer("FILES", "../.plumb/net/"+filepath.Base(host.addressFiles()), "C0", owner{"c0", "eth0"}.addressFileName(),
			"C1", owner{"c1", "eth0"}.addressFileName()).Replace(at))
		link := func(target string) {
			Expect(os.RemoveAll(path)).To(Succeed())
			Expect(os.Symlink(target, path)).To(Succeed())
		}
		link(victim)
		host.Add("c1", variant{})
		host.OK("DEL", "c0", variant{IPAM: subnet + `, "cooldown": 60`})
		Expect(os.ReadFile(victim)).To(BeEquivalentTo("precious"))
		Expect(host.Reserved()).To(ContainElement(HaveSuffix(" c1/eth0")))

		link(filepath.Join(foreign, "missing"))
		for _, verb := range []string{"DEL", "ADD", "CHECK", "STATUS", "DEL", "GC"} {
			r := host.Run(verb, "c1", variant{IPAM: subnet + `, "cooldown": 60`, More: `"cni.dev/valid-attachments": []`})
			if at == "lock" { // every verb fails, because it cannot open the lock
				Expect(r.Failure(GinkgoTB()).Msg).To(ContainSubstring("net/lock: a symbolic link, not a regular file; remove it"), verb)
			} else {
				r.OK(GinkgoTB())
			}
		}
		Expect(os.ReadDir(foreign)).To(HaveLen(1), "a foreign file was created")
	},
		Entry(nil, "last_reserved_ip.0"), Entry(nil, "lock"), Entry(nil, "10.1.2.3"),
		Entry(nil, "FILES"), Entry(nil, "FILES/C0"), Entry(nil, "FILES/C1"),
		Entry(nil, "../.plumb/net/new"), Entry(nil, "../.plumb/net/releases"), Entry(nil, "../.plumb/net/releases.new"))
})

func onRamfs(dir string, f func()) { onFilesystem("ramfs", "mode=0755", dir, f) }

// onFilesystem mounts a new file system on dir, which only the thread of f sees, and runs f.
func onFilesystem(kind, options, dir string, f func()) {
	onThread(func() {
		Expect(unix.Unshare(unix.CLONE_NEWNS)).To(Succeed())
		Expect(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")).To(Succeed())
		Expect(unix.Mount(kind, dir, kind, 0, options)).To(Succeed())
		f()
	})
}

// onThread runs f on a thread of its own, which ends with f.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer GinkgoRecover()
		runtime.LockOSThread()
		f()
	}()
	<-done
}

var _ = Describe("a reboot", func() {
	var host *testHost
	BeforeEach(func() { host = newTestHost() })

	It("lets the first call of any verb release the earlier reservations of this plugin", func() {
		for n, c := range []string{"ADD", "DEL", "STATUS"} {
			host.Add("c1", variant{})
			host.Boot(fmt.Sprint("boot-", n))
			host.OK(c, "new", variant{})
			host.OK("DEL", "new", variant{})
			Expect(host.Reserved()).To(BeEmpty(), c)
		}
	})

	DescribeTable("does not release a later reservation, even for the same owner and address, or a reservation of the reference plugin",
		func(replace func(), clock time.Duration) {
			host.Add("c1", variant{})
			host.Add("c2", variant{})
			host.Boot("next")
			before, err := os.Stat(host.Net("10.1.2.2"))
			Expect(err).NotTo(HaveOccurred())
			host.WithReferenceLock(replace)
			host.ReferenceAdd("10.1.2.2", "c1")
			now := before.ModTime().Add(clock)
			Expect(os.Chtimes(host.Net("10.1.2.2"), now, now)).To(Succeed())
			host.ReferenceAdd("10.1.2.9", "c9")
			host.OK("STATUS", "", variant{})
			Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c1/eth0", "10.1.2.9 c9/eth0"}))
			host.Boot("and another")
			host.OK("STATUS", "", variant{})
			Expect(host.Reserved()).To(HaveLen(2))
		},
		Entry("later", func() { Expect(os.Remove(host.Net("10.1.2.2"))).To(Succeed()) }, time.Second),
		Entry("with a clock that was set back", func() { Expect(os.Remove(host.Net("10.1.2.2"))).To(Succeed()) }, -time.Hour),
	)

	It("releases the reservations in a copy of the directory that keeps the times, such as a restored backup", func() {
		host.Add("c1", variant{})
		Expect(exec.Command("cp", "-a", host.DataDir, host.DataDir+"-copy").Run()).To(Succeed())
		Expect(os.RemoveAll(host.DataDir)).To(Succeed())
		Expect(os.Rename(host.DataDir+"-copy", host.DataDir)).To(Succeed())
		host.Boot("next")
		host.OK("STATUS", "", variant{})
		Expect(host.Reserved()).To(BeEmpty())
	})

	It("releases a reservation for which no hard link could be created", func() {
		host.Add("c0", variant{})
		onRamfs(filepath.Join(host.DataDir, ".plumb"), func() {
			two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]`}
			for _, id := range []string{"c1", "c2"} {
				host.Add(id, two)
			}
			host.OK("DEL", "c1", two)
			Expect(host.ReadAll()).To(BeFalse())
			Expect(host.Reserved()).To(HaveLen(3))
			host.Boot("next")
			host.OK("STATUS", "", variant{})
			Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c0/eth0"}), "the address file of c0 is on another file system")
		})
	})

	It("releases nothing if the address files were removed, or if the boot ID is unknown", func() {
		host.Add("c1", variant{})
		Expect(os.RemoveAll(filepath.Join(host.DataDir, ".plumb"))).To(Succeed())
		host.Boot("next")
		host.OK("STATUS", "", variant{})
		Expect(host.Reserved()).To(HaveLen(1))

		Expect(os.Remove(host.BootID)).To(Succeed())
		host.OK("STATUS", "", variant{})
		Expect(host.Reserved()).To(HaveLen(1))
		host.Boot("after")
		host.OK("STATUS", "", variant{})
		Expect(host.Reserved()).To(HaveLen(1))
	})
})

var _ = Describe("the lock", func() {
	It("is awaited until the limit, and the error names the process that holds it", func() {
		host := newTestHost()
		host.Wait = 50 * time.Millisecond
		host.Add("c1", variant{})
		holder := exec.Command("flock", host.Net("lock"), "sh", "-c", "echo held; read line")
		in, err := holder.StdinPipe()
		Expect(err).NotTo(HaveOccurred())
		out, err := holder.StdoutPipe()
		Expect(err).NotTo(HaveOccurred())
		Expect(holder.Start()).To(Succeed())
		DeferCleanup(func() { _ = in.Close(); _ = holder.Wait() })
		_, err = out.Read(make([]byte, 5))
		Expect(err).NotTo(HaveOccurred())

		for _, c := range []string{"ADD", "DEL", "CHECK"} {
			f := host.Fails(c, "c1", variant{})
			Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
			Expect(f.Msg).To(ContainSubstring("lock %s: held by process %d (flock) for over 50ms", host.Net("lock"), holder.Process.Pid))
		}
		Expect(host.Fails("STATUS", "", variant{}).Code).To(Equal(uint(types.CodeNotAvailable)))
	})

	It("is taken in the new directory if the directory was replaced meanwhile", func() {
		host := newTestHost()
		host.Add("c1", variant{})
		waiting := make(chan struct{})
		done := make(chan nstest.Reply)
		host.WithReferenceLock(func() {
			go func() {
				defer GinkgoRecover()
				c := host.Call("c2", variant{}).With("ADD")
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
				done <- nstest.Run(host.Plugin(), c)
			}()
			<-waiting
			Expect(os.Rename(host.Net(""), host.Net("../old"))).To(Succeed())
			Expect(os.Mkdir(host.Net(""), 0o755)).To(Succeed())
		})
		(<-done).OK(GinkgoTB())
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c2/eth0"}))
	})
})

var _ = Describe("a long container ID", func() {
	// The sizes are close to 4096 bytes, for the ID and for the file, which also contains the interface.
	for _, size := range []int{4089, 4090, 4091, 4095, 4096, 4097, 100_000} {
		It(fmt.Sprint("works with every verb: ", size, " bytes"), func() {
			host, id := newTestHost(), strings.Repeat("x", size-2)+"-1"
			other := id[:size-1] + "2"
			ranges := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]`}
			Expect(host.Add(id, ranges)).To(Equal("10.1.2.2/24 10.1.3.2/24"))
			host.Add(other, variant{})
			for _, readsAll := range []bool{false, true} {
				if readsAll {
					Expect(os.RemoveAll(host.Net("../.plumb"))).To(Succeed())
				}
				host.OK("CHECK", id, ranges)
				Expect(host.ReadAll()).To(Equal(readsAll))
				if !readsAll {
					Expect(host.Fails("ADD", id, ranges).Code).To(Equal(uint(CodeDuplicate)))
				}
			}
			host.OK("GC", "", variant{More: fmt.Sprintf(`"cni.dev/valid-attachments": [{"containerID": %q, "ifname": "eth0"}]`, id)})
			Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 " + id + "/eth0", "10.1.3.2 " + id + "/eth0"}))
			host.OK("DEL", other, ranges)
			Expect(host.Reserved()).To(HaveLen(2))
			host.OK("DEL", id, ranges)
			Expect(host.Reserved()).To(BeEmpty())
		})
	}
})

var _ = Describe("a file that is not regular or too large", func() {
	It("reserves its address, and is neither read nor removed", func() {
		nstest.RequireRoot(GinkgoTB(), "to create a device file")
		host := newTestHost()
		host.Put("10.1.2.2", "c1\r\neth0")
		Expect(os.Truncate(host.Net("10.1.2.2"), maxFileSize+1)).To(Succeed())
		Expect(unix.Mkfifo(host.Net("10.1.2.3"), 0o600)).To(Succeed())
		Expect(unix.Mknod(host.Net("10.1.2.4"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))).To(Succeed()) // /dev/zero
		Expect(host.Add("c1", variant{})).To(Equal("10.1.2.5/24"))
		Expect(host.Fails("ADD", "c2", variant{Args: "IP=10.1.2.3"}).Msg).To(ContainSubstring("allocated to an unknown owner"))
		host.OK("DEL", "c1", variant{})
		host.OK("GC", "", variant{More: `"cni.dev/valid-attachments": []`})
		for _, name := range []string{"10.1.2.2", "10.1.2.3", "10.1.2.4"} {
			Expect(host.Net(name)).To(BeAnExistingFile())
		}
	})

	It("is not read if its size is 0, as for all files in /proc", func() {
		_, _, err := workingDir.read("/proc/kallsyms") // one line per symbol of the kernel
		Expect(err).To(MatchError(errUnreadable))
	})
})

// withoutFileCapabilities runs f on a thread that has no capability to override file permissions.
func withoutFileCapabilities(f func()) {
	onThread(func() {
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		Expect(unix.Capget(&head, &caps[0])).To(Succeed())
		caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		Expect(unix.Capset(&head, &caps[0])).To(Succeed())
		f()
	})
}

var _ = Describe("an unreadable reservation", func() {
	var host *testHost
	gc := variant{More: `"cni.dev/valid-attachments": []`}
	BeforeEach(func() {
		host = newTestHost()
		for _, id := range []string{"c1", "c2", "c3"} {
			host.Add(id, variant{})
		}
		Expect(os.Chmod(host.Net("10.1.2.3"), 0)).To(Succeed())
	})
	expectUnreadable := func(command, id string, t variant) {
		GinkgoHelper()
		f := host.Fails(command, id, t)
		Expect(f.Code).To(Equal(uint(types.CodeIO)), f.Msg)
		Expect(f.Msg).To(ContainSubstring("open %s: permission denied", host.Net("10.1.2.3")))
	}

	It("is an error only for its owner while other attachments have address files", func() {
		withoutFileCapabilities(func() {
			for range 2 {
				expectUnreadable("CHECK", "c2", variant{})
				expectUnreadable("DEL", "c2", variant{})
				expectUnreadable("ADD", "c2", variant{})
				host.OK("CHECK", "c1", variant{})
			}
			Expect(host.Fails("ADD", "c4", variant{Args: "IP=10.1.2.3"}).Msg).To(ContainSubstring("allocated to an unknown owner"))
			host.OK("DEL", "c1", variant{})
		})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.3 c2/eth0", "10.1.2.4 c3/eth0"}))
	})

	It("is an error for any attachment without an address if the address files were removed", func() {
		Expect(os.RemoveAll(host.Net("../.plumb"))).To(Succeed())
		withoutFileCapabilities(func() {
			for range 2 {
				expectUnreadable("CHECK", "c2", variant{})
				expectUnreadable("DEL", "c2", variant{})
				expectUnreadable("DEL", "unknown", variant{})
				host.OK("CHECK", "c1", variant{})
				host.OK("STATUS", "", variant{})
			}
			Expect(host.Add("c4", variant{})).To(Equal("10.1.2.5/24"))
			host.OK("DEL", "c1", variant{})
		})
		Expect(os.Chmod(host.Net("10.1.2.3"), 0o600)).To(Succeed())
		host.OK("DEL", "c2", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.4 c3/eth0", "10.1.2.5 c4/eth0"}))
		host.OK("DEL", "unknown", variant{})
	})

	It("is an error of GC, which first releases all others", func() {
		withoutFileCapabilities(func() {
			for range 2 {
				expectUnreadable("GC", "", gc)
				Expect(host.Add("c4", variant{Args: "IP=10.1.2.2"})).To(Equal("10.1.2.2/24"))
			}
			expectUnreadable("GC", "", gc)
		})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.3 c2/eth0"}))
		Expect(os.Chmod(host.Net("10.1.2.3"), 0o600)).To(Succeed())
		host.OK("GC", "", gc)
		Expect(host.Reserved()).To(BeEmpty())
	})
})

var _ = Describe("a full disk", func() {
	// onFullDisk runs f after it has mounted a file system for a number of files on the data directory, which
	// is the first of the files.
	onFullDisk := func(host *testHost, inodes int, f func()) {
		Expect(os.MkdirAll(host.DataDir, 0o755)).To(Succeed())
		onFilesystem("tmpfs", fmt.Sprint("nr_inodes=", inodes), host.DataDir, f)
	}

	It("lets DEL and GC succeed if it has no space for the lock file", func() {
		host := newTestHost()
		onFullDisk(host, 2, func() {
			Expect(host.Fails("ADD", "c1", variant{}).Code).To(Equal(uint(types.CodeIO)))
			host.OK("DEL", "c1", variant{})
			host.OK("GC", "", variant{More: `"cni.dev/valid-attachments": []`})
		})
	})

	It("does not prevent an ADD if it has space for the reservation, but not for a second link to the file", func() {
		host := newTestHost()
		onFullDisk(host, 11, func() { // as in the next spec, with one reservation and one address file more
			host.Add("c1", variant{})
			host.Add("c2", variant{})
			Expect(host.Reserved()).To(HaveLen(2))
			host.Fails("ADD", "c3", variant{})
		})
	})

	It("does not prevent a release, even if it has no space for the time of the release", func() {
		host := newTestHost()
		cool := variant{IPAM: subnet + `, "cooldown": 30`}
		onFullDisk(host, 9, func() { // 5 for data, network, lock, cursor and reservation, 4 for 3 directories and an address file in .plumb
			host.Add("c1", cool)
			host.Fails("ADD", "c2", cool)
			host.OK("DEL", "c1", cool)
			Expect(host.Reserved()).To(BeEmpty())
			Expect(filepath.Join(host.DataDir, ".plumb", "net", "releases")).To(BeAnExistingFile(), "in the space that the release freed")
		})
	})

	It("leaves no address file if it has no space for all", func() {
		host := newTestHost()
		Expect(os.MkdirAll(filepath.Join(host.DataDir, ".plumb"), 0o755)).To(Succeed())
		onFilesystem("tmpfs", "nr_blocks=1", filepath.Join(host.DataDir, ".plumb"), func() {
			host.Add("c1", variant{})
			Expect(filepath.Glob(filepath.Join(host.DataDir, ".plumb", "net", "*", "*"))).To(BeEmpty())
			Expect(host.Add("c2", variant{})).To(Equal("10.1.2.3/24"))
		})
	})
})
