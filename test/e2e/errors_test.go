package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A wrongValue is a configuration of a plugin with an invalid value, and its error.
type wrongValue struct{ keys, want string }

// wrongValues contains invalid values of each plugin. An error begins with its object, which is the key with its index in the
// spelling of the configuration. A phrase of the reference plugins, which runtimes or people may know, is the cause behind it.
var wrongValues = map[string][]wrongValue{
	"bandwidth": {
		{`"ingressRate": 8000`, "ingressBurst is missing; set it together with ingressRate"},
		{`"egressBurst": 8000`, "egressRate is missing; set it together with egressBurst"},
		{`"ingressRate": 8000, "ingressBurst": 8000, "shapedSubnets": ["10.0.0.0/8", "x"]`, `shapedSubnets[1]: "x" is not a subnet; write it like 10.0.0.0/8 or fd00::/8`},
		{`"ingressRate": 8000, "ingressBurst": 8000, "latency": 0`, "latency 0 must be between 1 and 60000 milliseconds"},
	},
	"bridge": {
		{`"bridge": "x y"`, `bridge "x y" is not an interface name: white space is not allowed`},
		{`"mac": "x"`, `mac: invalid MAC address "x"`},
		{`"vlan": 4095`, "vlan: invalid VLAN ID 4095 (must be between 0 and 4094)"},
		{`"vlanTrunk": [{"id": 1}, {"id": 0}]`, "vlanTrunk[1]: incorrect trunk id parameter: 0 must be between 1 and 4094"},
		{`"ipMasqBackend": "x"`, `ipMasqBackend "x" must be "nftables" or "iptables", or left out`},
		{`"ipMasqExcept": ["x"]`, `ipMasqExcept[0]: invalid CIDR address: "x"; want an address with a prefix length, for example 10.0.0.0/8`},
		{`"mtu": 1`, "mtu 1 must be between 68 and 65535"},
		{`"uplinkInterface": "/"`, `uplinkInterface "/" is not an interface name: '/', ':' and '%' are not allowed`},
	},
	"cluster-local": {
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "datastore": {"type": "cluster-local-etcd"}, "warmPool": -1}`, "warmPool -1 must be between 0 and 256"},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "datastore": {}}`, `datastore.type "" must be the name of an executable in CNI_PATH, such as cluster-local-etcd`},
	},
	"dhcp": {
		{`"ipam": {"type": "dhcp", "timeout": -1}`, "timeout -1 must be between 0 and 200 seconds"},
		{`"ipam": {"type": "dhcp", "request": [{"option": "x"}]}`, `request[0]: option "x" is neither a known name nor a number from 1 to 254`},
	},
	"dummy": {{`"mtu": 1`, "mtu 1 must be between 68 and 65535"}},
	"firewall": {
		{`"ingressPolicy": "x"`, `ingressPolicy: unknown ingress policy: "x": must be "open", "same-bridge" or "isolated"`},
		{`"strict": true, "backend": "x"`, `backend: unknown backend "x": must be `},
		{`"iptablesAdminChainName": "x y"`, `iptablesAdminChainName "x y" cannot be the name of an administrator's chain`},
	},
	"host-access": {{`"hostAddresses": ["x"]`, `hostAddresses[0] "x" must be an IP address of the host, such as 10.0.0.1`}},
	"host-device": {
		{`"device": "x y"`, `device "x y" is not an interface name: white space is not allowed`},
		{`"hwaddr": "x"`, `hwaddr: invalid MAC address "x"`},
		{`"pciBusID": "x"`, `pciBusID "x" is not of the form 0000:00:1f.6`},
		{`"runtimeConfig": {"deviceID": "../x"}`, "runtimeConfig.deviceID: runtime config DeviceID ../x not found or unsupported: it is neither a PCI ID nor the name of an auxiliary device"},
	},
	"host-local": {
		{`"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.2.0.0/24", "rangeStart": "10.3.0.1"}]]}`,
			"ranges[1]: invalid range set 2 (10.2.0.0/24): RangeStart 10.3.0.1 not in network 10.2.0.0/24"},
		{`"ipam": {"type": "host-local", "subnet": "x"}`, `subnet: invalid range set 1 (x): subnet: invalid CIDR address: "x"`},
		{`"ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "routes": [{"dst": "x"}]}`, `routes[0]: dst: invalid CIDR address: "x"`},
		{`"ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "exclude": ["x"]}`, `exclude[0]: "x" is neither an address nor a prefix`},
		{`"ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "resolvConf": "/nope"}`, "resolvConf: open /nope: no such file or directory"},
		{`"ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}, "runtimeConfig": {"ipRanges": [[{"subnet": "x"}]]}`,
			`runtimeConfig.ipRanges[0]: invalid range set 1 (x): subnet: invalid CIDR address: "x"`},
	},
	"ipvlan": {
		{`"mode": "x"`, `mode: unknown ipvlan mode: "x"; want l2, l3 or l3s`},
		{`"flag": "x"`, `flag "x" must be bridge, private or vepa`},
	},
	"loopback": {{`"strict": "x"`, `decode configuration: key "strict": want true or false, got string`}},
	"macvlan":  {{`"mode": "x"`, `mode: unknown macvlan mode: "x"; want bridge, private, vepa or passthru`}},
	"portmap": {
		{`"backend": "x"`, `backend "x" must be "nftables" or "iptables", or left out`},
		{`"onConflict": "x"`, `onConflict "x" must be "replace" or "fail"`},
		{`"runtimeConfig": {"portMappings": [{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}]}`,
			"portMappings[0], host port 0 to container port 80: Invalid host port number: 0; want 1 to 65535"},
	},
	"ptp":            {{`"ipMasqBackend": "x"`, `ipMasqBackend "x" must be "nftables" or "iptables", or left out`}},
	"route-override": {{`"addroutes": [{"dst": "x"}]`, `addroutes[0]: dst: invalid CIDR address: "x"`}},
	"sbr": {
		{`"keepMain": "x"`, `keepMain "x" must be none, subnet or all`},
		{`"gateways": ["10.0.0.1", "x"]`, `gateways[1]: "x" cannot be the address of a gateway`},
	},
	"static": {
		{`"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/16"}, {"address": "x"}]}`,
			"addresses[1]: the 'address' field is expected to be in CIDR notation, got: 'x'"},
		{`"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/16", "gateway": "x"}]}`, "addresses[0]: invalid gateway address: x"},
		{`"ipam": {"type": "static"}, "args": {"cni": {"ips": ["x"]}}`, "args.cni.ips[0]: an entry in the 'ips' field is NOT in CIDR notation, got: 'x'"},
		{`"ipam": {"type": "static"}, "runtimeConfig": {"ips": ["x"]}`, "runtimeConfig.ips[0]: an entry in the 'ips' field is NOT in CIDR notation, got: 'x'"},
	},
	"tap":             {{`"mtu": 1`, "mtu 1 must be between 68 and 65521"}},
	"tc-redirect-tap": {{`"strict": "x"`, `decode configuration: key "strict": want true or false, got string`}},
	"tuning":          {{`"mac": "x"`, `mac: invalid MAC address "x"`}, {`"txQLen": -1`, "txQLen -1 must be between 0 and 2147483647"}},
	"vlan": {
		{`"master": "uplink0", "vlanId": 4095`, "vlanId: invalid VLAN ID 4095 (must be between 0 and 4094)"},
		{`"master": "uplink0", "vlanId": 5, "protocol": "x"`, `protocol "x" must be 802.1Q or 802.1ad`},
		{`"master": "uplink0", "vlanId": 5, "ifName": "x"`, `ifName: only allowed in a chain, with "linkInContainer" and without "master"`},
	},
	"vrf": {{`"vrfname": "x y"`, `vrfname "x y" is not an interface name: white space is not allowed`}},
}

