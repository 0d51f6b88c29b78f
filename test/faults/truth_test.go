package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// The truth of CHECK is tried from the difference that an ADD makes to node, container
// and files: whatever is in it is something made, and has a fate below, which removes or
// changes just that, or a reason why CHECK may pass over it. What has neither fails the
// spec, so that nothing made is forgotten.

// A fate is what becomes of a made thing. The first whose pattern matches is a line's.
type fate struct {
	of     string // pattern of the line that shows it, from its first letter on
	do     string // shell command that removes or changes it, in the namespace where it is; $1 …: groups of the pattern
	want   string // in the text of CHECK, with groups
	exempt string // in place of both: why CHECK may pass over it
}

// fates are those of what Snapshot, tc and the files show.
func fates() []fate {
	return slices.Concat(linkFates(), routeFates(), shapingFates(), settingFates(), fileFates())
}

func linkFates() []fate {
	return []fate{
		{of: `link (bwp\S+) ifname=`, do: "ip link del $1", want: "bwp"},
		{of: `link (veth\S+) ifname=`, do: "ip link del $1", want: "eth0"},
		{of: `link (\S+) ifname=`, do: "ip link del $1", want: "$1"},
		{of: `link lo (flags|operstate|qdisc)=`, do: "ip link set lo down", want: "lo is down"},
		{of: `link lo `, exempt: "what comes up with it"},
		{of: `route dev=lo `, exempt: "what comes up with it"},
		{of: `qdisc dev=lo `, exempt: "what comes up with it"},
		{of: `link (\S+) flags=\[.*\bUP\b`, do: "ip link set $1 down", want: "$1 is down"},
		{of: `link (cni0) promiscuity=1`, do: "ip link set $1 promisc off", want: "$1 is not in promiscuous mode"},
		{of: `link (\S+) master=(\S+)`, do: "ip link set $1 nomaster", want: "$1 is no port of bridge $2"},
		{of: `link (\S+) linkinfo.info_slave_data.hairpin=true`, do: "bridge link set dev $1 hairpin off", want: "$1 has hairpin false"},
		{of: `link (\S+) linkinfo.info_slave_data.isolated=true`, do: "bridge link set dev $1 isolated off", want: "$1 has isolated false"},
		{of: `link (\S+) linkinfo.info_data.mode=vepa`, do: "ip link set $1 type macvlan mode private", want: "$1 has mode private"},
		{of: `link (eth0) mtu=`, do: "ip link set $1 mtu 1333", want: "mtu of interface $1 is 1333"},
		{of: `link (eth0) address=`, do: "ip link set $1 address 02:00:00:00:00:66", want: "mac of interface $1 is 02:00:00:00:00:66"},
		{of: `link (eth0) promiscuity=1`, do: "ip link set $1 promisc off", want: "promisc of interface $1 is false"},
		{of: `link (eth0) allmulti=1`, do: "ip link set $1 allmulticast off", want: "allmulti of interface $1 is false"},
		{of: `link (eth0) txqlen=`, do: "ip link set $1 txqueuelen 99", want: "txQLen of interface $1 is 99"},
		{of: `link \S+ addr_info=.*scope=link`, exempt: "link-local addresses are the kernel's"},
		{of: `link (\S+) addr_info=.* local=(\S+) .*prefixlen=(\d+)`, do: "ip addr del $2/$3 dev $1", want: "$2/$3"},
		{of: `link \S+ (address=|ifindex=|link_index=|link_netnsid=|link=)`, exempt: "names and numbers of the kernel's choice"},
		{of: `link \S+ ifalias=`, exempt: "the reference's links have none: without it ours is taken for one of those, and checked all the same"},
		{of: `link \S+ mtu=1400`, exempt: "of the ifb: taken from the device, and not asked for"},
		{of: `link \S+ (promiscuity|allmulti|qdisc|txqlen|operstate)=`, exempt: "follows from what else is there"},
		{of: `link \S+ linkinfo.info_(slave_)?data\.\S*(_id|root_port|designated_port|no)=`, exempt: "the bridge's own numbers"},
	}
}

