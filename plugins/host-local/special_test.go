package main

import (
	"fmt"
	"net"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

// A call must not block if it finds a special file in place of a regular file.
var _ = Describe("a special file", func() {
	var host *nstest.PoolHost
	BeforeEach(func() {
		host = newTestHost()
		host.Add("c0", variant{})
	})

	// runToEnd calls the plugin, and fails the spec if the call does not end.
	runToEnd := func(command, id string, v variant) nstest.Reply {
		GinkgoHelper()
		done := make(chan nstest.Reply, 1)
		call := host.Call(id, v).With(command)
		go func() { done <- nstest.Run(host.Plugin(), call) }()
		var r nstest.Reply
		Eventually(done).WithTimeout(time.Minute).Should(Receive(&r), command)
		return r
	}
	pipe := func(path string) {
		GinkgoHelper()
		Expect(os.Remove(path)).To(Succeed())
		Expect(unix.Mkfifo(path, 0o600)).To(Succeed())
	}
	socket := func(path string) {
		GinkgoHelper()
		Expect(os.Remove(path)).To(Succeed())
		listener, err := net.Listen("unix", path)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(listener.Close)
	}
	largeFile := func(path string) {
		GinkgoHelper()
		Expect(os.Truncate(path, 1<<20+1)).To(Succeed())
	}
	pipeWithReader := func(path string) {
		GinkgoHelper()
		pipe(path)
		reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(reader.Close)
	}
	pipeWithWriter := func(path string) {
		GinkgoHelper()
		pipe(path)
		both, err := os.OpenFile(path, os.O_RDWR, 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(both.Close)
	}

	directory := func(path string) {
		GinkgoHelper()
		Expect(os.Remove(path)).To(Succeed())
		Expect(os.MkdirAll(path+"/x", 0o700)).To(Succeed())
	}

	DescribeTable("in place of the lock file is an error that contains the path", func(replace func(string)) {
		replace(host.Net("lock"))
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			f := runToEnd(command, "c0", variant{}).Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeIO), command)
			Expect(f.Msg).To(ContainSubstring("open %s: ", host.Net("lock")), command)
			Expect(f.Msg).To(HaveSuffix("not a regular file; remove it"), command)
		}
		Expect(runToEnd("STATUS", "", variant{}).Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeNotAvailable))
		Expect(os.RemoveAll(host.Net("lock"))).To(Succeed())
		runToEnd("DEL", "c0", variant{}).OK(GinkgoTB())
		Expect(host.Reserved()).To(BeEmpty())
	},
		Entry("a named pipe", pipe), Entry("a named pipe with a writer", pipeWithWriter), Entry("a socket", socket), Entry("a directory", directory))

	DescribeTable("in place of last_reserved_ip.0 is replaced by ADD", func(replace func(string)) {
		replace(host.Net("last_reserved_ip.0"))
		Expect(runToEnd("ADD", "c1", variant{}).Result(GinkgoTB()).IPs[0].Address.String()).To(Equal("10.1.2.3/24"))
		Expect(os.ReadFile(host.Net("last_reserved_ip.0"))).To(BeEquivalentTo("10.1.2.3"))
	},
		Entry("a named pipe", pipe), Entry("a named pipe with a reader", pipeWithReader),
		Entry("a named pipe with a writer", pipeWithWriter), Entry("a socket", socket))

	const notRegular = "open %s: not a regular file"
	DescribeTable("as resolvConf is an error with code 5 in ADD", func(replace func(string), problem string) {
		path := fmt.Sprint(GinkgoT().TempDir(), "/resolv.conf")
		Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		replace(path)
		f := runToEnd("ADD", "c1", variant{IPAM: fmt.Sprintf(`%s, "resolvConf": %q`, subnet, path)}).Failure(GinkgoTB())
		Expect(f.Code).To(Equal(uint(types.CodeIO)))
		Expect(f.Msg).To(Equal("ipam.resolvConf: " + fmt.Sprintf(problem, path)))
	},
		Entry("a named pipe", pipe, notRegular), Entry("a named pipe with a writer", pipeWithWriter, notRegular), Entry("a socket", socket, notRegular),
		Entry("a file that is too large", largeFile, "read %s: the file is too large: want at most 1048576 bytes"))

	It("can be resolvConf if it is /dev/null, and the result contains no dns", func() {
		Expect(runToEnd("ADD", "c1", variant{IPAM: subnet + `, "resolvConf": "/dev/null"`}).Result(GinkgoTB()).DNS).To(BeZero())
	})
})
