package version

import "testing"

func TestOfModule(t *testing.T) {
	for module, want := range map[string]string{
		"v2.1.0":                                     "v2.1.0",
		"v2.1.0-rc.1":                                "v2.1.0-rc.1",
		"v2.1.0+dirty":                               "v2.1.0+dirty",
		"v2.0.0-20261128153000-abcdef012345":         "v2.0.0+20261128153000.abcdef012345", // a repository without tags
		"v2.1.1-0.20261128153000-abcdef012345":       "v2.1.1+20261128153000.abcdef012345",
		"v2.1.1-0.20261128153000-abcdef012345+dirty": "v2.1.1+20261128153000.abcdef012345.dirty",
	} {
		if got := ofModule(module); got != want {
			t.Errorf("%s: want %s, got %s", module, want, got)
		}
	}
}
