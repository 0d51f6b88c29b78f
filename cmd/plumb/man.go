//go:build man

package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan returns the command that writes the manual pages, for scripts/release.sh. Only an executable that is built with the tag
// man has this command, so that plumb does not contain the generator.
func newMan() *cobra.Command {
	return &cobra.Command{Use: "man DIR", Hidden: true, Args: usage(cobra.ExactArgs(1)), RunE: func(c *cobra.Command, args []string) error {
		c.Root().DisableAutoGenTag = true
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return err
		}
		return doc.GenManTree(c.Root(), &doc.GenManHeader{Section: "8", Source: "plumb", Manual: "plumb"}, args[0]) // the date is SOURCE_DATE_EPOCH
	}}
}
