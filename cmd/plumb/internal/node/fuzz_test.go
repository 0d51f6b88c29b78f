package node

import (
	"encoding/json"
	"net/netip"
	"testing"
)

// FuzzResult checks that no file of libcni's cache yields an invalid address.
func FuzzResult(f *testing.F) {
	f.Add(`{"kind":"cniCacheV1","containerId":"c","networkName":"n","ifName":"e","config":"e30=","result":{"ips":[{"address":"10.1.2.3/24"}]}}`)
	f.Add(`{"kind":"cniCacheV1","config":"eyJuYW1lIjoibiIsInBsdWdpbnMiOlt7InR5cGUiOiJiIn1dfQ==","result":{"ip4":{}}}`)
	f.Add(`{"result":7}`)
	f.Fuzz(func(t *testing.T, text string) {
		var file cachedFile
		if json.Unmarshal([]byte(text), &file) != nil {
			return
		}
		for _, address := range file.attachment().addresses {
			if _, err := netip.ParseAddr(address); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestNamespaceOfAnOlderCache(t *testing.T) {
	const result = `"result":{"interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/run/netns/one"},{"name":"net1","sandbox":"/run/netns/two"},{"name":"net3","sandbox":"an-id"}]}}`
	for text, want := range map[string]string{
		`{"ifName":"eth0",` + result:                           "/run/netns/one",
		`{"ifName":"net1",` + result:                           "/run/netns/two",
		`{"ifName":"net2",` + result:                           "",
		`{"ifName":"eth0","netns":"/run/netns/zero",` + result: "/run/netns/zero",
	} {
		var file cachedFile
		if err := json.Unmarshal([]byte(text), &file); err != nil {
			t.Fatal(err)
		}
		if got := file.attachment().runtime.NetNS; got != want {
			t.Errorf("%s: want %q, got %q", text, want, got)
		}
	}
}
