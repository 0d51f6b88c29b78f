// Package metrics writes what a node holds in the text format of Prometheus.
package metrics

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/version"
)

// A metric is a Prometheus metric: a counter if its name ends with _total, otherwise a gauge.
type metric struct {
	name, help string
	samples    []string // in the text format, one line each
}

// add adds a sample unless the metric already contains one with the same labels, because Prometheus rejects duplicates.
// labels alternates between the names and the values of the labels.
func (m *metric) add(value any, labels ...string) {
	var parts []string
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	for pair := range slices.Chunk(labels, 2) {
		parts = append(parts, pair[0]+`="`+escape.Replace(pair[1])+`"`)
	}
	sample := strings.TrimSuffix(m.name+"{"+strings.Join(parts, ",")+"}", "{}") + " "
	if !slices.ContainsFunc(m.samples, func(s string) bool { return strings.HasPrefix(s, sample) }) {
		m.samples = append(m.samples, fmt.Sprintln(sample+fmt.Sprint(value)))
	}
}

// Write writes the metrics of the inventory in the text format of Prometheus (version 0.0.4).
func Write(w io.Writer, inv *node.Inventory) error {
	build := &metric{name: "plumb_build_info", help: "The version of plumb; the value is 1."}
	build.add(1, "version", version.String())
	return writeMetrics(w, slices.Concat([]*metric{build}, addressMetrics(inv), attachmentMetrics(inv)))
}

// A Maintenance contains the numbers of plumb maintain. A file in JSON keeps them between runs.
type Maintenance struct {
	Success  time.Time `json:"success"`  // the end of the last run without an error, or zero
	Removed  int       `json:"removed"`  // the removed attachments since the host started
	Repaired int       `json:"repaired"` // the repaired plugins since the host started
	Suspect  int       `json:"-"`        // the attachments that the last run kept
	Left     int       `json:"-"`        // what the last run could not remove or repair
}

// Write writes the numbers in the text format of Prometheus (version 0.0.4).
func (m Maintenance) Write(w io.Writer) error {
	success := &metric{name: "plumb_maintain_last_success_timestamp_seconds", help: "Time at which the last run of plumb maintain without an error ended."}
	removed := &metric{name: "plumb_maintain_removed_total", help: "Attachments that plumb maintain has removed since the host started."}
	repaired := &metric{name: "plumb_maintain_repaired_total", help: "Repairs by plumb maintain since the host started; each plugin of an attachment counts."}
	suspect := &metric{name: "plumb_maintain_suspect", help: "Attachments that may be leftovers, and that the last run of plumb maintain kept."}
	left := &metric{name: "plumb_maintain_left", help: "Attachments that the last run of plumb maintain could not remove, and plugins of attachments that it could not repair."}
	if !m.Success.IsZero() {
		success.add(m.Success.Unix())
	}
	removed.add(m.Removed)
	repaired.add(m.Repaired)
	suspect.add(m.Suspect)
	left.add(m.Left)
	return writeMetrics(w, []*metric{success, removed, repaired, suspect, left})
}

func writeMetrics(w io.Writer, metrics []*metric) error {
	for _, m := range metrics {
		if len(m.samples) == 0 {
			continue
		}
		kind := "gauge"
		if strings.HasSuffix(m.name, "_total") {
			kind = "counter"
		}
		if _, err := fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n%s", m.name, m.help, m.name, kind, strings.Join(m.samples, "")); err != nil {
			return err
		}
	}
	return nil
}

// attachmentMetrics returns the metrics of attachments, host ports, resources without an owner, and read errors.
func attachmentMetrics(inv *node.Inventory) []*metric {
	attachments := &metric{name: "plumb_attachments", help: "Attachments for which the host holds resources."}
	suspect := &metric{name: "plumb_attachments_suspect", help: "Attachments that may be leftovers, by reason; plumb list shows them."}
	ports := &metric{name: "plumb_host_ports", help: "Host ports that are forwarded to a container; a port of both IP versions counts twice."}
	orphaned := &metric{name: "plumb_orphaned_objects", help: "Resources whose network, container or interface is not fully known, by kind."}
	for _, n := range inv.Networks {
		count, portCount, byReason, resources := 0, 0, map[string]int{}, map[node.Kind]int{}
		for _, a := range inv.Attachments {
			if a.Network != n.Name {
				continue
			}
			count++
			byReason[a.Reason]++
			for _, t := range a.Resources {
				if node.IsHostPortMap(t.Set) {
					portCount++
				}
				if a.Incomplete {
					resources[t.Kind]++
				}
			}
		}
		attachments.add(count, "network", n.Name)
		ports.add(portCount, "network", n.Name)
		for _, reason := range node.Reasons() {
			suspect.add(byReason[reason], "network", n.Name, "reason", reason)
		}
		for _, k := range node.Kinds() {
			orphaned.add(resources[k], "network", n.Name, "kind", string(k))
		}
	}
	readErrors := &metric{name: "plumb_read_errors", help: "Parts of the host that could not be read, so that other numbers may be too low."}
	readErrors.add(len(inv.Errors))
	return []*metric{attachments, suspect, ports, orphaned, readErrors}
}

// addressMetrics returns the metrics of the range sets in the configurations.
func addressMetrics(inv *node.Inventory) []*metric {
	size := &metric{name: "plumb_addresses", help: "Addresses that can be allocated from a range set."}
	reserved := &metric{name: "plumb_addresses_reserved", help: "Addresses of a range set that are reserved for an attachment on this host."}
	free := &metric{name: "plumb_addresses_free", help: "Addresses of a range set that are not reserved; with cluster-local, those that no node owned when this node last asked its datastore."}
	owned := &metric{name: "plumb_addresses_owned", help: "Addresses that this node owns, with cluster-local."}
	calls := &metric{name: "plumb_datastore_calls_total", help: "Calls of cluster-local's datastore on this node that can change which addresses the node owns."}
	failed := &metric{name: "plumb_datastore_calls_failed_total", help: "Calls in plumb_datastore_calls_total that failed."}
	success := &metric{name: "plumb_datastore_last_success_timestamp_seconds", help: "Time of the last call in plumb_datastore_calls_total that did not fail."}
	for _, n := range inv.Networks {
		for _, ipam := range n.IPAMs {
			if ipam.ClusterLocal {
				state := ipam.State
				owned.add(len(state.Claims), "network", n.Name)
				calls.add(state.Calls.Total, "network", n.Name)
				failed.add(state.Calls.Failed, "network", n.Name)
				if state.Calls.LastSuccess != 0 {
					success.add(state.Calls.LastSuccess, "network", n.Name)
				}
			}
			for _, p := range ipam.Pools {
				labels := []string{"network", n.Name, "range", p.Range}
				size.add(p.Size, labels...)
				reserved.add(p.Reserved, labels...)
				if p.Free != nil {
					free.add(*p.Free, labels...)
				}
			}
		}
	}
	return []*metric{size, reserved, free, owned, calls, failed, success}
}
