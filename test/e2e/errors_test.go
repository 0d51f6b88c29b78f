package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A wrongValue is a configuration of a plugin with an invalid value, and its error.
type wrongValue struct{ keys, want string }

// Invalid values of keys that several plugins read.
var (
	wrongMACs = []wrongValue{
		{`"mac": "x"`, `mac: invalid MAC address "x"`},
		{`"mac": "01:00:5e:00:00:01"`, `mac: invalid MAC address "01:00:5e:00:00:01": it is a multicast address`},
		{`"mac": "00:00:00:00:00:00"`, `mac: invalid MAC address "00:00:00:00:00:00": an interface needs a unicast address of 6 bytes`},
		{`"runtimeConfig": {"mac": "x"}`, `runtimeConfig.mac: invalid MAC address "x"`},
		{`"args": {"cni": {"mac": "x"}}`, `args.cni.mac: invalid MAC address "x"`},
	}
	wrongMTUs  = []wrongValue{{`"mtu": 1`, "mtu 1 must be between 68 and 65535"}, {`"mtu": 65536`, "mtu 65536 must be between 68 and 65535"}}
	wrongMasqs = []wrongValue{
		{`"ipMasqBackend": "x"`, `ipMasqBackend "x" must be "nftables" or "iptables", or left out`},
		{`"ipMasqExcept": ["x"]`, `ipMasqExcept[0]: invalid CIDR address: "x"; want an address with a prefix length, for example 10.0.0.0/8`},
		{`"ipMasqExcept": ["10.1.2.3/8"]`, "ipMasqExcept[0] 10.1.2.3/8 has bits after the prefix; write 10.0.0.0/8"},
		{`"ipMasqExcept": ["0.0.0.0/0"]`, `ipMasqExcept[0] 0.0.0.0/0 contains all addresses, so that nothing would be masqueraded; set "ipMasq": false instead`},
		{`"ipMasqExcept": ["10.0.0.0/8", "10.0.0.0/8"]`, "ipMasqExcept[1] 10.0.0.0/8 is listed twice"},
	}
	wrongMasters = []wrongValue{
		{`"master": "lo", "vlanId": 5`, "master lo is the loopback interface, which is on no network segment"},
		{`"master": "x y", "vlanId": 5`, `master "x y" is not an interface name: white space is not allowed`},
		{`"master": "nosuch", "vlanId": 5`, `master: find link nosuch: no such device; set the key "master" to an interface on the host (ip link)`},
		{`"master": "uplink0", "vlanId": 5, "mtu": 9000`, "mtu: invalid MTU 9000, must be [0, master MTU(1500)]: the master is uplink0"},
	}
	wrongQueues = []wrongValue{
		{`"numTxQueues": -1`, "numTxQueues -1 must be between 0 and 4096"},
		{`"numRxQueues": 4097`, "numRxQueues 4097 must be between 0 and 4096"},
	}
	wrongTypes = []wrongValue{
		{`"strict": "x"`, "strict: want true or false, got string"},
		{`"dns": {"search": ["a", 1]}`, "dns.search[1]: want a string, got number"},
		{`"strict": true, "strict": true`, "strict: the key occurs twice; delete one of the two"},
		{`"name": ""`, "name: missing network name"},
		{`"name": "a b"`, "name: invalid characters in network name"},
	}
)

