package types

import "testing"

// TestShortHash compares ShortHash with a test vector of RFC 7693, appendix B.
func TestShortHash(t *testing.T) {
	if got, want := ShortHash("abc"), "508c5e8c327c14e2e1a72ba3"; got != want {
		t.Errorf("want %s, got %s", want, got)
	}
}
