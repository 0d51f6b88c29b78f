package nl

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

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