// wrongRoutes returns invalid routes of a key. The format contains the keys of the plugin, and %s for the routes.
func wrongRoutes(key, format string) (all []wrongValue) {
	for _, r := range []wrongValue{
		{`"dst": "x"`, `.dst: invalid CIDR address: "x"; want a prefix, which is 0.0.0.0/0 or ::/0 for a default route`},
		{`"dst": "default"`, `.dst: invalid CIDR address: "default"; want a prefix, which is 0.0.0.0/0 or ::/0 for a default route`},
		{`"dst": "::/0", "gw": "x"`, `.gw: invalid IP address: "x"`},
		{`"dst": "::/0", "gw": "10.0.0.1"`, ".gw 10.0.0.1 must be of the same family as dst ::/0"},
		{`"dst": "::/0", "gws": ["x"]`, `.gws[0]: invalid IP address: "x"`},
		{`"dst": "::/0", "gws": ["fd00::1", "::"]`, ".gws[1] must be the address of a gateway, without a zone"},
		{`"dst": "::/0", "gws": ["fd00::1", "10.0.0.1"]`, ".gws[1] 10.0.0.1 must be of the same family as dst ::/0"},
		{`"dst": "::/0", "gws": ["fd00::1", "fd00::1"]`, ".gws[1] repeats fd00::1; list each gateway once"},
		{`"dst": "::/0", "gw": "fd00::2", "gws": ["fd00::1"]`, ".gw must be the first of gws, want fd00::1, got fd00::2; omit gw"},
		{`"dst": "::/0", "mtu": -1`, ".mtu -1 must be between 0 and 4294967295"},
		{`"dst": "::/0", "advmss": -1`, ".advmss -1 must be between 0 and 4294967295"},
		{`"dst": "::/0", "priority": -1`, ".priority -1 must be between 0 and 4294967295"},
		{`"dst": "::/0", "table": -1`, ".table -1 must be between 0 and 4294967295"},
		{`"dst": "::/0", "scope": 256`, ".scope 256 must be between 0 and 255"},
	} {
		all = append(all, wrongValue{fmt.Sprintf(format, `{"dst": "10.9.0.0/16"}, {`+r.keys+"}"), key + "[1]" + r.want})
	}
	return all
}

// wrongRanges returns invalid ranges of a key. The format contains the keys of the plugin, and %s for the keys of the range.
func wrongRanges(key, format string) (all []wrongValue) {
	for _, r := range []wrongValue{
		{`"subnet": "x"`, `.subnet: invalid CIDR address: "x"`},
		{`"subnet": "10.1.2.3/16"`, ".subnet: Network has host bits set. For a subnet mask of length 16 the network address is 10.1.0.0"},
		{`"subnet": "10.1.2.0/31"`, ".subnet: Network 10.1.2.0/31 too small to allocate from"},
		{`"subnet": "239.1.2.0/24"`, ": an interface cannot have a multicast or unspecified address, as in 239.1.2.1-239.1.2.254"},
		{`"subnet": "10.1.2.0/24", "rangeStart": "x"`, `.rangeStart: invalid IP address: "x"`},
		{`"subnet": "10.1.2.0/24", "rangeStart": "10.3.0.1"`, ".rangeStart: RangeStart 10.3.0.1 not in network 10.1.2.0/24"},
		{`"subnet": "10.1.2.0/24", "rangeEnd": "x"`, `.rangeEnd: invalid IP address: "x"`},
		{`"subnet": "10.1.2.0/24", "rangeEnd": "10.3.0.1"`, ".rangeEnd: RangeEnd 10.3.0.1 not in network 10.1.2.0/24"},
		{`"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.5"`, ".rangeStart 10.1.2.9 is above rangeEnd 10.1.2.5"},
		{`"subnet": "10.1.2.0/24", "gateway": "x"`, `.gateway: invalid IP address: "x"`},
		{`"subnet": "10.1.2.0/24", "gateway": "fd00::1"`, ".gateway fd00::1 must be of the same family as subnet 10.1.2.0/24"},
		{`"subnet": "10.1.2.0/24", "gateway": "224.0.0.1"`, ".gateway 224.0.0.1: a router cannot have a multicast or unspecified address"},
	} {
		all = append(all, wrongValue{fmt.Sprintf(format, r.keys), key + r.want})
	}
	return all
}

