package faults

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The tests of CHECK compare the state of host, container and files before and after an ADD. Each line of the
// difference needs a mutationRule. The rule contains either a command that deletes or changes the object of the line,
// after which CHECK must fail, or the reason why CHECK may ignore the object. A line without a rule fails the test.

// A mutationRule says how to delete or change an object that an ADD created. The first rule whose
// pattern matches a line applies to it.
type mutationRule struct {
	pattern string // a regular expression for the start of the line
	command string // a shell command that deletes or changes the object, run in its namespace; may contain $1 … for groups of the pattern
	want    string // a text in the error of CHECK; may contain groups
	exempt  string // the reason why CHECK may ignore the object; command and want are then empty
}

// mutationRules returns the rules for the lines of nstest.Snapshot, tc and the files.
func mutationRules() []mutationRule {
	return slices.Concat(linkRules(), routeRules(), shapingRules(), sysctlRules(), fileRules())
}

func linkRules() []mutationRule {
	return []mutationRule{
		{pattern: `link (bwp\S+) ifname=`, command: "ip link del $1", want: "bwp"},
		{pattern: `link (veth\S+) ifname=`, command: "ip link del $1", want: "eth0"},
		{pattern: `link (\S+) ifname=`, command: "ip link del $1", want: "$1"},
		{pattern: `link lo (flags|operstate|qdisc)=`, command: "ip link set lo down", want: "lo is down"},
		{pattern: `link lo `, exempt: "the kernel sets it when lo is up"},
		{pattern: `route dev=lo `, exempt: "the kernel sets it when lo is up"},
		{pattern: `link (\S+) flags=\[.*\bUP\b`, command: "ip link set $1 down", want: "$1 is down"},
		{pattern: `link (cni0) promiscuity=1`, command: "ip link set $1 promisc off", want: "$1 is not in promiscuous mode"},
		{pattern: `link (\S+) master=(\S+)`, command: "ip link set $1 nomaster", want: "$1 is not a port of bridge $2"},
		{pattern: `link (\S+) linkinfo.info_slave_data.hairpin=true`, command: "bridge link set dev $1 hairpin off", want: "$1 has hairpin false"},
		{pattern: `link (\S+) linkinfo.info_slave_data.isolated=true`, command: "bridge link set dev $1 isolated off", want: "$1 has isolated false"},
		{pattern: `link (cni0) linkinfo.info_data.group_fwd_mask=0x4000`, command: "ip link set $1 type bridge group_fwd_mask 8", want: "$1 does not have group_fwd_mask 16384"},
		{pattern: `link (cni0) linkinfo.info_data.mcast_snooping=0`, command: "ip link set $1 type bridge mcast_snooping 1", want: "$1 does not have mcast_snooping 0"},
		{pattern: `link (\S+) linkinfo.info_data.mode=vepa`, command: "ip link set $1 type macvlan mode private", want: "$1 has mode private"},
		{pattern: `link (\S+) linkinfo.info_data.user=107`, command: "ip link del $1 && ip tuntap add $1 mode tap user 108", want: "$1 has owner 108, want 107"},
		{pattern: `link (tap0) linkinfo.info_data.(user|group)=root`, command: "ip link del $1 && ip tuntap add $1 mode tap user 108", want: "the container has no tap $1"},
		{pattern: `link (eth0) mtu=`, command: "ip link set $1 mtu 1333", want: "mtu of interface $1 is 1333"},
		{pattern: `link (eth0) address=`, command: "ip link set $1 address 02:00:00:00:00:66", want: "mac of interface $1 is 02:00:00:00:00:66"},
		{pattern: `link (eth0) promiscuity=1`, command: "ip link set $1 promisc off", want: "promisc of interface $1 is false"},
		{pattern: `link (eth0) allmulti=1`, command: "ip link set $1 allmulticast off", want: "allmulti of interface $1 is false"},
		{pattern: `link (eth0) txqlen=`, command: "ip link set $1 txqueuelen 99", want: "txQLen of interface $1 is 99"},
		{pattern: `link \S+ addr_info=.*scope=link`, exempt: "the kernel adds link-local addresses"},
		{pattern: `link (\S+) addr_info=.* local=(\S+) .*prefixlen=(\d+)`, command: "ip addr del $2/$3 dev $1", want: "$2/$3"},
		{pattern: `link \S+ (address=|ifindex=|link_index=|link_netnsid=|link=)`, exempt: "the kernel chooses names and numbers"},
		{pattern: `link \S+ ifalias=`, exempt: "CHECK treats a link without an alias as the reference plugin's, and checks it as well"},
		{pattern: `link \S+ mtu=1400`, exempt: "the MTU of the ifb is not configured, but copied from the interface"},
		{pattern: `link \S+ (promiscuity|allmulti|qdisc|txqlen|operstate)=`, exempt: "follows from other properties"},
		{pattern: `link \S+ num_[rt]x_queues=`, exempt: "nothing can change it"},
		{pattern: `link \S+ linkinfo.info_(slave_)?data\.\S*(_id|root_port|designated_port|no)=`, exempt: "the bridge chooses these numbers"},
	}
}

