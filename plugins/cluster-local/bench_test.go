package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/test/nstest"
)

// BenchmarkWithoutDatastore runs the executables of host-local and cluster-local alternately, as a runtime does. It
// compares the medians of ADD and DEL on a node that owns a free address, so that no datastore is called:
//
//	go test ./plugins/cluster-local -run '^$' -bench WithoutDatastore -benchtime 500x
func BenchmarkWithoutDatastore(b *testing.B) {
	bin, c, dir := nstest.Build(b, "host-local", "cluster-local"), newCluster(b), b.TempDir()
	plugins, verbs := []string{"host-local", "cluster-local"}, []string{"ADD", "DEL"}
	call := func(plugin, verb string) time.Duration {
		conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": %q, "subnet": "10.1.2.0/24", "dataDir": %q`, plugin, filepath.Join(dir, plugin))
		if plugin == "cluster-local" {
			conf += `, "node": "n1", "datastore": {"type": "fake-datastore", "timeout": 60}`
		}
		start := time.Now()
		nstest.Exec(b, filepath.Join(bin, plugin), nstest.Call{Command: verb, NetNS: "/dev/null", Path: c.dir, Config: conf + "}}"}).OK(b)
		return time.Since(start)
	}
	times := map[string][]time.Duration{}
	for _, p := range plugins {
		call(p, "ADD") // claims the warm pool
		call(p, "DEL")
	}
	c.calls()
	for b.Loop() {
		for _, p := range plugins {
			for _, v := range verbs {
				times[p+v] = append(times[p+v], call(p, v))
			}
		}
	}
	if calls := c.calls(); len(calls) > 0 {
		b.Fatalf("the datastore was called: %v", calls)
	}
	for _, v := range verbs {
		median := func(p string) float64 {
			slices.Sort(times[p+v])
			return float64(times[p+v][len(times[p+v])/2].Microseconds())
		}
		least := func(p string) float64 { return float64(slices.Min(times[p+v]).Microseconds()) }
		b.ReportMetric(median("cluster-local"), v+"-µs")
		b.ReportMetric(median("cluster-local")/median("host-local"), v+"-ratio")
		b.ReportMetric(least("cluster-local")/least("host-local"), v+"-min-ratio")
	}
}