func routeFates() []fate {
	return []fate{
		{of: `route .*protocol=kernel`, exempt: "the kernel's own, by an address; a later plugin may move it (the reference's sbr does)"},
		{of: `route dev=(\S+) dst=default gateway=(\S*:\S*) `, do: "ip -6 route del default via $2 dev $1", want: "::/0 via $2"},
		{of: `route dev=(\S+) dst=default gateway=(\S+) `, do: "ip route del default via $2 dev $1", want: "0.0.0.0/0 via $2"},
		{of: `route dst=(\S+) .*nexthops=\{dev=eth0 .*gateway=(\S+)`, do: "ip -6 route del $1 via $2 dev eth0", want: "$1 via $2"},
		{of: `route dev=(\S+) dst=(\S+) .*table=(\d+)`, do: "ip route del $2 table $3 dev $1", want: "$2"},
		{of: `route dev=(\S+) dst=(\S+) `, do: "ip route del $2 dev $1", want: "$2"},
	}
}

func shapingFates() []fate {
	return []fate{
		{of: `qdisc .*kind=noqueue`, exempt: "the kernel's own"},
		{of: `qdisc dev=(\S+) handle=ffff: kind=ingress`, do: "tc qdisc del dev $1 ingress", want: "$1 has no ingress qdisc"},
		{of: `qdisc dev=(\S+) handle=1: kind=tbf .*root=true`, do: "tc qdisc del dev $1 root", want: "$1: want tbf"},
		{of: `qdisc dev=(\S+) handle=1: kind=htb .*root=true`, do: "tc qdisc del dev $1 root", want: "$1: want htb"},
		{of: `qdisc dev=(\S+) handle=(\S+) kind=bfifo .*parent=(\S+)`, do: "tc qdisc del dev $1 parent $3", want: "$1: want bfifo"},
		{of: `class dev=(\S+) classid=(\S+) `, do: "tc class change dev $1 classid $2 htb rate 1mbit", want: "$1 has no class $2"},
		{of: `filter (\S+) .*to_dev=.* pref=(\d+) protocol=(\S+)`, do: "tc filter del dev $1 parent ffff: pref $2", want: "$1 has no filter"},
		{of: `filter (\S+) .*options.flowid=.* pref=(\d+) protocol=(\S+)`, do: "tc filter del dev $1 parent 1: pref $2", want: "$1 has no"},
		{of: `filter .*`, exempt: "the head of a list of filters"},
		{of: `bridge ifname=(\S+) .*vlans?=`, exempt: "membership of VLANs is tried where the kernel has them (plugins/bridge/vlan_test.go)"},
		{of: `bridge ifname=\S+ mac=`, exempt: "the interface's own addresses"},
	}
}

func settingFates() []fate {
	return []fate{
		{of: `sysctl (net/ipv4/ip_forward|net/ipv6/conf/all/forwarding) 1`, do: "echo 0 >/proc/sys/$1", want: "$1"},
		{of: `sysctl net/ipv[46]/conf/(all|default|lo)/(forwarding|mc_forwarding)`, exempt: "the same setting under another name"},
		{of: `sysctl net/ipv[46]/conf/\S+/forwarding`, exempt: "the same setting under another name"},
		{of: `sysctl net/ipv4/conf/all/accept_redirects 0`, exempt: "the kernel's answer to forwarding"},
		{of: `sysctl (net/ipv6/conf/(veth|cni)\S+/accept_ra) 0`, do: "echo 1 >/proc/sys/$1", want: "$1"},
		{of: `sysctl (net/ipv4/conf/\S+/route_localnet) 1`, do: "echo 0 >/proc/sys/$1", want: "$1"},
		{of: `sysctl (net/ipv4/conf/eth0/arp_filter) 1`, do: "echo 0 >/proc/sys/$1", want: "$1"},
		{of: `sysctl (net/\S+/eth0/\S+) `, exempt: "the container's, for later plugins to change"},
		{of: `sysctl net/ipv6/conf/\S+/(accept_dad|disable_ipv6|mtu)`, exempt: "of use while the interface is made; what comes of it is compared"},
		{of: `sysctl net/ipv6/conf/\S+/stable_secret`, exempt: "the kernel's own"},
	}
}