func routeRules() []mutationRule {
	return []mutationRule{
		{pattern: `rule iif=lo priority=(\d+) .*src=(\S+) table=(\d+)`, command: "ip rule del pref $1 from $2 iif lo lookup $3", want: "no rule -4"},
		{pattern: `rule6 iif=lo priority=(\d+) .*src=(\S+) table=(\d+)`, command: "ip -6 rule del pref $1 from $2 iif lo lookup $3", want: "no rule -6"},
		{pattern: `neigh dev=(\S+) dst=(\S+) .*PERMANENT`, command: "ip neigh del $2 dev $1", want: "$1 has no permanent neighbor entry $2"},
		{pattern: `rule .*protocol=\S+ src=(\S+) table=`, command: "ip rule del from $1", want: "the rule from $1 is missing"},
		{pattern: `rule6 .*protocol=\S+ src=(\S+) table=`, command: "ip -6 rule del from $1", want: "the rule from $1 is missing"},
		{pattern: `route dev=\S+ dst=default gateway=(\S+) .*table=(10[01]) `, command: "ip route del default via $1 table $2", want: "via $1"},
		{pattern: `route .*protocol=113`, exempt: "sbr's record of its table, which DEL can also find by the rule"},
		{pattern: `route .*protocol=kernel`, exempt: "the kernel adds it with an address; a later plugin may move it (the reference plugin sbr does)"},
		{pattern: `route dev=(\S+) dst=default gateway=(\S*:\S*) `, command: "ip -6 route del default via $2 dev $1", want: "::/0 via $2"},
		{pattern: `route dev=(\S+) dst=default gateway=(\S+) `, command: "ip route del default via $2 dev $1", want: "0.0.0.0/0 via $2"},
		{pattern: `route dst=(\S+) .*nexthops=\{dev=eth0 .*gateway=(\S+)`, command: "ip -6 route del $1 via $2 dev eth0", want: "$1 via $2"},
		{pattern: `route dev=(\S+) dst=(\S+) .*table=(\d+)`, command: "ip route del $2 table $3 dev $1", want: "$2"},
		{pattern: `route dev=(\S+) dst=(\S+) `, command: "ip route del $2 dev $1", want: "$2"},
	}
}

