package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
)

func newSchema() *cobra.Command {
	var list bool
	c := &cobra.Command{
		Use:   "schema PLUGIN|conflist",
		Short: "Print the JSON Schema of a plugin's configuration, or of a configuration list",
		Long: "Print the JSON Schema (draft 2020-12) of a plugin's configuration, or of a network configuration list (conflist).\n" +
			"Editors use it for completion and validation.",
		Example:   "  plumb schema conflist > /etc/cni/conflist.schema.json\n  plumb schema --list",
		ValidArgs: schema.Names(),
		Args: usage(func(c *cobra.Command, args []string) error {
			if list {
				return cobra.NoArgs(c, args)
			}
			return cobra.ExactArgs(1)(c, args)
		}),
		RunE: func(c *cobra.Command, args []string) error {
			if list {
				for _, name := range schema.Names() {
					fmt.Fprintln(c.OutOrStdout(), name)
				}
				return nil
			}
			text, err := schema.Text(args[0])
			if err != nil {
				return usageError{err}
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	c.Flags().BoolVar(&list, "list", false, "list the names of the schemas")
	return c
}
