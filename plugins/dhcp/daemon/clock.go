package daemon

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A bootClock is a clock with one kernel timer (timerfd_create(2)) of CLOCK_BOOTTIME, because Go's timers do not count the
// time in which the machine is suspended.
type bootClock struct {
	timer *os.File
	rings chan struct{}
}

func newBootClock() (*bootClock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a timer: %w", err)
	}
	c := &bootClock{timer: os.NewFile(uintptr(fd), "timerfd"), rings: make(chan struct{}, 1)}
	go func() {
		expirations := make([]byte, 8)
		for {
			if _, err := c.timer.Read(expirations); errors.Is(err, os.ErrClosed) {
				return
			}
			select {
			case c.rings <- struct{}{}:
			default:
			}
		}
	}()
	return c, nil
}

func (c *bootClock) close() { _ = c.timer.Close() }

func (c *bootClock) alarm() <-chan struct{} { return c.rings }

func (c *bootClock) now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

func (c *bootClock) set(at time.Duration) {
	var spec unix.ItimerSpec // the zero ItimerSpec turns the timer off
	if at != never {
		spec.Value = unix.NsecToTimespec(int64(max(at, 1)))
	}
	raw, err := c.timer.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) })
	}
}

func readBootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