func shapingRules() []mutationRule {
	return []mutationRule{
		{pattern: `qdisc .*kind=pfifo_fast`, exempt: "the kernel sets it"},
		{pattern: `qdisc dev=(\S+) handle=ffff: kind=ingress`, command: "tc qdisc del dev $1 ingress", want: "$1 has no ingress qdisc"},
		{pattern: `qdisc dev=(\S+) handle=1: kind=tbf .*root=true`, command: "tc qdisc del dev $1 root", want: "$1: want tbf"},
		{pattern: `qdisc dev=(\S+) handle=1: kind=htb .*root=true`, command: "tc qdisc del dev $1 root", want: "$1: want htb"},
		{pattern: `qdisc dev=(\S+) handle=(\S+) kind=bfifo .*parent=(\S+)`, command: "tc qdisc del dev $1 parent $3", want: "$1: want bfifo"},
		{pattern: `class dev=(\S+) classid=(\S+) `, command: "tc class change dev $1 classid $2 htb rate 1mbit", want: "$1 has no class $2"},
		{pattern: `filter (\S+) .*to_dev=.* pref=(\d+) protocol=(\S+)`, command: "tc filter del dev $1 parent ffff: pref $2", want: "$1 has no filter"},
		{pattern: `filter (\S+) .*options.flowid=.* pref=(\d+) protocol=(\S+)`, command: "tc filter del dev $1 parent 1: pref $2", want: "$1 has no"},
		{pattern: `filter .*`, exempt: "it is the head of a filter list"},
		{pattern: `bridge ifname=(\S+) .*vlans?=`, exempt: "VLANs have their own tests (plugins/bridge/vlan_test.go), for kernels with VLAN filtering"},
		{pattern: `bridge ifname=\S+ mac=`, exempt: "these are the addresses of the interface itself"},
	}
}

func sysctlRules() []mutationRule {
	return []mutationRule{
		{pattern: `sysctl (net/ipv4/ip_forward|net/ipv6/conf/all/forwarding|net/ipv4/conf/cni0/proxy_arp) 1`, command: "echo 0 >/proc/sys/$1", want: "$1"},
		{pattern: `sysctl net/ipv[46]/conf/(all|default|lo)/(forwarding|mc_forwarding)`, exempt: "another name of the same sysctl"},
		{pattern: `sysctl net/ipv[46]/conf/\S+/forwarding`, exempt: "another name of the same sysctl"},
		{pattern: `sysctl net/ipv4/conf/all/accept_redirects 0`, exempt: "the kernel sets it with forwarding"},
		{pattern: `sysctl (net/ipv6/conf/(veth|cni|h-)\S+/accept_ra) 0`, command: "echo 1 >/proc/sys/$1", want: "$1"},
		{pattern: `sysctl (net/ipv4/conf/\S+/route_localnet) 1`, command: "echo 0 >/proc/sys/$1", want: "$1"},
		{pattern: `sysctl (net/ipv4/conf/eth0/arp_filter) 1`, command: "echo 0 >/proc/sys/$1", want: "$1"},
		{pattern: `sysctl (net/\S+/eth0/\S+) `, exempt: "a later plugin may change settings of the container's interface"},
		{pattern: `sysctl net/ipv6/conf/\S+/(accept_dad|disable_ipv6|mtu)`, exempt: "matters only until the interface is up"},
		{pattern: `sysctl net/ipv6/conf/\S+/stable_secret`, exempt: "the kernel sets it"},
	}
}

func fileRules() []mutationRule {
	return []mutationRule{
		{pattern: `file \S+ (leases/net1/([0-9a-f.:]+)) `, command: "rm $DIR/$1", want: "$2 is not reserved"},
		{pattern: `file \S+ (tuning/\S+\.json) `, command: "rm $DIR/$1", want: "$1"},
		{pattern: `file \S+ leases/(net1/(lock|last_reserved_ip\.\d+)|\.plumb/\S+)`, exempt: "host-local creates these files again"},
		{pattern: `file d`, exempt: "a directory"},
	}
}

// A mutation deletes or changes one object that an ADD created.
type mutation struct {
	object  string // the line that describes the object
	netns   string // "host", or the name of the container's namespace
	command string
	want    string
}

