package types

import (
	"encoding/json"
	"testing"
)

func BenchmarkMarshal(b *testing.B) {
	result := goldenResults(b)["dual"]
	for _, v := range []Version{V020, V040, V100, V110} {
		b.Run(v.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := result.Marshal(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseResult(b *testing.B) {
	text, err := goldenResults(b)["dual"].Marshal(Newest)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseResult(Newest, text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecode decodes a configuration, and finds its unknown keys.
func BenchmarkDecode(b *testing.B) {
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "n", "bridge": "br0", "isGateway": true, "untagged": "x",
		"ipam": map[string]any{"type": "host-local"}, "ranges": [][]map[string]string{{{"subnet": "10.0.0.0/8"}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Conf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var conf Conf
			if err := Decode(text, &conf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Unknown", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = Unknown(text, &pluginConf{}, "shared")
		}
	})
}