var _ = It("the error of each plugin for an invalid value begins with the key", func() {
	host := nstest.NewHost(GinkgoTB())
	host.Batch(GinkgoTB(), "link add uplink0 type veth peer name peer0", "link set uplink0 up")
	directories, err := filepath.Glob("../../plugins/*/README.md")
	Expect(err).NotTo(HaveOccurred())
	for _, page := range directories {
		plugin := filepath.Base(filepath.Dir(page))
		Expect(wrongValues).To(HaveKey(plugin))
		bin := nstest.Build(GinkgoTB(), plugin)
		for _, wrong := range wrongValues[plugin] {
			call := nstest.Call{Host: host, Path: bin, Config: fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": %q, %s}`, plugin, wrong.keys)}
			reply := nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), call.With("STATUS"))
			var failure struct{ Msg string }
			Expect(json.Unmarshal([]byte(reply.Stdout), &failure)).To(Succeed(), "%s with %s: %s", plugin, wrong.keys, reply.Stdout)
			Expect(strings.Split(failure.Msg, "; ")).To(ContainElement(HavePrefix(strings.Split(wrong.want, "; ")[0])), "%s with %s", plugin, wrong.keys)
			Expect(failure.Msg).To(ContainSubstring(wrong.want), "%s with %s", plugin, wrong.keys)
		}
	}
})