// mutations calls ADD. It returns a mutation for each object that ADD created, and the lines
// without a rule.
func (checked checkedNetwork) mutations(network *testNetwork, c *cnitest.Container) (all []mutation, withoutRule []string) {
	GinkgoHelper()
	tb := GinkgoTB()
	before := nstest.Snapshot(tb, network.Host, c.NS)
	Expect(network.Add(c)).To(Succeed())
	after := nstest.Snapshot(tb, network.Host, c.NS)
	defaults := newKernelDefaults()
	var lines []string
	for line := range strings.SplitSeq(nstest.Compare(before, after), "\n") {
		if line, added := strings.CutPrefix(line, "+ "); added && !defaults.has(line, after) && !hasDefaultValue(line, after) {
			lines = append(lines, line)
		}
	}
	for _, line := range network.classes() {
		lines = append(lines, "host: "+line)
	}
	for _, line := range network.files() {
		lines = append(lines, "host: "+line)
	}
	for _, line := range lines {
		where, rest, _ := strings.Cut(line, ": ")
		if strings.HasPrefix(rest, "nft ") || strings.Contains(rest, "tables-nft ") { // see nftMutations and iptablesMutations
			continue
		}
		m, found := matchRule(checked.rules(), where, rest)
		switch {
		case !found:
			withoutRule = append(withoutRule, line)
		case m.command != "" && !slices.ContainsFunc(all, func(other mutation) bool { return other.netns == m.netns && other.command == m.command }):
			all = append(all, m)
		}
	}
	all = slices.Concat(all, changeVariants(all), network.nftMutations(), network.iptablesMutations())
	return slices.DeleteFunc(all, checked.mayIgnore), withoutRule
}

// mayIgnore reports whether CHECK may ignore the mutation of a rule. Only portmap needs the chain localnet, which plumb
// creates with the table. The chain drops packets that only a host port at 127.0.0.1 would let in (pkg/tables,
// WithGuard).
func (checked checkedNetwork) mayIgnore(m mutation) bool {
	return strings.HasPrefix(m.object, "nft rule of localnet:") && !strings.Contains(checked.plugins, `"portmap"`)
}

// matchRule returns the mutation of the first rule that matches a line.
func matchRule(rules []mutationRule, where, line string) (mutation, bool) {
	for _, r := range rules {
		re := regexp.MustCompile(`^` + r.pattern)
		if at := re.FindStringSubmatchIndex(line); at != nil {
			expand := func(template string) string {
				template = strings.ReplaceAll(template, "$DIR", "$$DIR")
				return string(re.ExpandString(nil, template, line, at))
			}
			return mutation{object: line, netns: where, command: expand(r.command), want: expand(r.want)}, true
		}
	}
	return mutation{}, false
}

// changeVariants returns variants of some mutations that change the object instead of deleting it.
func changeVariants(all []mutation) []mutation {
	var more []mutation
	for _, m := range all {
		field := strings.Fields(m.command)
		switch {
		case strings.HasPrefix(m.command, "ip addr del "):
			addr, _, _ := strings.Cut(field[3], "/")
			m.command += fmt.Sprintf(" && ip addr add %s/30 dev %s", addr, field[5])
			if strings.Contains(addr, ":") {
				m.command = strings.Replace(m.command, "/30", "/126 nodad", 1)
			}
		case strings.HasPrefix(m.command, "ip -6 route del default via "), strings.HasPrefix(m.command, "ip route del default via "):
			family := strings.TrimSuffix(m.command[:strings.Index(m.command, "del")], " ")
			other := "10.1.0.99"
			if strings.Contains(family, "-6") {
				other = "fd00:1::99"
			}
			m.command += fmt.Sprintf(" && %s add default via %s dev eth0 onlink", family, other)
		case strings.HasPrefix(m.command, "tc qdisc del ") && strings.Contains(m.want, "want tbf"):
			m.command = fmt.Sprintf("tc qdisc change dev %s handle 1: root tbf rate 5mbit burst 100000 latency 25ms", field[4])
		case strings.HasPrefix(m.command, "rm $DIR/leases/"):
			m.command = fmt.Sprintf(`printf 'b\r\neth0' >%s`, field[1])
		case strings.HasPrefix(m.command, "rm $DIR/tuning/"):
			m.command = fmt.Sprintf(`printf '{"mtu"' >%s`, field[1])
		default:
			continue
		}
		m.object += " (changed)"
		more = append(more, m)
	}
	return more
}

