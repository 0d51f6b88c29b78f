package main

import (
	"slices"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// TestUnknownKeys checks that unknown keys are found at every level of the configuration.
func TestUnknownKeys(t *testing.T) {
	const text = `{"ipam": {"a": 1, "ranges": [[{"b": 1}]], "routes": [{}, {"c": 1}]}, "runtimeConfig": {"d": 1, "ipRanges": [[{"e": 1}]]}, "args": {"f": 1, "cni": {"g": 1}}}`
	var got []string
	for _, key := range types.Unknown([]byte(text), &rawConf{}) {
		got = append(got, key.Path)
	}
	want := []string{"args.cni.g", "args.f", "ipam.a", "ipam.ranges[0][0].b", "ipam.routes[1].c", "runtimeConfig.d", "runtimeConfig.ipRanges[0][0].e"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
