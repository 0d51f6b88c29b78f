package nl

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRefusalForWantOfACapabilityNamesIt: an error names CAP_NET_ADMIN if the kernel refused
// the request with EPERM.
func TestRefusalForWantOfACapabilityNamesIt(t *testing.T) {
	for _, c := range []struct {
		err  requestError
		want bool
	}{
		{requestError{step: "add link veth1", err: unix.EPERM, refused: true}, true},
		{requestError{step: "add link veth1", err: unix.EEXIST, refused: true}, false},
		{requestError{step: "open netlink socket", err: unix.EPERM}, false},
	} {
		if got := c.err.Error(); strings.Contains(got, "CAP_NET_ADMIN is needed") != c.want {
			t.Errorf("%+v: %s", c.err, got)
		}
	}
}