// kernelDefaults contains the properties of new interfaces, each with the kind of the interface.
type kernelDefaults map[string]bool

// newKernelDefaults creates an interface of each kind and sets it up, as the plugins do.
func newKernelDefaults() kernelDefaults {
	GinkgoHelper()
	tb := GinkgoTB()
	host, container := nstest.NewHostAndContainer(tb)
	host.Must(tb, "sh", "-ec", "ip link add v0 type veth peer name v1 netns "+container.Path()+`
		ip link add b0 type bridge && ip link set b0 up && ip link set v0 master b0 && ip link set v0 up
		ip link add i0 type ifb && ip link set i0 up
		ip tuntap add t0 mode tap && ip link set t0 up
		ip link add w0 type veth peer name w1 && ip link set w0 up && ip link set w1 up && ip link add m0 link w0 type macvlan mode bridge`)
	container.Must(tb, "ip", "link", "set", "v1", "up")
	all := kernelDefaults{}
	snapshot := nstest.Snapshot(tb, host, container)
	for line := range strings.SplitSeq(snapshot, "\n") {
		if dev, property, ok := linkLine(line); ok && !strings.HasPrefix(property, "ifname=") {
			all[linkKind(line, dev, snapshot)+" "+property] = true
		}
	}
	return all
}

// linkLine parses a line "host: link DEV PROPERTY".
func linkLine(line string) (dev, property string, ok bool) {
	_, rest, _ := strings.Cut(line, ": ")
	if rest, ok = strings.CutPrefix(rest, "link "); !ok {
		return "", "", false
	}
	dev, property, ok = strings.Cut(rest, " ")
	return dev, property, ok
}

// linkKind returns the kind of an interface, such as veth.
func linkKind(line, dev, snapshot string) string {
	where, _, _ := strings.Cut(line, ": ")
	_, rest, _ := strings.Cut(snapshot, where+": link "+dev+" linkinfo.info_kind=")
	kind, _, _ := strings.Cut(rest, "\n")
	return kind
}

// has reports whether a line shows a property with which each interface of its kind starts.
func (b kernelDefaults) has(line, snapshot string) bool {
	dev, property, ok := linkLine(line)
	return ok && !strings.HasPrefix(property, "flags=") && b[linkKind(line, dev, snapshot)+" "+property]
}

// hasDefaultValue reports whether a line shows an interface's sysctl with its default value.
func hasDefaultValue(line, snapshot string) bool {
	where, rest, _ := strings.Cut(line, ": ")
	re := regexp.MustCompile(`^sysctl (net/ipv[46]/(?:conf|neigh))/[^/]+/(.*)$`)
	m := re.FindStringSubmatch(rest)
	if m == nil {
		return false
	}
	other := "default"
	if strings.HasSuffix(m[1], "/neigh") { // only the first namespace contains net/ipv4/neigh/default
		other = "lo"
	}
	return strings.Contains(snapshot+"\n", where+": sysctl "+m[1]+"/"+other+"/"+m[2]+"\n")
}

func (network *testNetwork) classes() []string {
	GinkgoHelper()
	var all []string
	devs := network.Host.Must(GinkgoTB(), "sh", "-c", "tc qdisc show | awk '/qdisc htb/ {print $5}'")
	for dev := range strings.FieldsSeq(devs) {
		for line := range strings.Lines(network.Host.Must(GinkgoTB(), "tc", "class", "show", "dev", dev)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "class" {
				all = append(all, fmt.Sprintf("class dev=%s classid=%s %s", dev, f[2], f[1]))
			}
		}
	}
	return all
}