func fileFates() []fate {
	return []fate{
		{of: `file \S+ (leases/lab/([0-9a-f.:]+)) `, do: "rm $DIR/$1", want: "$2 is not reserved"},
		{of: `file \S+ (tuning/\S+\.json) `, do: "rm $DIR/$1", want: "$1"},
		{of: `file \S+ leases/(lab/(lock|last_reserved_ip\.\d+)|\.plumb/\S+)`, exempt: "says where to look first; made anew"},
		{of: `file d`, exempt: "a folder of files"},
	}
}

// A made thing, and what is done to it.
type made struct {
	what  string
	where string // the namespace: "node" or the container's name
	do    string
	want  string
}

// things lists what an ADD made, and the lines that have no fate.
func (n witness) things(l *lab, g *guest) (all []made, forgotten []string) {
	GinkgoHelper()
	tb := GinkgoTB()
	before := nstest.Snapshot(tb, l.Node, g.NS)
	Expect(l.add(g)).To(Succeed())
	after := nstest.Snapshot(tb, l.Node, g.NS)
	bare := bareLinks()
	var lines []string
	for line := range strings.SplitSeq(nstest.Compare(before, after), "\n") {
		if line, came := strings.CutPrefix(line, "+ "); came && !bare.has(line, after) && !asDefault(line, after) {
			lines = append(lines, line)
		}
	}
	for _, line := range l.classes() {
		lines = append(lines, "node: "+line)
	}
	for _, line := range l.files() {
		lines = append(lines, "node: "+line)
	}
	for _, line := range lines {
		where, rest, _ := strings.Cut(line, ": ")
		if strings.HasPrefix(rest, "nft ") || strings.Contains(rest, "tables-nft ") { // below
			continue
		}
		m, found := meet(n.fates(), where, rest)
		switch {
		case !found:
			forgotten = append(forgotten, line)
		case m.do != "" && !slices.ContainsFunc(all, func(o made) bool { return o.where == m.where && o.do == m.do }):
			all = append(all, m)
		}
	}
	return append(append(all, changes(all)...), append(l.nftThings(), l.xtablesThings()...)...), forgotten
}

// meet finds the fate of a line.
func meet(fates []fate, where, line string) (made, bool) {
	for _, f := range fates {
		re := regexp.MustCompile(`^` + f.of)
		if at := re.FindStringSubmatchIndex(line); at != nil {
			expand := func(template string) string {
				template = strings.ReplaceAll(template, "$DIR", "$$DIR")
				return string(re.ExpandString(nil, template, line, at))
			}
			return made{what: line, where: where, do: expand(f.do), want: expand(f.want)}, true
		}
	}
	return made{}, false
}

// changes are for some of what can be removed the ways to change it.
func changes(all []made) []made {
	var more []made
	for _, m := range all {
		field := strings.Fields(m.do)
		switch {
		case strings.HasPrefix(m.do, "ip addr del "):
			addr, _, _ := strings.Cut(field[3], "/")
			m.do += fmt.Sprintf(" && ip addr add %s/30 dev %s", addr, field[5])
			if strings.Contains(addr, ":") {
				m.do = strings.Replace(m.do, "/30", "/126 nodad", 1)
			}
		case strings.HasPrefix(m.do, "ip -6 route del default via "), strings.HasPrefix(m.do, "ip route del default via "):
			family := strings.TrimSuffix(m.do[:strings.Index(m.do, "del")], " ")
			other := "10.1.0.99"
			if strings.Contains(family, "-6") {
				other = "fd00:1::99"
			}
			m.do += fmt.Sprintf(" && %s add default via %s dev eth0 onlink", family, other)
		case strings.HasPrefix(m.do, "tc qdisc del ") && strings.Contains(m.want, "want tbf"):
			m.do = fmt.Sprintf("tc qdisc change dev %s handle 1: root tbf rate 5mbit burst 100000 latency 25ms", field[4])
		case strings.HasPrefix(m.do, "rm $DIR/leases/"):
			m.do = fmt.Sprintf(`printf 'b\r\neth0' >%s`, field[1])
		case strings.HasPrefix(m.do, "rm $DIR/tuning/"):
			m.do = fmt.Sprintf(`printf '{"mtu"' >%s`, field[1])
		default:
			continue
		}
		m.what += " (changed)"
		more = append(more, m)
	}
	return more
}

