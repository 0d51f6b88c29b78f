package nft

import (
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func TestOwner(t *testing.T) {
	hex64 := strings.Repeat("0123456789abcdef", 4)
	long := strings.Repeat("x", 48)
	for _, tc := range []struct {
		name       string
		attachment types.Attachment
		want       string
	}{
		{"short names", types.Attachment{Network: "net1", ContainerID: "cid1", IfName: "eth0"}, "net1/cid1/eth0"},
		{"the longest names that fit", types.Attachment{Network: long[:47], ContainerID: hex64, IfName: "eth0"}, long[:47] + "/" + hex64 + "/eth0"},
		{"a network name that is too long", types.Attachment{Network: long, ContainerID: "cid1", IfName: "eth0"}, long[:14] + "~413ddc03e64586285291026c6df40a87/cid1/eth0"},
		{"an interface name with a quote", types.Attachment{Network: "n", ContainerID: "c", IfName: `a"b`}, `n/c/a_b~141bf35bcf`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Owner(tc.attachment); got != tc.want {
				t.Errorf("Owner(%v) = %q, want %q", tc.attachment, got, tc.want)
			}
		})
	}
}

// FuzzOwner checks that the comments of two attachments differ, that nft can load each comment,
// and that NetworkPrefix recognizes the comments of the network.
func FuzzOwner(f *testing.F) {
	f.Add("n", "c", "i", "n", "c/i", "i")
	f.Add(strings.Repeat("n", 48), "c", "i", strings.Repeat("n", 49), "c", "i")
	f.Fuzz(func(t *testing.T, n1, c1, i1, n2, c2, i2 string) {
		a := types.Attachment{Network: n1, ContainerID: c1, IfName: i1}
		b := types.Attachment{Network: n2, ContainerID: c2, IfName: i2}
		if a != b && Owner(a) == Owner(b) {
			t.Errorf("Owner(%q) and Owner(%q) are both %q", a, b, Owner(a))
		}
		if text := Owner(a); len(text) > maxComment || strings.Count(text, "/") != 2 || strings.Contains(text, `"`) {
			t.Errorf("%q is not a valid comment", text)
		}
		if got := strings.HasPrefix(Owner(a), NetworkPrefix(n2)); got != (n1 == n2) {
			t.Errorf("%q starts with the prefix of network %q: %v, want %v", Owner(a), n2, got, n1 == n2)
		}
	})
}
