package inventory

import (
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/plumb-cni/plumb/pkg/statefile"
)

// A metric is a Prometheus metric of the type gauge.
type metric struct {
	name, help string
	samples    []sample
}

// A sample is one value of a metric.
type sample struct {
	labels []string // the name of a label, its value, the name of the next label, ...
	value  string
}

// add adds a sample unless the metric already contains one with the same labels, because Prometheus rejects duplicates.
func (m *metric) add(value string, labels ...string) {
	if !slices.ContainsFunc(m.samples, func(s sample) bool { return slices.Equal(s.labels, labels) }) {
		m.samples = append(m.samples, sample{labels, value})
	}
}

// WriteMetrics writes the metrics of the inventory in the text format of Prometheus (version 0.0.4).
func (inv *Inventory) WriteMetrics(w io.Writer) error {
	for _, m := range append(inv.addressMetrics(), inv.attachmentMetrics()...) {
		if len(m.samples) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name); err != nil {
			return err
		}
		for _, s := range m.samples {
			if _, err := fmt.Fprintf(w, "%s%s %s\n", m.name, s.labelText(), s.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// labelText returns the labels in braces, with escaped values, or "" without labels.
func (s sample) labelText() string {
	var parts []string
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	for i := 0; i < len(s.labels); i += 2 {
		parts = append(parts, s.labels[i]+`="`+escape.Replace(s.labels[i+1])+`"`)
	}
	if parts == nil {
		return ""
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// attachmentMetrics returns the metrics of attachments, host ports, resources without an owner, and read errors.
func (inv *Inventory) attachmentMetrics() []*metric {
	attachments := &metric{name: "plumb_attachments", help: "Attachments for which the host holds something."}
	suspect := &metric{name: "plumb_attachments_suspect", help: "Attachments that may be leftovers, by reason; plumb list shows them."}
	ports := &metric{name: "plumb_host_ports", help: "Host ports that are forwarded to a container; a port of both IP versions counts twice."}
	orphaned := &metric{name: "plumb_orphaned_objects", help: "Resources whose network, container or interface is not fully known, by kind."}
	for _, n := range inv.Networks {
		count, portCount, byReason, resources := 0, 0, map[string]int{}, map[Kind]int{}
		for _, a := range inv.Attachments {
			if a.Network != n.Name {
				continue
			}
			count++
			byReason[a.Reason]++
			for _, t := range a.Resources {
				if isHostPortMap(t.sub) {
					portCount++
				}
				if a.Incomplete {
					resources[t.Kind]++
				}
			}
		}
		attachments.add(strconv.Itoa(count), "network", n.Name)
		ports.add(strconv.Itoa(portCount), "network", n.Name)
		for _, reason := range reasons {
			suspect.add(strconv.Itoa(byReason[reason]), "network", n.Name, "reason", reason)
		}
		for _, k := range kinds() {
			orphaned.add(strconv.Itoa(resources[k]), "network", n.Name, "kind", string(k))
		}
	}
	readErrors := &metric{name: "plumb_read_errors", help: "Parts of the host that could not be read, so that other numbers may be too low."}
	readErrors.add(strconv.Itoa(len(inv.Errors)))
	return []*metric{attachments, suspect, ports, orphaned, readErrors}
}

// addressMetrics returns the metrics of the range sets in the configurations.
func (inv *Inventory) addressMetrics() []*metric {
	size := &metric{name: "plumb_addresses", help: "Addresses that can be allocated from a range set."}
	reserved := &metric{name: "plumb_addresses_reserved", help: "Addresses of a range set that are reserved for an attachment on this host."}
	free := &metric{name: "plumb_addresses_free", help: "Addresses of a range set that are not reserved; with cluster-local, those that no node owned when this node last asked its datastore."}
	owned := &metric{name: "plumb_addresses_owned", help: "Addresses that this node owns, with cluster-local."}
	inv.eachConfiguredIPAM(func(network, plugin string, ipam json.RawMessage) {
		dataDir, sets, err := pool.ParseIPAM(ipam)
		if err != nil {
			return // plumb doctor reports the error
		}
		state := readClusterLocalState(dataDir, network)
		if plugin == clusterLocal {
			owned.add(strconv.Itoa(state.owned), "network", network)
		}
		for _, set := range sets {
			labels := []string{"network", network, "range", rangeText(set)}
			total, taken := sizeOf(set), inv.reservedIn(network, dataDir, set)
			size.add(total.String(), labels...)
			reserved.add(strconv.Itoa(taken), labels...)
			switch n, known := state.free[set.Ranges[0].First]; {
			case plugin != clusterLocal:
				free.add(total.Sub(total, big.NewInt(int64(taken))).String(), labels...)
			case known:
				free.add(strconv.FormatUint(n, 10), labels...)
			}
		}
	})
	return []*metric{size, reserved, free, owned}
}

const clusterLocal = "cluster-local"

// eachConfiguredIPAM calls f with the key ipam of each plugin whose IPAM plugin is host-local or cluster-local.
func (inv *Inventory) eachConfiguredIPAM(f func(network, plugin string, ipam json.RawMessage)) {
	for _, n := range inv.Networks {
		if n.list == nil {
			continue
		}
		for _, p := range n.list.Plugins {
			if keys := KeysOf(p); keys.IPAMType == "host-local" || keys.IPAMType == clusterLocal {
				f(n.Name, keys.IPAMType, keys.IPAM)
			}
		}
	}
}

// reservedIn returns the number of addresses of the set that are reserved for the network in dataDir.
func (inv *Inventory) reservedIn(network, dataDir string, set pool.Set) int {
	count := 0
	for _, a := range inv.Attachments {
		for _, t := range a.ResourcesOf(Reservation) {
			ip, err := netip.ParseAddr(t.Address)
			if err == nil && a.Network == network && filepath.Dir(t.Where) == filepath.Join(dataDir, network) && set.Contains(ip) {
				count++
			}
		}
	}
	return count
}

// A clusterLocalState contains the numbers from the state file of cluster-local.
type clusterLocalState struct {
	owned int                   // the number of addresses that this node owns
	free  map[netip.Addr]uint64 // the number of addresses that no node owns, by the first address of the range set
}

// readClusterLocalState reads the file in which cluster-local records the addresses of this node, which the page of
// cluster-local describes. All numbers are 0 if the file does not exist or cannot be read.
func readClusterLocalState(dataDir, network string) clusterLocalState {
	s := clusterLocalState{free: map[netip.Addr]uint64{}}
	text, _ := statefile.Read(filepath.Join(dataDir, ".plumb", ".owned", network))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 3 && fields[0] == "free":
			first, addrErr := netip.ParseAddr(fields[1])
			n, err := strconv.ParseUint(fields[2], 10, 64)
			if addrErr == nil && err == nil {
				s.free[first] = n
			}
		case len(fields) == 2:
			if _, err := netip.ParseAddr(fields[0]); err == nil {
				s.owned++
			}
		}
	}
	return s
}

// rangeText returns the ranges of a set as FIRST-LAST, separated by commas.
func rangeText(s pool.Set) string {
	var parts []string
	for _, r := range s.Ranges {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, ",")
}

// sizeOf returns the number of addresses that can be allocated from the set.
func sizeOf(s pool.Set) *big.Int {
	total := new(big.Int)
	for _, r := range s.Usable() {
		first, last := new(big.Int).SetBytes(r.First.AsSlice()), new(big.Int).SetBytes(r.Last.AsSlice())
		total.Add(total, last.Sub(last, first))
		total.Add(total, big.NewInt(1)) // with both first and last
	}
	return total
}