// bareLines are the properties of interfaces as the kernel makes them, by kind.
type bareLines map[string]bool

// bareLinks makes one of each kind, plugged and up as those of plugins are.
func bareLinks() bareLines {
	GinkgoHelper()
	tb := GinkgoTB()
	node, pod := nstest.NewNodeAndPod(tb)
	node.Must(tb, "sh", "-ec", "ip link add v0 type veth peer name v1 netns "+pod.Path()+`
		ip link add b0 type bridge && ip link set b0 up && ip link set v0 master b0 && ip link set v0 up
		ip link add i0 type ifb && ip link set i0 up
		ip link add w0 type veth peer name w1 && ip link set w0 up && ip link set w1 up && ip link add m0 link w0 type macvlan mode bridge`)
	pod.Must(tb, "ip", "link", "set", "v1", "up")
	all := bareLines{}
	snapshot := nstest.Snapshot(tb, node, pod)
	for line := range strings.SplitSeq(snapshot, "\n") {
		if dev, property, ok := linkLine(line); ok && !strings.HasPrefix(property, "ifname=") {
			all[kindOf(line, dev, snapshot)+" "+property] = true
		}
	}
	return all
}

// linkLine cuts "node: link DEV PROPERTY".
func linkLine(line string) (dev, property string, ok bool) {
	_, rest, _ := strings.Cut(line, ": ")
	if rest, ok = strings.CutPrefix(rest, "link "); !ok {
		return "", "", false
	}
	dev, property, ok = strings.Cut(rest, " ")
	return dev, property, ok
}

func kindOf(line, dev, snapshot string) string {
	where, _, _ := strings.Cut(line, ": ")
	_, rest, _ := strings.Cut(snapshot, where+": link "+dev+" linkinfo.info_kind=")
	kind, _, _ := strings.Cut(rest, "\n")
	return kind
}

func (b bareLines) has(line, snapshot string) bool {
	dev, property, ok := linkLine(line)
	return ok && !strings.HasPrefix(property, "flags=") && b[kindOf(line, dev, snapshot)+" "+property]
}

// asDefault: a setting of an interface that is what every interface there gets.
func asDefault(line, snapshot string) bool {
	where, rest, _ := strings.Cut(line, ": ")
	re := regexp.MustCompile(`^sysctl (net/ipv[46]/(?:conf|neigh))/[^/]+/(.*)$`)
	m := re.FindStringSubmatch(rest)
	if m == nil {
		return false
	}
	other := "default"
	if strings.HasSuffix(m[1], "/neigh") { // whose defaults are the first namespace's alone
		other = "lo"
	}
	return strings.Contains(snapshot+"\n", where+": sysctl "+m[1]+"/"+other+"/"+m[2]+"\n")
}

// classes are the classes of the node's qdiscs.
func (l *lab) classes() []string {
	GinkgoHelper()
	var all []string
	devs := l.Node.Must(GinkgoTB(), "sh", "-c", "tc qdisc show | awk '/qdisc htb/ {print $5}'")
	for dev := range strings.FieldsSeq(devs) {
		for line := range strings.Lines(l.Node.Must(GinkgoTB(), "tc", "class", "show", "dev", dev)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "class" {
				all = append(all, fmt.Sprintf("class dev=%s classid=%s %s", dev, f[2], f[1]))
			}
		}
	}
	return all
}

// nftThings are the elements and rules of our tables, each with the command that
// deletes it, and elements given to another owner besides.
func (l *lab) nftThings() []made {
	GinkgoHelper()
	var all []made
	var table, within string
	inElements, rules := false, false
	handle := regexp.MustCompile(` # handle (\d+)$`)
	for line := range strings.Lines(l.Node.Must(GinkgoTB(), "nft", "-a", "list", "ruleset")) {
		line = strings.TrimSpace(line)
		field := strings.Fields(line)
		switch {
		case len(field) == 0:
		case inElements, strings.HasPrefix(line, "elements = {"):
			line, _, inElements = strings.Cut(strings.TrimPrefix(line, "elements = {"), "}")
			inElements = !inElements
			for e := range strings.SplitSeq(line, ",") {
				if e = strings.TrimSpace(e); e != "" {
					all = append(all, elementFates(table, within, e)...)
				}
			}
		case field[0] == "table":
			table = field[1] + " " + field[2]
		case field[0] == "chain", field[0] == "map", field[0] == "set":
			within, rules = field[1], field[0] == "chain"
		case rules && strings.HasSuffix(table, " plumb") && handle.MatchString(line) && field[0] != "type":
			all = append(all, made{
				what: fmt.Sprintf("nft rule of %s: %s", within, line), where: "node",
				do: fmt.Sprintf("nft delete rule %s %s handle %s", table, within, handle.FindStringSubmatch(line)[1]), want: "chain " + within,
			})
		}
	}
	return all
}

