package nl_test

import (
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/nl"
	"golang.org/x/sys/unix"
)

func TestRefusalForWantOfACapabilityNamesIt(t *testing.T) {
	for _, c := range []struct {
		err  nl.Error
		want bool
	}{
		{nl.Error{Step: "add link veth1", Err: unix.EPERM, Refused: true}, true},
		{nl.Error{Step: "add link veth1", Err: unix.EEXIST, Refused: true}, false},
		{nl.Error{Step: "open netlink socket", Err: unix.EPERM}, false},
	} {
		if got := c.err.Error(); strings.Contains(got, "CAP_NET_ADMIN is needed") != c.want {
			t.Errorf("%+v: %s", c.err, got)
		}
	}
}
