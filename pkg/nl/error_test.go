package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/vishvananda/netlink"
)

// TestInterruptedListIsRepeated checks that a list is requested until it does not change meanwhile, but not for ever.
func TestInterruptedListIsRepeated(t *testing.T) {
	for _, c := range []struct {
		interrupted int // how often
		code        uint
	}{{0, 0}, {30, 0}, {1_000_000, types.CodeTryAgain}} {
		synctest.Test(t, func(t *testing.T) {
			n, begin := 0, time.Now()
			err := untilComplete(func() error {
				if n++; n <= c.interrupted {
					return fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
				}
				return nil
			})
			if err == nil && (c.code != 0 || n != c.interrupted+1) || err != nil && types.AsError(err).Code != c.code {
				t.Errorf("interrupted %d times: got %v after %d requests", c.interrupted, err, n)
			}
			if spent := time.Since(begin); spent > 2*listLimit {
				t.Errorf("interrupted %d times: it took %s", c.interrupted, spent)
			}
		})
	}
}

// TestErrorNamesTheMissingCapability checks that an error names CAP_NET_ADMIN if the kernel refused
// the request with EPERM.
func TestErrorNamesTheMissingCapability(t *testing.T) {
	for _, c := range []struct {
		err  requestError
		want bool
	}{
		{requestError{step: "add link veth1", err: syscall.EPERM, refused: true}, true},
		{requestError{step: "add link veth1", err: syscall.EEXIST, refused: true}, false},
		{requestError{step: "open netlink socket", err: syscall.EPERM}, false},
	} {
		if got := c.err.Error(); strings.Contains(got, "CAP_NET_ADMIN is needed") != c.want {
			t.Errorf("%+v: %s", c.err, got)
		}
	}
}

func TestErrorMatchesErrorsOfTheStandardLibrary(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{
		syscall.ENODEV: fs.ErrNotExist, syscall.ESRCH: fs.ErrNotExist, syscall.ENOENT: fs.ErrNotExist, syscall.EADDRNOTAVAIL: fs.ErrNotExist,
		syscall.EEXIST:     fs.ErrExist,
		syscall.EOPNOTSUPP: errors.ErrUnsupported, syscall.EPROTONOSUPPORT: errors.ErrUnsupported, syscall.EAFNOSUPPORT: errors.ErrUnsupported,
		syscall.EPERM: fs.ErrPermission, syscall.EINVAL: nil,
	} {
		err := withStep("add link veth1", asKernelError(errno))
		for _, target := range []error{errno, fs.ErrNotExist, fs.ErrExist, errors.ErrUnsupported, fs.ErrPermission} {
			if got := errors.Is(err, target); got != (target == want || target == errno) {
				t.Errorf("%v matches %v: %t", err, target, got)
			}
		}
	}
}
