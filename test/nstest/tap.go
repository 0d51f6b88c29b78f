package nstest

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const tunPath = "/dev/net/tun"

// RequireTaps skips the test if this user may not create taps.
func RequireTaps(tb TB) {
	tb.Helper()
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EACCES) {
		RequireRoot(tb, "because only root may open "+tunPath)
	}
	if err == nil {
		_ = unix.Close(fd)
	}
}

// OpenTun opens /dev/net/tun in the namespace.
func OpenTun(tb TB, n *NS) (fd int) {
	tb.Helper()
	Must(tb, n.Do(func() (err error) {
		fd, err = unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		return err
	}))
	return fd
}

// AttachFile attaches an open device file to the tap with the name.
func AttachFile(fd int, tap string, flags int) error {
	request, err := unix.NewIfreq(tap)
	if err != nil {
		return err
	}
	request.SetUint16(uint16(unix.IFF_TAP | unix.IFF_NO_PI | flags))
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
}

// AttachTap attaches to a tap of the namespace, as a virtual machine monitor does.
func AttachTap(tb TB, n *NS, tap string, flags int) (*os.File, error) {
	tb.Helper()
	fd := OpenTun(tb, n)
	if err := AttachFile(fd, tap, flags); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), tunPath), nil
}

// MustAttachTap attaches to a tap of the namespace until the end of the test.
func MustAttachTap(tb TB, n *NS, tap string, flags int) *os.File {
	tb.Helper()
	file, err := AttachTap(tb, n, tap, flags)
	Must(tb, err)
	tb.Cleanup(func() { _ = file.Close() })
	return file
}

// NewGuest creates a namespace whose eth0 is connected to a tap of the container, as in a virtual machine. It copies the
// frames that one end sends to the other. The lines are ip commands that configure eth0 before frames are copied.
func NewGuest(tb TB, container *NS, tap string, lines ...string) *NS {
	tb.Helper()
	guest := New(tb).Named("guest")
	guest.SkipDAD(tb)
	guest.Batch(tb, append([]string{"tuntap add mode tap eth0", "link set eth0 up"}, lines...)...)
	ends := []*os.File{MustAttachTap(tb, container, tap, 0), MustAttachTap(tb, guest, "eth0", 0)}
	var pumps sync.WaitGroup
	for i := range ends {
		pumps.Go(func() {
			for frame := make([]byte, 1<<16); ; {
				n, err := ends[i].Read(frame)
				if err != nil {
					return // the file was closed, or the tap deleted
				}
				_, _ = ends[1-i].Write(frame[:n])
			}
		})
	}
	tb.Cleanup(func() {
		for _, end := range ends {
			_ = end.Close()
		}
		pumps.Wait()
	})
	return guest
}