func elementFates(table, set, element string) []made {
	if set == "localnetuser" { // counts who needs route_localnet, which is compared itself
		return nil
	}
	key, rest, _ := strings.Cut(element, " comment ")
	_, data, _ := strings.Cut(rest, `" : `)
	if data != "" {
		data = " : " + data
	}
	m := made{
		what: fmt.Sprintf("nft element of %s: %s", set, element), where: "node",
		do: fmt.Sprintf("nft 'delete element %s %s { %s }'", table, set, key), want: set,
	}
	taken := m
	taken.what, taken.want = taken.what+" (another's)", "lab/b/eth0"
	if strings.HasPrefix(set, "masqowner") { // its key is a hash of the owner: another has no business there
		taken.want = set
	}
	taken.do = fmt.Sprintf(`nft 'delete element %[1]s %[2]s { %[3]s }; add element %[1]s %[2]s { %[3]s comment "lab/b/eth0"%[4]s }'`, table, set, key, data)
	return []made{m, taken}
}

// xtablesThings are the rules of iptables.
func (l *lab) xtablesThings() []made {
	GinkgoHelper()
	var all []made
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		table := ""
		for line := range strings.Lines(l.Node.Must(GinkgoTB(), program+"-save")) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = name
			}
			// A rule that does nothing tells the interface of those before it. The reference
			// has none: without it ours are taken for its own.
			if rule, ok := strings.CutPrefix(line, "-A "); ok && strings.Contains(line, " -j ") {
				chain, _, _ := strings.Cut(rule, " ")
				all = append(all, made{what: program + " " + line, where: "node", do: program + " -t " + table + " -D " + rule, want: chain})
			}
		}
	}
	return all
}

// perform does what is to be done to a thing.
func (l *lab) perform(g *guest, m made) error {
	in := l.Node
	if m.where != "node" {
		in = g.NS
	}
	_, err := in.Exec("sh", "-ec", "DIR="+l.dir+"\n"+m.do)
	return err
}

// A witness is a network whose CHECK is tried.
type witness struct {
	name    string
	plugins string
	tuned   bool // something later in the list compares the container's interface itself
}

// fates are those of the things of the network.
func (n witness) fates() []fate {
	if n.tuned {
		return fates()
	}
	return append([]fate{{of: `link eth0 (mtu|address|promiscuity|allmulti|txqlen)=`, exempt: "the container's, for later plugins to change without a word"}}, fates()...)
}