// nftMutations returns mutations that delete each element and rule of plumb's tables, and mutations that replace each
// element with an element of another owner.
func (network *testNetwork) nftMutations() []mutation {
	GinkgoHelper()
	var all []mutation
	var table, parent string
	inElements, rules := false, false
	handle := regexp.MustCompile(` # handle (\d+)$`)
	for line := range strings.Lines(network.Host.Must(GinkgoTB(), "nft", "-a", "list", "ruleset")) {
		line = strings.TrimSpace(line)
		field := strings.Fields(line)
		switch {
		case len(field) == 0:
		case inElements, strings.HasPrefix(line, "elements = {"):
			line, _, inElements = strings.Cut(strings.TrimPrefix(line, "elements = {"), "}")
			inElements = !inElements
			for e := range strings.SplitSeq(line, ",") {
				if e = strings.TrimSpace(e); e != "" {
					all = append(all, elementMutations(table, parent, e)...)
				}
			}
		case field[0] == "table":
			table = field[1] + " " + field[2]
		case field[0] == "chain", field[0] == "map", field[0] == "set":
			parent, rules = field[1], field[0] == "chain"
		case rules && strings.HasSuffix(table, " plumb") && handle.MatchString(line) && field[0] != "type":
			all = append(all, mutation{
				object: fmt.Sprintf("nft rule of %s: %s", parent, line), netns: "host",
				command: fmt.Sprintf("nft delete rule %s %s handle %s", table, parent, handle.FindStringSubmatch(line)[1]), want: "chain " + parent,
			})
		}
	}
	return all
}

// elementMutations returns the mutations for an element of a set or map.
func elementMutations(table, set, element string) []mutation {
	key, rest, _ := strings.Cut(element, " comment ")
	_, data, _ := strings.Cut(rest, `" : `)
	if data != "" {
		data = " : " + data
	}
	m := mutation{
		object: fmt.Sprintf("nft element of %s: %s", set, element), netns: "host",
		command: fmt.Sprintf("nft 'delete element %s %s { %s }'", table, set, key), want: set,
	}
	replaced := m
	replaced.object, replaced.want = replaced.object+" (another owner)", "net1/b/eth0"
	replaced.command = fmt.Sprintf(`nft 'delete element %[1]s %[2]s { %[3]s }; add element %[1]s %[2]s { %[3]s comment "net1/b/eth0"%[4]s }'`, table, set, key, data)
	return []mutation{m, replaced}
}

// iptablesMutations returns mutations that delete the iptables rules.
func (network *testNetwork) iptablesMutations() []mutation {
	GinkgoHelper()
	var all []mutation
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		table := ""
		for line := range strings.Lines(network.Host.Must(GinkgoTB(), program+"-save")) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = name
			}
			// A rule without a target only marks that plumb has added other rules. CHECK does not require it, because
			// the reference plugin does not create such rules.
			if rule, ok := strings.CutPrefix(line, "-A "); ok && strings.Contains(line, " -j ") {
				chain, _, _ := strings.Cut(rule, " ")
				all = append(all, mutation{object: program + " " + line, netns: "host", command: program + " -t " + table + " -D " + rule, want: chain})
			}
		}
	}
	return all
}

func (network *testNetwork) mutate(c *cnitest.Container, m mutation) error {
	in := network.Host
	if m.netns != "host" {
		in = c.NS
	}
	_, err := in.Exec("sh", "-ec", "DIR="+network.Dir+"\n"+m.command)
	return err
}

type checkedNetwork struct {
	name              string
	plugins           string
	comparesInterface bool // a plugin of the list compares the properties of the container's interface
}

// rules returns the mutationRules for the network.
func (checked checkedNetwork) rules() []mutationRule {
	if checked.comparesInterface {
		return mutationRules()
	}
	return append([]mutationRule{{pattern: `link eth0 (mtu|address|promiscuity|allmulti|txqlen)=`, exempt: "a later plugin may change properties of the container's interface"}}, mutationRules()...)
}

