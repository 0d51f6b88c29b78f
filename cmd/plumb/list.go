package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/spf13/cobra"
)

func newList() *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "Show what this host holds, by attachment",
		Long: `list shows the attachments of containers to networks, and what this host holds for each: addresses, interfaces,
nftables elements, and files. It changes nothing.`,
		Args: usage(cobra.NoArgs),
	}
	places, format := addPlaces(c), addOutput(c.Flags())
	var network, container string
	var noTrunc, all bool
	c.Flags().StringVar(&network, "network", "", "show one `network` only")
	c.Flags().StringVar(&container, "container", "", "show containers whose ID begins with this `prefix` only")
	c.Flags().BoolVar(&all, "all", false, "also show containerd's network cni-loopback")
	c.Flags().BoolVar(&noTrunc, "no-trunc", false, "show whole container IDs")
	c.RunE = func(c *cobra.Command, _ []string) error {
		inv, err := readHost(c, places)
		if err != nil {
			return err
		}
		if !all && network == "" {
			inv.WithoutLoopback()
		}
		if err := inv.Select(network, container); err != nil {
			return usageError{err}
		}
		return format.print(c.OutOrStdout(), inv, attachmentTable{inv.Networks, inv.Attachments, inv.Time, noTrunc}.print)
	}
	return c
}

// An attachmentTable prints attachments as a table.
type attachmentTable struct {
	networks    []*node.Network
	attachments []*node.Attachment
	now         time.Time
	noTrunc     bool // whole container IDs
}

func (t attachmentTable) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	networks, suspect := map[string]bool{}, 0
	if len(t.attachments) > 0 {
		printf(w, "NETWORK\tCONTAINER\tIF\tADDRESSES\tON THE HOST\tSINCE\n")
	}
	for _, a := range t.attachments {
		networks[a.Network] = true
		if a.Reason != "" {
			suspect++
		}
		printf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(a.Network, "?"), cmp.Or(t.id(a), "?"), cmp.Or(a.IfName, "?"),
			strings.Join(a.Addresses, " "), a.Summary(), age(t.now, a.Since()))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	line := fmt.Sprintf("%s, %s", count(len(networks), "network"), count(len(t.attachments), "attachment"))
	remembered := 0
	for _, n := range t.networks {
		remembered += len(n.Remembered)
	}
	if remembered > 0 {
		line += ", " + countAddresses(remembered) + " remembered"
	}
	if suspect > 0 {
		line += fmt.Sprintf(", %d suspect: plumb doctor", suspect)
	}
	printf(out, "%s\n", line)
	for _, n := range t.networks {
		for _, p := range n.Pools {
			if p.NearlyFull() {
				printf(out, "network %s: %d of %d addresses are free (%s)\n", n.Name, *p.Free, p.Size, p.Range)
			}
		}
	}
	return nil
}

// id returns the container ID, shortened unless noTrunc is set.
func (t attachmentTable) id(a *node.Attachment) string {
	if t.noTrunc {
		return a.ContainerID
	}
	return life.ShortID(a.ContainerID)
}

// count returns n and the singular or plural of what, for example "1 network" or "2 networks".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// age returns the time from then to now in one or two units, for example 3d4h, or "" if then is zero.
func age(now, then time.Time) string {
	if then.IsZero() {
		return ""
	}
	d := max(now.Sub(then), 0)
	switch days := int(d.Hours()) / 24; {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case days == 0:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	case days < 10:
		return fmt.Sprintf("%dd%dh", days, int(d.Hours())%24)
	default:
		return fmt.Sprintf("%dd", days)
	}
}