const dualStack = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "192.0.2.0/24", "table": 77}]}`

func witnesses() []witness {
	ptp := `{"type": "ptp", ` + dualStack + `}, `
	return []witness{
		{name: "bridge", plugins: `{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "portIsolation": true,
			"macspoofchk": true, "mac": "02:00:00:00:00:07", ` + dualStack + `}`},
		{name: "bridge and portmap by iptables", plugins: `{"type": "bridge", "bridge": "cni0", "isGateway": true, "promiscMode": true, "ipMasq": true, "ipMasqBackend": "iptables", ` + dualStack + `},
			{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`},
		{name: "two ways to one network", plugins: `{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
			"routes": [{"dst": "2001:db8:77::/48", "gw": "fd00:1::5"}, {"dst": "2001:db8:77::/48", "gw": "fd00:1::6"}]}}`},
		{name: "ptp", plugins: `{"type": "ptp", "ipMasq": true, ` + dualStack + `}`},
		{name: "macvlan", plugins: `{"type": "macvlan", "master": "uplink0", "mode": "vepa", "optimisticDAD": true, ` + dualStack + `}`},
		{name: "portmap", plugins: ptp + `{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}`},
		{name: "bandwidth", plugins: ptp + `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`},
		{name: "bandwidth of subnets", plugins: ptp + `{"type": "bandwidth", "shapedSubnets": ["192.0.2.0/24", "2001:db8::/32"], "capabilities": {"bandwidth": true}}`},
		{name: "tuning", tuned: true, plugins: ptp + `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "mac": "02:00:00:00:00:09", "promisc": true, "allmulti": true,
			"txQLen": 500, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`},
		{name: "loopback", plugins: `{"type": "loopback"}`},
	}
}

// tell does one thing to a fresh attachment and asks CHECK.
func (n witness) tell(m made) error {
	GinkgoHelper()
	l := newLab(n.plugins)
	g := l.attached("a", 8001)
	Expect(l.check(g)).To(Succeed(), "untouched")
	if err := l.perform(g, m); err != nil {
		return fmt.Errorf("cannot be tried: %w", err)
	}
	err := l.check(g)
	if err == nil {
		return errors.New("CHECK passes")
	}
	if !strings.Contains(err.Error(), m.want) {
		return fmt.Errorf("CHECK does not name %q: %w", m.want, err)
	}
	return nil
}

// spread is how many things there are for one that is tried in a slice.
const spread = 10

var _ = Describe("CHECK tells the truth", func() {
	for _, n := range witnesses() {
		It("names each thing that ADD made, once it is gone or changed: "+n.name, func() {
			l := newLab(n.plugins)
			things, forgotten := n.things(l, l.guest("a", 8001))
			Expect(strings.Join(forgotten, "\n")).To(BeEmpty(), "made, and without a fate")
			Expect(things).NotTo(BeEmpty())
			var wrong []string
			for i, m := range things {
				if !all() && i%spread != 0 {
					continue
				}
				err := n.tell(m)
				tried("CHECK truth: "+n.name, err == nil)
				if err != nil {
					wrong = append(wrong, fmt.Sprintf("%s\n\t%s\n\t%v", m.what, m.do, err))
				}
			}
			Expect(strings.Join(wrong, "\n")).To(BeEmpty())
		})
	}
})

// later is what plugins of the field do to what earlier ones made: tuning to MAC, MTU,
// flags, queue and sysctls, portmap and bandwidth beside them.
const later = `, {"type": "tuning", "dataDir": "DIR/tuning", "mac": "02:00:00:00:00:09", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
		"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "0", "net.ipv6.conf.IFNAME.accept_ra": "2", "net.ipv6.conf.IFNAME.accept_dad": "1"}},
	{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
	{"type": "bandwidth", "capabilities": {"bandwidth": true}}`

var _ = Describe("CHECK passes what only a later plugin changed", func() {
	for _, first := range []string{
		`{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, ` + dualStack + `}`,
		`{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "enabledad": true, ` + dualStack + `}`,
		`{"type": "ptp", "ipMasq": true, ` + dualStack + `}`,
		`{"type": "macvlan", "master": "uplink0", "mode": "bridge", "optimisticDAD": true, ` + dualStack + `}`,
	} {
		name, _, _ := strings.Cut(strings.TrimPrefix(first, `{"type": `), `, "ipam"`)
		It("of "+name, func() {
			l := newLab(first + later)
			wrong := l.check(l.attached("a", 8001))
			tried("CHECK truth: chains", wrong == nil)
			Expect(wrong).NotTo(HaveOccurred())
		})
	}

	It("but for macspoofchk, which drops what the container sends under the MAC that tuning gave it", func() {
		l := newLab(`{"type": "bridge", "bridge": "cni0", "isGateway": true, "macspoofchk": true, ` + dualStack + `}` + later)
		a := l.attached("a", 8001)
		_, unreachable := a.Exec("ping", "-c", "1", "-W", "1", "10.1.0.1")
		Expect(unreachable).To(HaveOccurred())
		err := l.check(a)
		tried("CHECK truth: chains", err != nil)
		Expect(err).To(MatchError(ContainSubstring("MAC spoof check of lab/a/eth0 is missing")))
	})
})

// A condition of the node, and what STATUS has to say of it, for ADD fails then.
type condition struct {
	what    string
	plugins string
	make    func(*lab)
	code    uint
	says    string // empty: STATUS passes, and ADD succeeds
}

func conditions() []condition {
	const small = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "failStatusWhenFull": true, "subnet": "10.1.0.0/30"}`
	exhaust := func(l *lab) { l.attached("holder", 7999) }
	readOnly := func(l *lab) { mountAt(l.dir, "ro") }
	full := func(l *lab) {
		mountAt(l.dir, "size=4k")
		Expect(os.WriteFile(filepath.Join(l.dir, "data"), make([]byte, 4096), 0o600)).To(Succeed())
	}
	bare := func(l *lab) { l.strip() }
	tuning := `{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}},
		{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}`
	all := []condition{
		{what: "fine, bridge", plugins: `{"type": "bridge", "ipMasq": true, "isGateway": true, ` + dualStack + `}`},
		{what: "fine, ptp in a chain", plugins: `{"type": "ptp", "ipMasq": true, ` + dualStack + `}` + later},
		{what: "fine, macvlan", plugins: `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, ` + dualStack + `}`},
		{what: "fine without programs, by nftables", plugins: `{"type": "ptp", "ipMasq": true, ` + dualStack + `}, {"type": "portmap", "capabilities": {"portMappings": true}}`, make: bare},
		{what: "the bridge's name is another's", plugins: `{"type": "bridge", "bridge": "uplink0", ` + dualStack + `}`, code: 50, says: "uplink0"},
		{what: "no such master", plugins: `{"type": "macvlan", "master": "eth9", ` + dualStack + `}`, code: 50, says: "eth9"},
		{what: "no such IPAM plugin", plugins: `{"type": "ptp", "ipam": {"type": "nonesuch"}}`, code: 50, says: "nonesuch"},
		{what: "no program of the masquerade's backend", plugins: `{"type": "ptp", "ipMasq": true, "ipMasqBackend": "iptables", ` + dualStack + `}`, make: bare, code: 50, says: "iptables"},
		{what: "no program of the bridge's masquerade's backend", plugins: `{"type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", ` + dualStack + `}`, make: bare, code: 50, says: "iptables"},
		{what: "no program of portmap's backend", plugins: `{"type": "ptp", ` + dualStack + `}, {"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`, make: bare, code: 50, says: "iptables"},
		{what: "the folder of saved states is read-only", plugins: tuning, make: readOnly, code: 50, says: "/state"},
		{what: "the disk of saved states is full", plugins: tuning, make: full, code: 50, says: "/state"},
	}
	for _, with := range []string{`{"type": "bridge", `, `{"type": "ptp", `, `{"type": "macvlan", "master": "uplink0", `} {
		name := with[len(`{"type": "`):strings.Index(with, `",`)]
		all = append(all,
			condition{what: "the pool is exhausted, by way of " + name, plugins: with + small + "}", make: exhaust, code: 50, says: "no IP addresses available in range set: 10.1.0.1-10.1.0.2"},
			condition{what: "the leases' folder is read-only, by way of " + name, plugins: with + small + "}", make: readOnly, code: 50, says: "/state"},
			condition{what: "the leases' disk is full, by way of " + name, plugins: with + small + "}", make: full, code: 50, says: "/state"})
	}
	return all
}

// mountAt puts a small filesystem there.
func mountAt(dir, options string) {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	tb := GinkgoTB()
	out, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "none", dir).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	tb.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
}

var _ = Describe("STATUS tells the truth", func() {
	for _, c := range conditions() {
		It("of a node where "+c.what, func() {
			l := newLab(c.plugins)
			if c.make != nil {
				c.make(l)
			}
			err, failed := l.status(), l.add(l.guest("a", 8001))
			var answer *cnitypes.Error
			switch {
			case c.says == "":
				err = errors.Join(err, failed)
			case failed == nil:
				err = errors.New("ADD succeeds")
			case !errors.As(err, &answer), answer.Code != c.code, !strings.Contains(answer.Error(), c.says):
				err = fmt.Errorf("STATUS gives %w, not code %d with %q; ADD: %w", err, c.code, c.says, failed)
			default:
				err = nil
			}
			tried("STATUS truth", err == nil)
			Expect(err).NotTo(HaveOccurred())
		})
	}
})