// wrongPools returns invalid values of the keys that host-local and cluster-local share.
func wrongPools(plugin string) []wrongValue {
	ipam := func(keys string) string { return fmt.Sprintf(`"ipam": {"type": %q, %s}`, plugin, keys) }
	const subnet = `"subnet": "10.1.0.0/16"`
	return slices.Concat(wrongRanges("ipam", ipam("%s")), wrongRanges("ipam.ranges[1][1]", ipam(`"ranges": [[{"subnet": "10.8.0.0/16"}], [{"subnet": "10.9.0.0/16"}, {%s}]]`)),
		wrongRanges("runtimeConfig.ipRanges[0][0]", ipam(subnet)+`, "runtimeConfig": {"ipRanges": [[{%s}]]}`), wrongRoutes("ipam.routes", ipam(subnet+`, "routes": [%s]`)),
		[]wrongValue{
			{`"dns": {}`, "ipam: IPAM config missing 'ipam' key"},
			{ipam(`"dataDir": "/nope"`), "ipam: no IP ranges specified; set ranges"},
			{ipam(`"ranges": [[]]`), "ipam.ranges[0]: empty range set"},
			{ipam(`"ranges": [[{}]]`), "ipam.ranges[0][0].subnet is missing"},
			{ipam(`"ranges": [[{` + subnet + `}, {"subnet": "fd00::/64"}]]`), "ipam.ranges[0][1]: mixed address families"},
			{ipam(`"ranges": [[{` + subnet + `}, {"subnet": "10.1.2.0/24"}]]`), "ipam.ranges[0][1]: subnets 10.1.0.1-10.1.255.254 and 10.1.2.1-10.1.2.254 overlap"},
			{ipam(subnet + `, "ranges": [[{"subnet": "10.1.2.0/24"}]]`), "ipam.ranges[0] overlaps with ipam.subnet: 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254"},
			{ipam(subnet + `, "exclude": ["x"]`), `ipam.exclude[0]: "x" is neither an address nor a prefix`},
			{ipam(subnet + `, "cooldown": -1`), "ipam.cooldown -1 must be between 0 and 31536000 seconds"},
			{ipam(subnet + `, "dataDir": "x"`), `ipam.dataDir "x" is not an absolute path`},
			{ipam(subnet + `, "sticky": "x"`), `ipam.sticky "x" must be pod or mac`},
			{ipam(subnet + `, "stickyFor": 1`), "ipam.stickyFor has no effect without sticky; set sticky, or remove stickyFor"},
			{ipam(subnet + `, "sticky": "pod", "stickyFor": -1`), "ipam.stickyFor -1 must be between 0 and 31536000 seconds"},
			{ipam(subnet+`, "sticky": "mac"`) + `, "runtimeConfig": {"mac": "x"}`, `runtimeConfig.mac: invalid MAC address "x"`},
			{ipam(subnet+`, "sticky": "mac"`) + `, "args": {"cni": {"mac": "x"}}`, `args.cni.mac: invalid MAC address "x"`},
			{ipam(subnet) + `, "runtimeConfig": {"ips": ["x"]}`, `runtimeConfig.ips[0]: invalid IP address: "x"`},
			{ipam(subnet) + `, "args": {"cni": {"ips": ["x"]}}`, `args.cni.ips[0]: invalid IP address: "x"`},
		})
}

