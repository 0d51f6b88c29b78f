//go:build !man

package main

import "github.com/spf13/cobra"

// newMan returns nil, because this executable does not contain the generator of manual pages (man.go).
func newMan() *cobra.Command { return nil }
