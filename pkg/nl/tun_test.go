package nl_test

import (
	"errors"
	"io/fs"
	"math"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("a tap device", func() {
	var pod *nstest.NS
	var tracer *trace.Tracer
	var c *nl.Conn
	var u undo.Stack
	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		pod, tracer, u = nstest.New(GinkgoTB()), &trace.Tracer{}, undo.Stack{}
		c = connect(pod, tracer)
	})
	id := func(n uint32) *uint32 { return &n }

	DescribeTable("has the settings that it was made with",
		func(t nl.Tap, want nl.Tun, shown string) {
			t.Name = "tap0"
			l, err := c.AddTap(&u, t)
			Expect(err).NotTo(HaveOccurred())
			Expect(l).To(And(HaveField("Name", "tap0"), HaveField("Kind", "tun"), HaveField("Tun", want), HaveField("Carrier", false)))
			Expect(pod.Must(GinkgoTB(), "ip", "-d", "link", "show", "tap0")).To(ContainSubstring("tun type tap pi off vnet_hdr off" + shown))
			Expect(u.Rollback()).To(Succeed())
			_, err = c.Link("tap0")
			Expect(err).To(MatchError(fs.ErrNotExist))
		},
		Entry("nothing", nl.Tap{}, nl.Tun{Tap: true}, " persist on addrgenmode"),
		Entry("several queues", nl.Tap{MultiQueue: true}, nl.Tun{Tap: true, MultiQueue: true}, " multi_queue"),
		Entry("owner and group", nl.Tap{Owner: id(1234), Group: id(4321)}, nl.Tun{Tap: true, Owner: 1234, Group: 4321}, " persist on user 1234 group 4321"),
		Entry("root", nl.Tap{Owner: id(0), Group: id(0)}, nl.Tun{Tap: true}, " persist on user root group root"),
	)

	It("is not made if a link has the name, which the undo leaves alone", func() {
		for _, kind := range []string{"tuntap add mode tap tap0", "link add tap0 type bridge"} {
			pod.Batch(GinkgoTB(), kind)
			_, err := c.AddTap(&u, nl.Tap{Name: "tap0"})
			Expect(err).To(And(MatchError(fs.ErrExist), MatchError("add link tap0: file exists (device or resource busy)")))
			Expect(u.Rollback()).To(Succeed())
			pod.Batch(GinkgoTB(), "link del tap0")
		}
	})

	It("does not remain if the kernel refuses a setting", func() {
		_, err := c.AddTap(&u, nl.Tap{Name: "tap0", Owner: id(math.MaxUint32)})
		Expect(err).To(MatchError("add link tap0: invalid argument"))
		_, err = c.Link("tap0")
		Expect(err).To(MatchError(fs.ErrNotExist))
	})

	It("is deleted by the undo if the outcome of a step was lost", func() {
		for _, lost := range []string{"open /dev/net/tun", "add link tap0"} {
			tracer.After = func(step string) error {
				if step == lost {
					return errors.New("lost")
				}
				return nil
			}
			_, err := c.AddTap(&u, nl.Tap{Name: "tap0"})
			Expect(err).To(MatchError(ContainSubstring("lost")))
			Expect(u.Rollback()).To(Succeed())
			_, err = c.Link("tap0")
			Expect(err).To(MatchError(fs.ErrNotExist))
		}
	})

	It("needs /dev/net/tun, whose absence the error names", func() {
		tracer.Before = func(step string) error {
			if step == "open /dev/net/tun" {
				return &fs.PathError{Op: "open", Path: nl.TunPath, Err: os.ErrNotExist}
			}
			return nil
		}
		_, err := c.AddTap(&u, nl.Tap{Name: "tap0"})
		Expect(err).To(MatchError("open /dev/net/tun: file does not exist"))
		Expect(nl.CheckTun(c.NS())).To(MatchError("open /dev/net/tun: file does not exist"))
		tracer.Before = nil
		Expect(nl.CheckTun(c.NS())).To(Succeed())
	})

	It("may be made by a function, which runs in the namespace", func() {
		l, err := c.AddTapBy(&u, "tap0", func() error {
			_, err := pod.Exec("ip", "tuntap", "add", "mode", "tap", "name", "tap0")
			return err
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(l.Tun.Tap).To(BeTrue())
		Expect(u.Rollback()).To(Succeed())
		_, err = c.Link("tap0")
		Expect(err).To(MatchError(fs.ErrNotExist))
	})

	It("is deleted by the undo if the function failed after it made the device", func() {
		_, err := c.AddTapBy(&u, "tap0", func() error {
			_, err := pod.Exec("ip", "tuntap", "add", "mode", "tap", "name", "tap0")
			return errors.Join(err, unix.EINVAL)
		})
		Expect(err).To(MatchError(unix.EINVAL))
		Expect(u.Rollback()).To(Succeed())
		_, err = c.Link("tap0")
		Expect(err).To(MatchError(fs.ErrNotExist))
	})
})