// wrongValues contains invalid values of each plugin. An error begins with its object, which is the key with its index in the
// spelling of the configuration. A phrase of the reference plugins, which runtimes or people may know, is the cause behind it.
var wrongValues = map[string][]wrongValue{
	"bandwidth": {
		{`"ingressRate": 8000`, "ingressBurst is missing; set it together with ingressRate"},
		{`"ingressBurst": 8000`, "ingressRate is missing; set it together with ingressBurst"},
		{`"egressRate": 8000`, "egressBurst is missing; set it together with egressRate"},
		{`"egressBurst": 8000`, "egressRate is missing; set it together with egressBurst"},
		{`"ingressRate": 1, "ingressBurst": 8000`, "ingressRate 1 must be between 8 and 2305843009213693951 bit/s"},
		{`"egressRate": 8000, "egressBurst": 99999999999`, "egressBurst 99999999999: burst cannot be more than 4GB"},
		{`"ingressRate": 8000, "ingressBurst": 8000, "shapedSubnets": ["10.0.0.0/8", "x"]`, `shapedSubnets[1]: "x" is not a subnet; write it like 10.0.0.0/8 or fd00::/8`},
		{`"ingressRate": 8000, "ingressBurst": 8000, "unshapedSubnets": ["x"]`, `unshapedSubnets[0]: "x" is not a subnet; write it like 10.0.0.0/8 or fd00::/8`},
		{`"ingressRate": 8000, "ingressBurst": 8000, "shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["::/0"]`,
			`unshapedSubnets ["::/0"] and shapedSubnets ["10.0.0.0/8"] exclude each other; set only one of them`},
		{`"ingressRate": 8000, "ingressBurst": 8000, "latency": 0`, "latency 0 must be between 1 and 60000 milliseconds"},
		{`"runtimeConfig": {"bandwidth": {"ingressRate": 1, "ingressBurst": 1}}`, "runtimeConfig.bandwidth.ingressRate 1 must be between 8 and"},
		{`"runtimeConfig": {"bandwidth": {"ingressRate": 8}}`, "runtimeConfig.bandwidth.ingressBurst is missing; set it together with runtimeConfig.bandwidth.ingressRate"},
		{`"runtimeConfig": {"bandwidth": {"egressBurst": 8}}`, "runtimeConfig.bandwidth.egressRate is missing"},
		{`"runtimeConfig": {"bandwidth": {"egressRate": 8}}`, "runtimeConfig.bandwidth.egressBurst is missing"},
		{`"runtimeConfig": {"bandwidth": {"shapedSubnets": ["x"]}}`, `runtimeConfig.bandwidth.shapedSubnets[0]: "x" is not a subnet`},
		{`"runtimeConfig": {"bandwidth": {"unshapedSubnets": ["x"]}}`, `runtimeConfig.bandwidth.unshapedSubnets[0]: "x" is not a subnet`},
	},
	"bridge": slices.Concat(wrongMACs, wrongMTUs, wrongMasqs, []wrongValue{
		{`"bridge": "x y"`, `bridge "x y" is not an interface name: white space is not allowed`},
		{`"bridge": "name-of-15-byte", "vlan": 5, "isGateway": true`, `bridge: the gateway's interface name "name-of-15-byte.5" is longer than 15 bytes; use a shorter bridge name`},
		{`"vlan": 4095`, "vlan: invalid VLAN ID 4095 (must be between 0 and 4094)"},
		{`"vlanTrunk": [{"id": 1}, {"id": 0}]`, "vlanTrunk[1].id: incorrect trunk id parameter: 0 must be between 1 and 4094"},
		{`"vlanTrunk": [{"minID": 0, "maxID": 5}]`, "vlanTrunk[0].minID: incorrect trunk minID parameter: 0 must be between 1 and 4094"},
		{`"vlanTrunk": [{"minID": 1, "maxID": 4095}]`, "vlanTrunk[0].maxID: incorrect trunk maxID parameter: 4095 must be between 1 and 4094"},
		{`"vlanTrunk": [{"minID": 9, "maxID": 5}]`, "vlanTrunk[0].minID: minID is greater than maxID in trunk parameter: 9 and 5"},
		{`"vlanTrunk": [{"minID": 9}]`, "vlanTrunk[0]: minID and maxID should be configured simultaneously, maxID is missing"},
		{`"vlanTrunk": [{"maxID": 9}]`, "vlanTrunk[0]: minID and maxID should be configured simultaneously, minID is missing"},
		{`"groupFwdMask": 1`, "groupFwdMask 1 must be between 0 and 65535 without the bits 1, 2 and 4"},
		{`"hairpinMode": true, "promiscMode": true`, "hairpinMode: cannot set hairpin mode and promiscuous mode at the same time; remove hairpinMode or promiscMode"},
		{`"proxyArp": true`, `proxyArp needs "isGateway"`},
		{`"disableContainerInterface": true, "ipam": {"type": "x"}`, "disableContainerInterface: cannot use IPAM when disableContainerInterface is set to true; remove one of the two"},
		{`"uplinkInterface": "/"`, `uplinkInterface "/" is not an interface name: '/', ':' and '%' are not allowed`},
		{`"bridge": "br0", "uplinkInterface": "br0"`, `uplinkInterface and bridge are both "br0"`},
	}),
	"cluster-local": slices.Concat(wrongPools("cluster-local"), []wrongValue{
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16"}`, `ipam.datastore is missing; set it, for example to {"type": "cluster-local-etcd"`},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "datastore": []}`, "ipam.datastore: json: cannot unmarshal array"},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "datastore": {}}`, `ipam.datastore.type "" must be the name of an executable in CNI_PATH, such as cluster-local-etcd`},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "datastore": {"timeout": 0}}`, "ipam.datastore.timeout 0 must be between 1 and 60 seconds"},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "warmPool": -1}`, "ipam.warmPool -1 must be between 0 and 256"},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "segment": "a b"}`, `ipam.segment "a b" must consist of letters, digits, '.', '_' and '-'`},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "node": "a b"}`, `ipam.node "a b" must consist of letters, digits, '.', '_' and '-'`},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "node": "` + strings.Repeat("a", 300) + `"}`, `ipam.node "` + strings.Repeat("a", 300) + `" must be at most`},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "onRequestOnly": ["x"]}`, `ipam.onRequestOnly[0]: "x" is neither an address nor a prefix`},
		{`"ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16", "datastore": {"type": "cluster-local"}, "resolvConf": "/nope"}`, "ipam.resolvConf: open /nope: no such file or directory"},
		{`"ipam": {"type": "cluster-local", "subnet": "fd00::/48", "datastore": {"type": "x"}}`, "ipam.subnet: fd00::1-fd00::ffff:ffff:ffff:ffff:ffff must be in one /64"},
	}),
	"dhcp": {
		{`"dns": {}`, "ipam: IPAM config missing 'ipam' key"},
		{`"ipam": {"type": "dhcp", "daemonSocketPath": "x"}`, `ipam.daemonSocketPath "x" is not an absolute path`},
		{`"ipam": {"type": "dhcp", "priority": -1}`, "ipam.priority -1 must be between 0 and 4294967295"},
		{`"ipam": {"type": "dhcp", "timeout": -1}`, "ipam.timeout -1 must be between 0 and 200 seconds"},
		{`"ipam": {"type": "dhcp", "provide": [{"option": "x", "value": "x"}]}`, `ipam.provide[0].option "x" is neither a known name nor a number from 1 to 254`},
		{`"ipam": {"type": "dhcp", "provide": [{"option": "50", "value": "x"}]}`, "ipam.provide[0].option 50 is set by the client itself"},
		{`"ipam": {"type": "dhcp", "provide": [{"option": "12", "value": "x"}, {"option": "12", "value": "x"}]}`, "ipam.provide[1].option 12 is listed twice"},
		{`"ipam": {"type": "dhcp", "provide": [{"option": "12"}]}`, "ipam.provide[0]: neither value nor fromArg is set"},
		{`"ipam": {"type": "dhcp", "provide": [{"option": "12", "value": "` + strings.Repeat("x", 256) + `"}]}`, "ipam.provide[0].value of option 12 must be at most 255 bytes long, got 256"},
		{`"ipam": {"type": "dhcp", "request": [{"option": "x"}]}`, `ipam.request[0].option "x" is neither a known name nor a number from 1 to 254`},
	},
	"dummy": slices.Concat(wrongMACs, wrongMTUs, []wrongValue{
		{`"ipam": {"type": "dhcp"}`, "ipam.type: a dummy interface cannot reach a DHCP server; use another IPAM plugin than dhcp"},
	}),
	"firewall": {
		{`"ingressPolicy": "x"`, `ingressPolicy: unknown ingress policy: "x"; want "open", "same-bridge" or "isolated"`},
		{`"strict": true, "backend": "x"`, `backend "x" must be "iptables", "nftables" or "firewalld", or left out`},
		{`"iptablesAdminChainName": "x y"`, `iptablesAdminChainName "x y" cannot be the name of an administrator's chain`},
		{`"firewalldZone": "\n"`, `firewalldZone "\n" cannot be the name of a zone`},
	},
	"host-access": {
		{`"hostAddresses": ["x"]`, `hostAddresses[0] "x" must be an IP address of the host, such as 10.0.0.1`},
		{`"hostAddresses": ["127.0.0.1"]`, `hostAddresses[0] "127.0.0.1" must not be a loopback, link-local, multicast, broadcast or unspecified address`},
		{`"hostAddresses": ["10.0.0.1", "10.0.0.1"]`, `hostAddresses[1] "10.0.0.1" is listed twice; remove one of them`},
		{`"hostAddresses": []`, "hostAddresses must not be an empty list; remove it, or list addresses of the host"},
		{`"hostAddresses": ["192.0.2.1"]`, "hostAddresses[0] 192.0.2.1 is not an address of the host; list addresses of the host"},
	},
	"host-device": {
		{`"device": "x y"`, `device "x y" is not an interface name: white space is not allowed`},
		{`"device": "lo"`, "device lo is the loopback interface, which cannot be moved"},
		{`"hwaddr": "x"`, `hwaddr: invalid MAC address "x"`},
		{`"kernelpath": "/x"`, `kernelpath "/x" is not below /sys/devices/`},
		{`"pciBusID": "x"`, `pciBusID "x" is not of the form 0000:00:1f.6`},
		{`"runtimeConfig": {"deviceID": "../x"}`, "runtimeConfig.deviceID: runtime config DeviceID ../x not found or unsupported: it is neither a PCI ID nor the name of an auxiliary device"},
	},
	"host-local": slices.Concat(wrongPools("host-local"), []wrongValue{
		{`"ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "resolvConf": "/nope"}`, "ipam.resolvConf: open /nope: no such file or directory"},
	}),
	"ipvlan": slices.Concat(wrongMTUs, wrongMasters, wrongQueues, []wrongValue{
		{`"mode": "x"`, `mode: unknown ipvlan mode: "x"; want l2, l3 or l3s`},
		{`"flag": "x"`, `flag "x" must be bridge, private or vepa`},
		{`"dataDir": "x"`, `dataDir "x" is not an absolute path`},
	}),
	"loopback": wrongTypes,
	"macvlan": slices.Concat(wrongMACs, wrongMTUs, wrongMasters, wrongQueues, []wrongValue{
		{`"mode": "x"`, `mode: unknown macvlan mode: "x"; want bridge, private, vepa or passthru`},
		{`"bcqueuelen": -1`, "bcqueuelen -1 must be between 0 and 4294967295"},
	}),
	"portmap": {
		{`"backend": "x"`, `backend "x" must be "nftables" or "iptables", or left out`},
		{`"backend": "nftables", "externalSetMarkChain": "X"`, "backend: nftables backend was requested but configuration contains iptables-specific options [externalSetMarkChain]"},
		{`"conditionsV4": ["-d", "1"], "conditionsV6": ["ip6", "1"]`,
			"backend: configuration contains both nftables-specific options [conditionsV6] and iptables-specific options [conditionsV4]"},
		{`"onConflict": "x"`, `onConflict "x" must be "replace" or "fail"`},
		{`"markMasqBit": 32`, "markMasqBit 32 must be between 0 and 31"},
		{`"markMasqBit": 1, "externalSetMarkChain": "X"`, "markMasqBit and externalSetMarkChain exclude each other, because the program that created the chain chooses the bit"},
		{`"externalSetMarkChain": "x y"`, `externalSetMarkChain "x y" is not the name of a chain`},
		{`"conditionsV4": ["ip", "a\nb"]`, `conditionsV4: "a\nb" cannot be part of a condition`},
		{`"conditionsV6": ["ip6", "a\nb"]`, `conditionsV6: "a\nb" cannot be part of a condition`},
		{`"runtimeConfig": {"portMappings": [{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}]}`, "runtimeConfig.portMappings[0].hostPort: Invalid host port number: 0; want 1 to 65535"},
		{`"runtimeConfig": {"portMappings": [{"hostPort": 80, "protocol": "tcp"}]}`, "runtimeConfig.portMappings[0].containerPort: Invalid container port number: 0; want 1 to 65535"},
		{`"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "x"}]}`, `runtimeConfig.portMappings[0].protocol "x" must be tcp, udp or sctp`},
		{`"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "x"}]}`, `runtimeConfig.portMappings[0].hostIP "x" is not an IP address`},
		{`"runtimeConfig": {"portMappings": [null]}`, "runtimeConfig.portMappings[0]: want an object, got null"},
	},
	"ptp": slices.Concat(wrongMTUs, wrongMasqs, []wrongValue{
		{`"dns": {}`, `ipam: ptp needs addresses; set "ipam" with a "type" (host-local, static, …), or use bridge for layer 2 without addresses`},
		{`"ipam": {"type": "dhcp"}`, "ipam.type: ptp connects the container only to the host, and not to a DHCP server; use another IPAM plugin than dhcp"},
	}),
	"route-override": slices.Concat(wrongRoutes("addroutes", `"addroutes": [%s]`), wrongRoutes("args.cni.addroutes", `"args": {"cni": {"addroutes": [%s]}}`), []wrongValue{
		{`"delroutes": [{"dst": "x"}]`, `delroutes[0].dst: invalid CIDR address: "x"`},
		{`"delroutes": [{"dst": "::/0", "gw": "x"}]`, `delroutes[0].gw: invalid IP address: "x"`},
		{`"delroutes": [{"dst": "::/0", "table": -1}]`, "delroutes[0].table -1 must be between 0 and 4294967295"},
		{`"args": {"cni": {"delroutes": [{"dst": "x"}]}}`, `args.cni.delroutes[0].dst: invalid CIDR address: "x"`},
	}),
	"sbr": {
		{`"table": 0`, `table 0 must be between 1 and 4294967295; omit "table" to let sbr choose the tables`},
		{`"keepMain": "x"`, `keepMain "x" must be none, subnet or all`},
		{`"addSourceHints": true, "keepMain": "all"`, `addSourceHints and keepMain "all" cannot be combined, because addSourceHints implies keepMain "subnet"`},
		{`"gateways": ["10.0.0.1", "x"]`, `gateways[1]: "x" cannot be the address of a gateway`},
		{`"gateways": ["10.0.0.1", "10.0.0.2"]`, "gateways[1]: gateways list contains multiple IPv4 addresses: 10.0.0.1 and 10.0.0.2"},
		{`"gateways": ["x", "x", "x"]`, "gateways: gateways list cannot contain more than 2 entries, got 3"},
	},
	"static": slices.Concat(wrongRoutes("ipam.routes", `"ipam": {"type": "static", "routes": [%s]}`), []wrongValue{
		{`"dns": {}`, "ipam: IPAM config missing 'ipam' key"},
		{`"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/16"}, {"address": "x"}]}`,
			"ipam.addresses[1].address: the 'address' field is expected to be in CIDR notation, got: 'x'"},
		{`"ipam": {"type": "static", "addresses": [{"address": "224.0.0.1/4"}]}`, "ipam.addresses[0].address: an interface cannot have a multicast or unspecified address, as in 224.0.0.1/4"},
		{`"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/16", "gateway": "x"}]}`, "ipam.addresses[0].gateway: invalid gateway address: x"},
		{`"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/16", "gateway": "::1"}]}`, "ipam.addresses[0].gateway ::1 must be of the same family as address 10.1.0.2/16"},
		{`"ipam": {"type": "static"}, "args": {"cni": {"ips": ["x"]}}`, "args.cni.ips[0]: an entry in the 'ips' field is NOT in CIDR notation, got: 'x'"},
		{`"ipam": {"type": "static"}, "runtimeConfig": {"ips": ["x"]}`, "runtimeConfig.ips[0]: an entry in the 'ips' field is NOT in CIDR notation, got: 'x'"},
	}),
	"tap": slices.Concat(wrongMACs, []wrongValue{
		{`"mtu": 1`, "mtu 1 must be between 68 and 65521"},
		{`"bridge": "x y"`, `bridge "x y" is not an interface name: white space is not allowed`},
		{`"owner": 4294967295`, "owner 4294967295 is not a user ID"},
		{`"group": 4294967295`, "group 4294967295 is not a group ID"},
		{`"selinuxContext": "a\nb"`, `selinuxContext "a\nb" contains a line feed or a NUL`},
		{`"ipam": {"type": "dhcp"}`, "ipam.type: a tap cannot reach a DHCP server during ADD, because no program is attached to it yet; use another IPAM plugin than dhcp"},
	}),
	"tc-redirect-tap": wrongTypes,
	"tuning": slices.Concat(wrongMACs, []wrongValue{
		{`"mtu": 1`, "mtu 1 must be between 68 and 65536"},
		{`"args": {"cni": {"mtu": 1}}`, "args.cni.mtu 1 must be between 68 and 65536"},
		{`"txQLen": -1`, "txQLen -1 must be between 0 and 2147483647"},
		{`"args": {"cni": {"txQLen": -1}}`, "args.cni.txQLen -1 must be between 0 and 2147483647"},
		{`"dataDir": "x"`, `dataDir "x" is not an absolute path`},
		{`"sysctl": {"kernel.x": "1"}`, `sysctl: invalid net sysctl key: "kernel.x"; a key must begin with "net."`},
		{`"sysctl": {"net.x": "1", "net/x": "1"}`, `sysctl: duplicated sysctl keys are not allowed: "net.x" and "net/x" are the same`},
		{`"sysctl": {"net.x": "1", "net.x": "1"}`, "sysctl: duplicated sysctl keys are not allowed"},
		{`"sysctl": {"net.x": null}`, `sysctl: "net.x": want a string, got null`},
		{`"args": {"cni": {"sysctl": {"kernel.x": "1"}}}`, `args.cni.sysctl: invalid net sysctl key: "kernel.x"; a key must begin with "net."`},
	}),
	"vlan": slices.Concat(wrongMACs, wrongMTUs, wrongMasters, []wrongValue{
		{`"vlanId": 5`, `master: "master" field is required; name the interface that carries the VLAN`},
		{`"master": "uplink0"`, "vlanId is missing; set it to the ID of the VLAN, from 0 to 4094"},
		{`"master": "uplink0", "vlanId": 4095`, "vlanId: invalid VLAN ID 4095 (must be between 0 and 4094)"},
		{`"master": "uplink0", "vlanId": 5, "protocol": "x"`, `protocol "x" must be 802.1Q or 802.1ad`},
		{`"master": "uplink0", "vlanId": 5, "ifName": "x"`, `ifName: only allowed in a chain, with "linkInContainer" and without "master"`},
		{`"linkInContainer": true, "vlanId": 5, "ifName": "x y"`, `ifName "x y" is not an interface name: white space is not allowed`},
		{`"linkInContainer": true, "vlanId": 5, "ipam": {"type": "x"}`, `ipam: a VLAN interface in a chain gets no addresses; remove "ipam", or configure a network with "master"`},
	}),
	"vrf": {
		{`"table": 5`, "vrfname: configuration is expected to have a valid vrf name; the key is missing or empty"},
		{`"vrfname": "x y"`, `vrfname "x y" is not an interface name: white space is not allowed`},
		{`"vrfname": "lo"`, `vrfname "lo" is the name of another interface of the container`},
		{`"vrfname": "red", "table": -1`, "table -1 must be between 0 and 4294967295"},
		{`"vrfname": "red", "table": 254`, "table 254 is one of the kernel's tables (default, main, local)"},
	},
}

