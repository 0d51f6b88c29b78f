package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

var _ = Describe("plumb metrics", func() {
	It("prints the numbers of addresses, attachments and host ports", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		b.add(list, newContainer("c1", 8080, 8443))
		b.add(list, newContainer("c2"))
		Expect(os.WriteFile(filepath.Join(b.path("leases/pods"), "10.1.2.77"), []byte("gone\r\neth0"), 0o600)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(b.path("leases/pods"), "10.1.2.78"), nil, 0o600)).To(Succeed())
		out := b.plumb("metrics")
		for _, want := range []string{
			`plumb_addresses{network="pods",range="10.1.2.1-10.1.2.254"} 253`,
			`plumb_addresses{network="pods",range="fd00:1:2::1-fd00:1:2:0:ffff:ffff:ffff:ffff"} 9007199254740992`,
			`plumb_addresses_reserved{network="pods",range="10.1.2.1-10.1.2.254"} 4`,
			`plumb_addresses_reserved{network="pods",range="fd00:1:2::1-fd00:1:2:0:ffff:ffff:ffff:ffff"} 2`,
			`plumb_addresses_free{network="pods",range="10.1.2.1-10.1.2.254"} 249`,
			`plumb_attachments{network="pods"} 4`,
			`plumb_attachments_suspect{network="pods",reason="reservation only"} 1`,
			`plumb_attachments_suspect{network="pods",reason="owner not known"} 1`,
			`plumb_attachments_suspect{network="pods",reason="namespace gone"} 0`,
			`plumb_host_ports{network="pods"} 4`,
			`plumb_orphaned_objects{network="pods",kind="reservation"} 1`,
			`plumb_read_errors 0`,
			`# TYPE plumb_addresses gauge`,
			`# TYPE plumb_build_info gauge`,
		} {
			Expect(strings.Split(out, "\n")).To(ContainElement(want))
		}
		requireExposition(out)
	})

	It("prints cluster-local's numbers for the node and the segment", func() {
		b := newTestbed()
		b.network("10-flat.conflist", `{"cniVersion": "1.1.0", "name": "fl\"at\\", "plugins": [{"type": "macvlan", "ipam": {
			"type": "cluster-local", "dataDir": "DIR/leases", "subnet": "10.1.2.0/24", "exclude": ["10.1.2.0/28", "10.1.2.4/30", "10.1.2.255"],
			"datastore": {"type": "cluster-local-etcd"}}}]}`)
		owned := b.path(`leases/.plumb/.owned/fl"at\`)
		Expect(os.MkdirAll(filepath.Dir(owned), 0o755)).To(Succeed())
		Expect(os.WriteFile(owned, []byte("boot\nscope a flat n \"/\"\nlastRevision 7\ncalls 12 3 1764270000\nfree 10.1.2.1 113\n10.1.2.20 0123456789abcdef\n10.1.2.21 0123456789abcdef\n"), 0o600)).To(Succeed())
		out := b.plumb("metrics")
		Expect(out).To(ContainSubstring(`plumb_addresses{network="fl\"at\\",range="10.1.2.1-10.1.2.254"} 239` + "\n"))
		Expect(out).To(ContainSubstring(`plumb_addresses_free{network="fl\"at\\",range="10.1.2.1-10.1.2.254"} 113` + "\n"))
		Expect(out).To(ContainSubstring(`plumb_addresses_owned{network="fl\"at\\"} 2` + "\n"))
		Expect(out).To(ContainSubstring(`plumb_datastore_calls_total{network="fl\"at\\"} 12` + "\n"))
		Expect(out).To(ContainSubstring(`plumb_datastore_calls_failed_total{network="fl\"at\\"} 3` + "\n"))
		Expect(out).To(ContainSubstring(`plumb_datastore_last_success_timestamp_seconds{network="fl\"at\\"} 1764270000` + "\n"))
		requireExposition(out)
	})

	It("prints each number once if two plugins of a list use the same range", func() {
		b := newTestbed()
		const plugin = `{"type": "macvlan", "ipam": {"type": "cluster-local", "dataDir": "DIR/leases", "subnet": "10.1.2.0/24", "datastore": {"type": "cluster-local-etcd"}}}`
		b.network("10-two.conflist", `{"cniVersion": "1.1.0", "name": "two", "plugins": [`+plugin+`, `+plugin+`]}`)
		out := b.plumb("metrics")
		Expect(strings.Count(out, `plumb_addresses{network="two",range="10.1.2.1-10.1.2.254"} 253`+"\n")).To(Equal(1), out)
		requireExposition(out)
	})

	It("omits ranges of an invalid configuration, and counts what it cannot read", func() {
		b := newTestbed()
		b.network("10-pods.conflist", strings.Replace(chain, "10.1.2.0/24", "10.1.2.3/24", 1))
		Expect(os.WriteFile(filepath.Join(b.path("conf"), "20-x.conflist"), []byte("{"), 0o600)).To(Succeed())
		out := b.plumb("metrics")
		Expect(out).To(And(Not(ContainSubstring("plumb_addresses")), ContainSubstring("plumb_read_errors 1\n")))
		requireExposition(out)
	})
})

// requireExposition fails the test unless the text is in the format of Prometheus, without duplicates, and follows the conventions
// for names and types.
func requireExposition(text string) {
	GinkgoHelper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	Expect(err).NotTo(HaveOccurred())
	for name, family := range families {
		want := dto.MetricType_GAUGE
		if strings.HasSuffix(name, "_total") {
			want = dto.MetricType_COUNTER
		}
		Expect(family.GetType()).To(Equal(want), name)
		seen := map[string]bool{}
		for _, m := range family.GetMetric() {
			labels := fmt.Sprint(m.GetLabel())
			Expect(seen[labels]).To(BeFalse(), "%s%s", name, labels)
			seen[labels] = true
		}
	}
	Expect(promlint.New(strings.NewReader(text)).Lint()).To(BeEmpty())
}