const dualStack = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "192.0.2.0/24", "table": 77}]}`

func checkedNetworks() []checkedNetwork {
	ptp := `{"type": "ptp", ` + dualStack + `}, `
	return []checkedNetwork{
		{name: "bridge", plugins: `{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "portIsolation": true,
			"groupFwdMask": 16384, "mcastSnooping": false, "proxyArp": true,
			"macspoofchk": true, "mac": "02:00:00:00:00:07", ` + dualStack + `}`},
		{name: "bridge and portmap with iptables", plugins: `{"type": "bridge", "bridge": "cni0", "isGateway": true, "promiscMode": true, "ipMasq": true, "ipMasqBackend": "iptables", ` + dualStack + `},
			{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`},
		{name: "route with two next hops", plugins: `{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
			"routes": [{"dst": "2001:db8:77::/48", "gw": "fd00:1::5"}, {"dst": "2001:db8:77::/48", "gw": "fd00:1::6"}]}}`},
		{name: "ptp", plugins: `{"type": "ptp", "ipMasq": true, ` + dualStack + `}`},
		{name: "macvlan", plugins: `{"type": "macvlan", "master": "uplink0", "mode": "vepa", "optimisticDAD": true, ` + dualStack + `}`},
		{name: "tap", plugins: `{"type": "tap", "owner": 107, ` + dualStack + `}`},
		{name: "portmap", plugins: ptp + `{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}`},
		{name: "bandwidth", plugins: ptp + `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`},
		{name: "bandwidth for some subnets", plugins: ptp + `{"type": "bandwidth", "shapedSubnets": ["192.0.2.0/24", "2001:db8::/32"], "capabilities": {"bandwidth": true}}`},
		{name: "tuning", comparesInterface: true, plugins: ptp + `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "mac": "02:00:00:00:00:09", "promisc": true, "allmulti": true,
			"txQLen": 500, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`},
		{name: "sbr", plugins: ptp + `{"type": "sbr"}`},
		{name: "host-access", plugins: `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, ` + dualStack + `}, {"type": "host-access"}`},
		{name: "tc-redirect-tap", plugins: ptp + `{"type": "tc-redirect-tap"}`},
		{name: "route-override", plugins: ptp + `{"type": "route-override", "flushroutes": true, "addroutes": [{"dst": "198.51.100.0/24"}, {"dst": "2001:db8:51::/48"}]}`},
		{name: "loopback", plugins: `{"type": "loopback"}`},
	}
}

// checkDetects runs one mutation on a new attachment. It returns an error unless CHECK detects the mutation with the
// expected text.
func (checked checkedNetwork) checkDetects(m mutation) error {
	GinkgoHelper()
	network := newTestNetwork(checked.plugins)
	c := network.addContainer("a", 8001)
	Expect(network.Check(c)).To(Succeed(), "before the mutation")
	if err := network.mutate(c, m); err != nil {
		return fmt.Errorf("mutation failed: %w", err)
	}
	err := network.Check(c)
	if err == nil {
		return errors.New("CHECK succeeds")
	}
	if !strings.Contains(err.Error(), m.want) {
		return fmt.Errorf("the error of CHECK does not contain %q: %w", m.want, err)
	}
	return nil
}

// mutationStep is the distance between the mutations that the tests run by default. With -short, the distance is three
// times as long.
const mutationStep = 10

var _ = Describe("CHECK", func() {
	for _, checked := range checkedNetworks() {
		It("fails if an object that ADD created is deleted or changed, and names the object: "+checked.name, func() {
			network := newTestNetwork(checked.plugins)
			mutations, withoutRule := checked.mutations(network, newContainer("a", 8001))
			Expect(strings.Join(withoutRule, "\n")).To(BeEmpty(), "lines without a mutationRule")
			Expect(mutations).NotTo(BeEmpty())
			var wrong []string
			for i, m := range mutations {
				if !nstest.AllFaults() && i%(mutationStep*nstest.FullOrShort(1, 3)) != 0 {
					continue
				}
				err := checked.checkDetects(m)
				record("CHECK: "+checked.name, err == nil)
				if err != nil {
					wrong = append(wrong, fmt.Sprintf("%s\n\t%s\n\t%v", m.object, m.command, err))
				}
			}
			Expect(strings.Join(wrong, "\n")).To(BeEmpty())
		})
	}
})

var _ = Describe("CHECK", func() { // the suites of the interface plugins test that CHECK succeeds after other changes
	It("fails with macspoofchk after a change of the MAC address by tuning, because the host drops the frames", func() {
		network := newTestNetwork(`{"type": "bridge", "bridge": "cni0", "isGateway": true, "macspoofchk": true, ` + dualStack + `},
			{"type": "tuning", "dataDir": "DIR/tuning", "mac": "02:00:00:00:00:09"}`)
		a := network.addContainer("a", 8001)
		_, unreachable := a.Exec("ping", "-c", "1", "-W", "1", "10.1.0.1")
		Expect(unreachable).To(HaveOccurred())
		err := network.Check(a)
		record("CHECK: changes by later plugins", err != nil)
		Expect(err).To(MatchError(ContainSubstring("MAC spoof check of net1/a/eth0 is missing")))
	})
})

// A hostCondition is a condition of the host under which ADD fails. STATUS must fail with code 50 and an error that
// contains text.
type hostCondition struct {
	name    string
	plugins string
	setUp   func(*testNetwork)
	text    string
}

// hostConditions returns the conditions to test. The plugins' suites test further conditions, and that STATUS and ADD
// succeed.
func hostConditions() []hostCondition {
	const small = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "failStatusWhenFull": true, "subnet": "10.1.0.0/30"}}`
	none := func(*testNetwork) {}
	exhaust := func(network *testNetwork) { network.addContainer("holder", 7999) }
	readOnly := func(network *testNetwork) {
		mountLimitedTmpfs(network.Dir, "")
		remount(network.Dir, "ro")
	}
	full := func(network *testNetwork) {
		mountLimitedTmpfs(network.Dir, "")
		shortages["inodes"].limit(network.Dir, 0)
	}
	withoutPrograms := func(network *testNetwork) { network.HidePrograms() }
	tuning := `{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}},
		{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}`
	return []hostCondition{
		{"ipvlan's master does not exist", `{"type": "ipvlan", "master": "eth9", ` + dualStack + `}`, none, "eth9"},
		{"vlan's master does not exist", `{"type": "vlan", "master": "eth9", "vlanId": 100, ` + dualStack + `}`, none, "eth9"},
		{"ptp's iptables program does not exist", `{"type": "ptp", "ipMasq": true, "ipMasqBackend": "iptables", ` + dualStack + `}`, withoutPrograms, "iptables"},
		{"bridge's iptables program does not exist", `{"type": "bridge", "ipMasq": true, "ipMasqBackend": "iptables", "isGateway": true, ` + dualStack + `}`, withoutPrograms, "iptables"},
		{"portmap's iptables program does not exist", `{"type": "ptp", ` + dualStack + `}, {"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`, withoutPrograms, "iptables"},
		{"the directory of tuning's state files is read-only", tuning, readOnly, "/state"},
		{"the file system of tuning's state files is full", tuning, full, "/state"},
		{"the pool is exhausted", `{"type": "bridge", ` + small, exhaust, "no IP addresses available in range set: 10.1.0.1-10.1.0.2"},
		{"the directory of reservations is read-only", `{"type": "tap", ` + small, readOnly, "/state"},
		{"the file system of reservations is full", `{"type": "macvlan", "master": "uplink0", ` + small, full, "/state"},
	}
}

var _ = Describe("STATUS fails if ADD would fail", func() {
	for _, c := range hostConditions() {
		It("on a host where "+c.name, func() {
			network := newTestNetwork(c.plugins)
			c.setUp(network)
			status := network.Status()
			err := checkError(status, types.CodeNotAvailable)
			if err == nil && !strings.Contains(status.Error(), c.text) {
				err = fmt.Errorf("the error does not contain %q: %w", c.text, status)
			}
			if network.Add(newContainer("a", 8001)) == nil {
				err = errors.New("ADD succeeds")
			}
			record("STATUS", err == nil)
			Expect(err).NotTo(HaveOccurred())
		})
	}
})
