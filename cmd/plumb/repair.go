package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/repair"
)

func newRepair() *cobra.Command {
	c := &cobra.Command{
		Use:   "repair",
		Short: "Restore what running containers have lost on this host",
		Long: `repair restores what running containers have lost on this host, for example because a program flushed nftables or deleted
the bridge. It calls CHECK of the plugins for each container with a namespace, and REPAIR of each plugin whose CHECK fails. It
changes containers only with --container-side, and takes nothing from another container. The exit status is 1 if something is left.`,
		Example: "  plumb repair --dry-run\n  plumb repair --network pods",
		Args:    usage(cobra.NoArgs),
	}
	places, format, timeout := addPlaces(c), addOutput(c.Flags()), addTimeout(c.Flags())
	var o repair.Options
	var verbose bool
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show whole container IDs, and all problems of a plugin")
	c.Flags().StringVar(&o.Network, "network", "", "repair one `network` only")
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "call CHECK only, and show what would be repaired")
	c.Flags().BoolVar(&o.ContainerSide, "container-side", false, "also restore addresses, routes and settings in the containers")
	c.RunE = func(c *cobra.Command, _ []string) error {
		o.Places, o.Timeout, o.Flags = places.Places, *timeout, placeFlags(c.Flags())
		report, err := repair.Run(afterCurrentCall(c), o)
		if errors.Is(err, node.ErrNoNetwork) {
			return usageError{err}
		}
		if report == nil {
			return err
		}
		if err := format.print(c.OutOrStdout(), report, func(w io.Writer) error { return printRepairs(w, report, o.DryRun, verbose) }); err != nil {
			return err
		}
		for _, problem := range report.Errors {
			printf(c.ErrOrStderr(), "plumb: cannot read %s\n", problem)
		}
		switch {
		case err != nil:
			return fmt.Errorf("ended by a signal before everything was examined: %w", err)
		case len(report.Left)+len(report.Damaged) > 0:
			return errFound
		case len(report.Errors) > 0:
			return errors.New("not everything could be examined")
		}
		return nil
	}
	return c
}

func printRepairs(w io.Writer, r *repair.Report, dryRun, verbose bool) error {
	short, what := withShortIDs, repair.Entry.Summary
	if verbose {
		short, what = func(text string) string { return text }, func(e repair.Entry) string { return e.What }
	}
	lines := func(verb string, entries []repair.Entry) {
		for _, e := range entries {
			object := "host " + e.IfName
			if e.Network != "" {
				object = strings.TrimSuffix(strings.Join([]string{e.Network, e.ContainerID, e.IfName, e.Plugin}, " "), " ")
			}
			printf(w, "%s %s: %s\n", verb, short(object), short(what(e)))
			if e.Error != "" {
				printf(w, "  REPAIR: %s\n", short(e.Error))
			}
			printSolution(w, e.Solution)
		}
	}
	lines("would repair", r.Damaged)
	lines("repaired", r.Repaired)
	lines("left", r.Left)
	lines("skipped", r.Skipped)
	done := fmt.Sprintf("repaired %d", r.Counts.Repaired)
	if dryRun {
		done = fmt.Sprintf("would repair %d", r.Counts.Damaged)
	}
	printf(w, "%s, left %d, healthy %d, skipped %d\n", done, r.Counts.Left, r.Counts.Healthy, r.Counts.Skipped)
	return nil
}
