package main

import (
	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/metrics"
)

func newMetrics() *cobra.Command {
	c := &cobra.Command{
		Use:   "metrics",
		Short: "Print metrics of this host for Prometheus",
		Long: `metrics prints the numbers of addresses, attachments and host ports of this host in the text format of Prometheus. Let a
timer write them to a file for the textfile collector of node_exporter. metrics changes nothing.`,
		Example: "  plumb metrics > /var/lib/node_exporter/plumb.prom.new && mv /var/lib/node_exporter/plumb.prom.new /var/lib/node_exporter/plumb.prom",
		Args:    usage(cobra.NoArgs),
	}
	places := addPlaces(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		inv, err := readHost(c, places)
		if err != nil {
			return err
		}
		return metrics.Write(c.OutOrStdout(), inv)
	}
	return c
}
