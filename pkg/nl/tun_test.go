package nl_test

import (
	"errors"
	"io/fs"
	"math"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("a tap device", func() {
	var container *nstest.NS
	var tracer *trace.Tracer
	var c *nl.Conn
	var u undo.Stack
	BeforeEach(func() {
		nstest.RequireTaps(GinkgoTB())
		nstest.LeakCheck(GinkgoTB())
		container, tracer, u = nstest.New(GinkgoTB()), &trace.Tracer{}, undo.Stack{}
		c = connect(container, tracer)
	})

	It("is not created if a link has the name, and the undo keeps that link", func() {
		for _, kind := range []string{"tuntap add mode tap tap0", "link add tap0 type bridge"} {
			container.Batch(GinkgoTB(), kind)
			_, err := c.AddTap(&u, nl.Tap{Name: "tap0"})
			Expect(err).To(And(MatchError(fs.ErrExist), MatchError("add link tap0: file exists (device or resource busy)")))
			Expect(u.Rollback()).To(Succeed())
			container.Batch(GinkgoTB(), "link del tap0")
		}
	})

	It("does not remain if the kernel refuses a setting", func() {
		owner := uint32(math.MaxUint32)
		_, err := c.AddTap(&u, nl.Tap{Name: "tap0", Owner: &owner})
		Expect(err).To(MatchError("add link tap0: invalid argument"))
		_, err = c.Link("tap0")
		Expect(err).To(MatchError(fs.ErrNotExist))
	})

	It("can be created by a function that runs in the namespace", func() {
		l, err := c.AddTapFunc(&u, "tap0", func() error {
			_, err := container.Exec("ip", "tuntap", "add", "mode", "tap", "name", "tap0")
			return err
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(l.Tun.Tap).To(BeTrue())
		Expect(u.Rollback()).To(Succeed())
		_, err = c.Link("tap0")
		Expect(err).To(MatchError(fs.ErrNotExist))
	})

	It("is deleted by the undo if the function failed after it had created the device", func() {
		_, err := c.AddTapFunc(&u, "tap0", func() error {
			_, err := container.Exec("ip", "tuntap", "add", "mode", "tap", "name", "tap0")
			return errors.Join(err, unix.EINVAL)
		})
		Expect(err).To(MatchError(unix.EINVAL))
		Expect(u.Rollback()).To(Succeed())
		_, err = c.Link("tap0")
		Expect(err).To(MatchError(fs.ErrNotExist))
	})
})