// freeKeys lists the keys that accept every value of their type.
var freeKeys = map[string]string{
	"ipam.addresses[].version": "since 0.3.0, it has no meaning",
	"ipam.clientID":            "it is any text",
	"ipam.datastore.prefix":    "the datastore checks it",
	"ipam.dns.domain":          "it is any text, like the next three",
	"ipam.dns.nameservers[]":   "",
	"ipam.dns.options[]":       "",
	"ipam.dns.search[]":        "",
	"ipam.provide[].fromArg":   "it is any text, because CNI_ARGS may contain any key",
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

var _ = It("the table of invalid values contains each key that does not accept every value of its type", func() {
	text, err := os.ReadFile("../../docs/reference/interface.golden")
	Expect(err).NotTo(HaveOccurred())
	_, section, _ := strings.Cut(string(text), "\n# Keys of configurations\n")
	section, _, _ = strings.Cut(section, "\n\n")
	var missing []string
	for line := range strings.Lines(section) { // .KEY TYPE …: PLUGIN, PLUGIN
		last := strings.LastIndex(line, ": ")
		words, plugins := strings.Fields(line[:last]), strings.TrimSpace(line[last+2:])
		key := strings.TrimPrefix(words[0], ".")
		if _, free := freeKeys[key]; free || slices.Contains(words, "boolean") || slices.Contains(words, "object") || plugins == "every plugin" || plugins == "conflist" {
			continue
		}
		for plugin := range strings.SplitSeq(plugins, ", ") {
			isOfKey := func(w wrongValue) bool {
				at := regexp.MustCompile(`\[\d+\]`).ReplaceAllString(regexp.MustCompile(`^[\w.\[\]]+`).FindString(w.want), "[]")
				return at == key || at+"[]" == key
			}
			if !slices.ContainsFunc(wrongValues[plugin], isOfKey) {
				missing = append(missing, plugin+" "+key)
			}
		}
	}
	Expect(missing).To(BeEmpty())
})
