package main

import (
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzArgs tests that every accepted CNI_ARGS is valid, and that the parser does not panic.
func FuzzArgs(f *testing.F) {
	for _, seed := range []string{"tap0", "eth0", "tap%d", "0", "4294967295", "-1", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := types.Args{types.ArgTapName: text, types.ArgTapOwner: text}
		conf := &config{name: args[types.ArgTapName]}
		if conf.checkName("eth0") == nil && text != "" && (types.CheckIfName(text) != nil || text == "eth0") {
			t.Errorf("accepted the name %q", text)
		}
		if id, err := parseID(args, types.ArgTapOwner, 7); err == nil && (id == 1<<32-1 || text == "" && id != 7) {
			t.Errorf("%q: accepted ID %d", text, id)
		}
	})
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	nstest.RequireTaps(f)
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: nstest.Conf("tc-redirect-tap", "1.1.0", "", "")})
}
