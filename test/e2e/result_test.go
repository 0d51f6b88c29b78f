package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// chained maps plugins that follow a plugin of another project to their keys.
var chained = map[string]string{
	"portmap":   `"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}`,
	"bandwidth": `"ingressRate": 1000000, "ingressBurst": 80000, "egressRate": 1000000, "egressBurst": 80000`,
	"tuning":    `"mac": "02:00:00:00:00:aa", "dataDir": "DIR"`,
	"firewall":  `"backend": "nftables"`,
	"sbr":       `"keepMain": "all"`,

	"route-override":  `"requireDelRoutes": true`,
	"tc-redirect-tap": `"args": {}`, // it has no keys
}

// testdata/results contains a result of each project, in the form in which the project's plugin prints
// it.
var _ = Describe("the result of a plugin of another project", func() {
	files, err := filepath.Glob("testdata/results/*.json")
	if err != nil || len(files) == 0 {
		panic(fmt.Sprint("testdata/results: ", err))
	}
	for _, file := range files {
		It("passes unchanged through each chained plugin, for "+strings.TrimSuffix(filepath.Base(file), ".json"), func() {
			text := nstest.ReadFile(GinkgoTB(), file)
			host, container := nstest.NewHostAndContainer(GinkgoTB())
			prev := strings.ReplaceAll(text, "SANDBOX", container.Path())
			connect(host, container, parse(prev))
			version := parse(prev)["cniVersion"].(string)
			for plugin, keys := range chained {
				if plugin == "firewall" && version < "0.4.0" {
					continue // the reference plugin fails as well
				}
				By(plugin)
				conf := fmt.Sprintf(`{"cniVersion": %q, "name": "e2e", "type": %q, %s}`, version, plugin,
					strings.Replace(keys, "DIR", GinkgoTB().TempDir(), 1))
				path := filepath.Join(nstest.Build(GinkgoTB(), plugin), plugin)
				call := nstest.Call{Command: "ADD", Host: host, Container: container, Config: nstest.WithPrevResult(conf, prev)}
				result := nstest.Exec(GinkgoTB(), path, call).OK(GinkgoTB()).Stdout
				want, err := json.Marshal(withOwnChanges(plugin, container.Path(), parse(prev), parse(result)))
				Expect(err).NotTo(HaveOccurred())
				Expect(result).To(MatchJSON(want))
				call.Config = nstest.WithPrevResult(conf, result)
				if version >= "0.4.0" { // CHECK exists since 0.4.0
					nstest.Exec(GinkgoTB(), path, call.With("CHECK")).OK(GinkgoTB())
				}
				Expect(nstest.Exec(GinkgoTB(), path, call.With("DEL")).OK(GinkgoTB()).Stderr).To(BeEmpty())
			}
		})
	}
})

func parse(text string) (tree map[string]any) {
	GinkgoHelper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	Expect(d.Decode(&tree)).To(Succeed())
	return tree
}

// connect creates the container's interface eth0 with the addresses of the result, and the host's routes to them. The host
// end has its name in the result, if it is there.
func connect(host, container *nstest.NS, result map[string]any) {
	hostEnd := "host0"
	interfaces, _ := result["interfaces"].([]any)
	for _, in := range interfaces {
		in, _ := in.(map[string]any) // a result can contain null
		if name, _ := in["name"].(string); strings.HasPrefix(name, "veth") {
			hostEnd = name
		}
	}
	host.Must(GinkgoTB(), "ip", "link", "add", hostEnd, "up", "type", "veth", "peer", "name", "eth0", "netns", container.Path())
	container.Batch(GinkgoTB(), "link set eth0 up", "route add default dev eth0", "route add ::/0 dev eth0")
	for _, ip := range result["ips"].([]any) {
		address := ip.(map[string]any)["address"].(string)
		ip, _, _ := strings.Cut(address, "/")
		container.Batch(GinkgoTB(), "addr replace "+address+" dev eth0 nodad")
		host.Batch(GinkgoTB(), "route replace "+ip+" dev "+hostEnd)
	}
}

// withOwnChanges returns prev with the plugin's own changes in result. tuning sets the MAC address of the
// container's interface, and bandwidth appends the ifb that it created. tc-redirect-tap appends the tap, and the virtual
// machine's interface with its addresses.
func withOwnChanges(plugin, sandbox string, prev, result map[string]any) map[string]any {
	prev = maps.Clone(prev)
	interfaces, _ := prev["interfaces"].([]any)
	for _, in := range interfaces {
		if in, _ := in.(map[string]any); plugin == "tuning" && in["name"] == "eth0" && in["sandbox"] == sandbox {
			in["mac"] = "02:00:00:00:00:aa"
		}
	}
	if after, _ := result["interfaces"].([]any); plugin == "bandwidth" {
		prev["interfaces"] = append(interfaces, after[len(after)-1])
	}
	if plugin == "tc-redirect-tap" {
		for _, key := range []string{"interfaces", "ips"} {
			before, _ := prev[key].([]any)
			after, _ := result[key].([]any)
			prev[key] = append(before, after[len(before):]...)
		}
		ips, vm := prev["ips"].([]any), len(prev["interfaces"].([]any))-1
		Expect(ips[len(ips)-1]).To(HaveKeyWithValue("interface", json.Number(fmt.Sprint(vm))))
	}
	return prev
}
