package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// wrongHosts contains, for each plugin, the keys of configurations that are valid but that do not fit the host, and a part
// of the error. FILE is a regular file. The empty keys are for plugins of which no key names an object of the host.
var wrongHosts = map[string][][2]string{
	"bandwidth": nil, "loopback": nil, "portmap": nil, "route-override": nil, "sbr": nil, "static": nil, "tc-redirect-tap": nil, "vrf": nil,
	"cluster-local": nil, // its own specs call STATUS with a datastore
	"bridge": {
		{`"bridge": "cni0", "uplinkInterface": "nope0"`, "find link nope0"},
		{`"bridge": "uplink0"`, "is not a bridge"},
		{`"bridge": "cni0", ` + noResolvConf, "resolvConf: "},
		{`"bridge": "cni0", "ipam": {"type": "nope"}`, "failed to find plugin"},
	},
	"dhcp":       {{`"ipam": {"type": "dhcp", "daemonSocketPath": "FILE/none.sock"}`, "FILE/none.sock"}},
	"dummy":      {{`"ipam": {"type": "nope"}`, "failed to find plugin"}},
	"firewall":   {{`"backend": "firewalld", ` + prevResult, "firewalld"}},
	"host-local": {{noResolvConf, "resolvConf: "}, {`"ipam": {"type": "host-local", "dataDir": "FILE", "subnet": "10.1.0.0/16"}`, "FILE"}},
	"host-device": {
		{`"device": "nope0", ` + noResolvConf, "find link nope0"},
		{`"device": "uplink0", ` + noResolvConf, "resolvConf: "},
	},
	"host-access": {{`"hostAddresses": ["192.0.2.1"], ` + prevResult, "192.0.2.1 is not an address of the host"}},
	"ipvlan":      {{`"master": "nope0", "dataDir": "DIR", ` + noResolvConf, "find link nope0"}, {`"master": "uplink0", "dataDir": "FILE", ` + noResolvConf, "FILE"}},
	"macvlan":     {{`"master": "nope0"`, "find link nope0"}, {`"master": "uplink0", ` + noResolvConf, "resolvConf: "}},
	"ptp":         {{noResolvConf, "resolvConf: "}},
	"tap":         {{noResolvConf, "resolvConf: "}},
	"tuning":      {{`"mtu": 1300, "dataDir": "FILE", ` + prevResult, "FILE"}},
	"vlan":        {{`"master": "nope0", "vlanId": 5, ` + noResolvConf, "find link nope0"}},
}

const (
	noResolvConf = `"ipam": {"type": "host-local", "dataDir": "DIR", "subnet": "10.1.0.0/16", "resolvConf": "/nope"}`
	prevResult   = `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "lo", "sandbox": "x"}], "ips": [{"address": "10.1.0.2/16", "interface": 0}]}`
)

var _ = It("STATUS of each plugin fails if ADD rejects the configuration on this host", func() {
	directories, err := filepath.Glob("../../plugins/*/README.md")
	Expect(err).NotTo(HaveOccurred())
	host := nstest.NewHost(GinkgoTB())
	host.Batch(GinkgoTB(), "link add uplink0 type veth peer name peer0", "link set uplink0 up")
	dir := GinkgoTB().TempDir()
	file := filepath.Join(dir, "file")
	Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	var plugins []string
	for _, page := range directories {
		plugins = append(plugins, filepath.Base(filepath.Dir(page)))
	}
	bin := nstest.Build(GinkgoTB(), plugins...)
	for _, plugin := range plugins {
		Expect(wrongHosts).To(HaveKey(plugin))
		for _, wrong := range wrongHosts[plugin] {
			replace := strings.NewReplacer("FILE", file, "DIR", filepath.Join(dir, "data")).Replace
			call := nstest.Call{Host: host, Container: nstest.New(GinkgoTB()), Path: bin, Args: "IgnoreUnknown=1", IfName: "lo",
				Config: replace(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": %q, %s}`, plugin, wrong[0]))}
			if !strings.Contains(wrong[0], "prevResult") {
				call.IfName = "eth0"
			}
			for _, command := range []string{"ADD", "STATUS"} {
				reply := nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), call.With(command))
				Expect(reply.Stdout).To(ContainSubstring(replace(wrong[1])), "%s of %s with %s", command, plugin, wrong[0])
			}
		}
	}
})
