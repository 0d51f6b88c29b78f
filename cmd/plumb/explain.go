package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/explain"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/spf13/cobra"
)

func newExplain() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain CONTAINER [IFNAME]",
		Short: "Show the path of a container's packets, hop by hop",
		Long: `explain shows the interfaces, addresses, routes, host ports and rules that packets from and to a container meet on
this host, and what CHECK of the plugins finds. CONTAINER is an address of the container,
its ID, or the beginning of the ID. explain sends no packets. It changes nothing itself, but host-local may release reservations
from before a reboot.`,
		Args: usage(cobra.RangeArgs(1, 2)),
	}
	places, format, timeout := addPlaces(c), addOutput(c.Flags()), addTimeout(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		inv, err := readHost(c, places)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			inv.WithoutLoopback()
		}
		attachments, err := findAttachments(inv, args[0], append(args, "")[1])
		if err != nil {
			return usageError{err}
		}
		paths, caller := []*explain.Path{}, plugins.NewCaller(places.PluginPath, *timeout)
		for _, a := range attachments {
			p, err := explain.New(inv, a)
			if err != nil {
				return fmt.Errorf("explain %s: %w", a.ID(), err)
			}
			if a.HasNamespace() {
				damages, err := caller.Check(c.Context(), a)
				for _, d := range damages {
					for _, problem := range d.Texts() {
						p.AddDamage(d.Plugin, problem)
					}
				}
				p.AddNotChecked(err)
			}
			paths = append(paths, p)
		}
		return format.print(c.OutOrStdout(), paths, func(w io.Writer) error { return printPaths(w, paths) })
	}
	c.ValidArgsFunction = func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeAttachment(c.Context(), places, args, prefix), cobra.ShellCompDirectiveNoFileComp
	}
	return c
}

// findAttachments returns the attachments that have the address id, or of the container whose ID begins with id. If ifName is not
// empty, it returns only those with this interface name.
func findAttachments(inv *node.Inventory, id, ifName string) ([]*node.Attachment, error) {
	addr, notAddr := netip.ParseAddr(id)
	if notAddr != nil {
		return inv.Find(id, ifName)
	}
	found := slices.DeleteFunc(slices.Clone(inv.Attachments), func(a *node.Attachment) bool {
		return !slices.Contains(a.Addresses, addr.String()) || ifName != "" && a.IfName != ifName
	})
	if len(found) == 0 {
		return nil, fmt.Errorf("no container of this host has the address %s; plumb list shows all attachments", addr)
	}
	return found, nil
}

// completeAttachment completes the container ID or, if args contains one, the interface name.
func completeAttachment(ctx context.Context, places *places, args []string, prefix string) (names []string) {
	if places.find(ctx) != nil {
		return nil
	}
	inv, err := places.Read()
	if err != nil {
		return nil
	}
	for _, a := range inv.Attachments {
		name := a.ContainerID
		if len(args) == 1 && strings.HasPrefix(name, args[0]) {
			name = a.IfName
		} else if len(args) > 0 {
			continue
		}
		if name != "" && strings.HasPrefix(name, prefix) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// printPaths prints the hops of each path, first outgoing, then incoming, and what CHECK reports.
func printPaths(out io.Writer, paths []*explain.Path) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for i, p := range paths {
		if i > 0 {
			printf(w, "\n")
		}
		printf(w, "network %s, container %s, interface %s\n", p.Network, p.ContainerID, cmp.Or(p.IfName, "?"))
		for _, direction := range []struct {
			name string
			hops []explain.Hop
		}{{"out", p.Out}, {"in", p.In}, {"check", p.Check}} {
			for n, h := range direction.hops {
				if n > 0 {
					direction.name = ""
				}
				printf(w, "%s\t%s\t%s\n", direction.name, h.Where, h.What)
			}
		}
	}
	return w.Flush()
}
