package nstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Snapshot returns the state of the namespaces as lines of text. They describe links with all their settings,
// addresses, routes, rules, permanent neighbors and forwarding entries, VLANs, qdiscs, filters, the nftables
// ruleset, both variants of iptables, and the settings of each interface under /proc/sys/net. Snapshot omits
// what changes without a call, such as counters, timers, lifetimes and learned entries. Two snapshots of the
// same state are equal.
func Snapshot(tb TB, namespaces ...*NS) string {
	tb.Helper()
	parts := make([][]string, len(namespaces))
	errs := make([]error, len(namespaces))
	var wg sync.WaitGroup
	for i, n := range namespaces {
		wg.Go(func() { parts[i], errs[i] = n.snapshot() })
	}
	wg.Wait()
	var all []string
	for i, n := range namespaces {
		if errs[i] != nil {
			tb.Fatalf("snapshot of %s: %v", n.name, errs[i])
		}
		for _, line := range parts[i] {
			all = append(all, n.name+": "+line)
		}
	}
	return strings.Join(all, "\n")
}

// snapshot runs all queries at the same time, because starting programs takes most of the time. It starts only programs
// that have something to print.
func (n *NS) snapshot() ([]string, error) {
	all, err := n.stableIproute()
	if err != nil {
		return nil, err
	}
	queries := []func() ([]string, error){n.ip6rules, n.shaping, n.netfilter, n.sysctls}
	if slices.ContainsFunc(all, func(line string) bool { return strings.HasSuffix(line, " linkinfo.info_kind=bridge") }) {
		queries = slices.Insert(queries, 1, n.bridge)
	}
	parts := make([][]string, len(queries))
	errs := make([]error, len(queries))
	var wg sync.WaitGroup
	for i, query := range queries {
		wg.Go(func() { parts[i], errs[i] = query() })
	}
	wg.Wait()
	return append(all, slices.Concat(parts...)...), errors.Join(errs...)
}

// Compare returns the lines in which two snapshots differ. Lines that only before contains begin with "-", and
// lines that only after contains begin with "+". The result is empty if the snapshots are equal.
func Compare(before, after string) string {
	if before == after {
		return ""
	}
	count := map[string]int{}
	for line := range strings.SplitSeq(before, "\n") {
		count[line]--
	}
	for line := range strings.SplitSeq(after, "\n") {
		count[line]++
	}
	var diff []string
	for line, n := range count {
		for ; n < 0; n++ {
			diff = append(diff, "- "+line)
		}
		for ; n > 0; n-- {
			diff = append(diff, "+ "+line)
		}
	}
	sort.Slice(diff, func(i, j int) bool { return diff[i][2:]+diff[i][:1] < diff[j][2:]+diff[j][:1] })
	if len(diff) == 0 {
		return "the same lines in another order: " + firstMoved(before, after)
	}
	return strings.Join(diff, "\n")
}

// WaitEqual calls state until it returns want, because the kernel may still be working after a call has
// returned. It returns the last difference (see Compare), which is empty if state returned want. A test that
// expects a difference should use WaitStable, which does not wait as long.
func WaitEqual(want string, state func() string) string { return waitEqual(want, state, settleTime) }

// settleTime is how long WaitEqual waits. Usually the state is reached within milliseconds, or seconds on a
// busy machine.
const settleTime = 30 * time.Second

func waitEqual(want string, state func() string, limit time.Duration) string {
	pause := newPause()
	for deadline := time.Now().Add(limit); ; pause.sleep() {
		diff := Compare(want, state())
		if diff == "" || time.Now().After(deadline) {
			return diff
		}
	}
}

// A pause is the time between two checks of a state. It grows, because each check starts programs, and slow
// changes take up to a second.
type pause struct{ next time.Duration }

func newPause() *pause { return &pause{next: 10 * time.Millisecond} }

func (p *pause) sleep() {
	time.Sleep(p.next)
	p.next = min(p.next*3/2, 100*time.Millisecond)
}

// WaitStable calls state until it returns the same value twice, and returns this value. After settleTime, it
// returns the last value.
func WaitStable(state func() string) string {
	last := state()
	for deadline := time.Now().Add(settleTime); time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
		now := state()
		if now == last {
			break
		}
		last = now
	}
	return last
}

// SnapshotDir returns a line with mode, path and content for the directory and for each file and directory
// below it. The result is empty if the directory does not exist.
func SnapshotDir(tb TB, dir string) string {
	tb.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf(" %q", b)
		}
		name, err := filepath.Rel(dir, path)
		lines = append(lines, fmt.Sprintf("%s %s%s", info.Mode(), name, content))
		return err
	})
	if err != nil {
		tb.Fatalf("snapshot of %s: %v", dir, err)
	}
	return strings.Join(lines, "\n")
}

// stableIproute returns what iproute returns once the kernel has finished what a call began. The kernel reports
// a change of carrier up to a second later (net/core/link_watch.c), and it processes IPv6 addresses in a queue.
// After three seconds, stableIproute returns the current state, because some states look unfinished forever,
// for example an address whose local route was deleted.
func (n *NS) stableIproute() ([]string, error) {
	pause := newPause()
	for deadline := time.Now().Add(3 * time.Second); ; pause.sleep() {
		lines, err := n.iproute()
		if err != nil || !isChanging(lines) || time.Now().After(deadline) {
			return withoutUnknown(lines), err
		}
	}
}

// firstMoved describes the first line that the second snapshot contains at another place.
func firstMoved(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("%q is now where %q was", b[i], a[i])
		}
	}
	return ""
}

// isChanging reports whether the kernel has not finished a change of these lines. In this case, the operational
// state of a link that is up does not show its carrier yet, or a running link has a global IPv6 address without
// a local route. The state of a bridge with a port, or of a VLAN, is UNKNOWN at first.
func isChanging(lines []string) bool {
	running := map[string]bool{}
	for _, line := range lines {
		if dev, flags, ok := property(line, "flags=["); ok && hasWord(flags, "UP") {
			running[dev] = !hasWord(flags, "NO-CARRIER")
			if running[dev] != hasWord(flags, "LOWER_UP") {
				return true
			}
		}
	}
	unknown := func(dev string) bool {
		return running[dev] && slices.Contains(lines, "link "+dev+" operstate=UNKNOWN")
	}
	for _, line := range lines { // the state of other links, such as a bridge without ports, may remain UNKNOWN
		if port, bridge, ok := property(line, "master="); ok && running[port] && unknown(bridge) {
			return true
		}
		if dev, lower, ok := property(line, "link="); ok && running[lower] && unknown(dev) {
			return true
		}
	}
	for _, line := range lines {
		dev, addr, ok := property(line, "addr_info={")
		if !ok || !running[dev] || field(addr, "family") != "inet6" || strings.Contains(addr, "scope=link") || strings.Contains(addr, "dadfailed") {
			continue
		}
		if !slices.ContainsFunc(lines, func(l string) bool {
			return field(l, "type") == "local" && field(l, "dst") == field(addr, "local") && strings.HasPrefix(l, "route ")
		}) {
			return true
		}
	}
	return false
}

// withoutUnknown changes the operational state UNKNOWN of links with a carrier to UP. The kernel sets the state
// of some links to UP late, for example of a new veth interface, and of others never, for example of a dummy.
func withoutUnknown(lines []string) []string {
	lines = slices.Clone(lines)
	for _, line := range lines {
		dev, flags, ok := property(line, "flags=[")
		if i := slices.Index(lines, "link "+dev+" operstate=UNKNOWN"); ok && i >= 0 && hasWord(flags, "LOWER_UP") {
			lines[i] = "link " + dev + " operstate=UP"
		}
	}
	return lines
}

// property returns dev and value of a line "link DEV KEYvalue]".
func property(line, key string) (dev, value string, ok bool) {
	rest, ok := strings.CutPrefix(line, "link ")
	if !ok {
		return "", "", false
	}
	dev, rest, _ = strings.Cut(rest, " ")
	value, ok = strings.CutPrefix(rest, key)
	return dev, strings.TrimRight(value, "]}"), ok
}

func hasWord(s, word string) bool { return slices.Contains(strings.Fields(s), word) }

// iproute returns links, addresses, routes of both families, IPv4 rules and permanent neighbors. It omits the
// local routes of link-local addresses, which the kernel adds after duplicate address detection.
func (n *NS) iproute() ([]string, error) {
	lines, err := n.objects("addr show\nroute show table all\nrule show\nneigh show nud permanent\n",
		"", "ip", "-d", "-j", "-batch", "-")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		kind := field(line, "type")
		return strings.HasPrefix(field(line, "dst"), "fe80::") && (kind == "local" || kind == "anycast")
	})
	sortPerLink(lines)
	return lines, err
}

// sortPerLink sorts the IPv6 routes to link-local and multicast addresses, which every link has. They are in
// the order in which the links came up, which is irrelevant.
func sortPerLink(lines []string) {
	var places []int
	var routes []string
	for i, line := range lines {
		if dst := field(line, "dst"); strings.HasPrefix(line, "route ") && (dst == "fe80::/64" || dst == "ff00::/8") {
			places, routes = append(places, i), append(routes, line)
		}
	}
	slices.Sort(routes)
	for n, i := range places {
		lines[i] = routes[n]
	}
}

func (n *NS) ip6rules() ([]string, error) {
	return n.objects("", "rule6", "ip", "-6", "-j", "rule", "show")
}

// bridge returns VLANs and forwarding entries. It omits entries that the kernel changes without a call, such as
// multicast memberships, which follow the addresses of an interface.
func (n *NS) bridge() ([]string, error) {
	lines, err := n.objects("vlan show\nfdb show\n", "bridge", "bridge", "-j", "-batch", "-")
	return slices.DeleteFunc(lines, func(line string) bool {
		fdb := strings.Contains(line, " mac=")
		learned := strings.Contains(line+" ", " state= ") // the bridge forgets a learned entry after some minutes
		return fdb && (learned || strings.Contains(line, "flags=[self]"))
	}), err
}

// shaping returns the qdiscs, and the filters of qdiscs that support filters. It omits the qdisc noqueue, which is a
// property of the link.
func (n *NS) shaping() ([]string, error) {
	var qdiscs []netlink.Qdisc
	err := n.Do(func() (err error) { qdiscs, err = netlink.QdiscList(nil); return err })
	if err == nil && !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() != "noqueue" }) {
		return nil, nil
	}
	lines, err := n.objects("", "qdisc", "tc", "-j", "qdisc", "show")
	if err != nil {
		return nil, err
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return field(line, "kind") == "noqueue" })
	for _, line := range slices.Clone(lines) {
		kind, dev, handle := field(line, "kind"), field(line, "dev"), field(line, "handle")
		if kind == "pfifo_fast" || kind == "mq" {
			continue
		}
		parents := [][]string{{"parent", handle}}
		if kind == "clsact" {
			parents = [][]string{{"ingress"}, {"egress"}}
		}
		for _, parent := range parents {
			args := append([]string{"-j", "-d", "filter", "show", "dev", dev}, parent...)
			filters, err := n.objects("", "filter "+dev, "tc", args...)
			if err != nil && !interfaceGone(err) {
				return nil, err
			}
			lines = append(lines, filters...)
		}
	}
	return lines, nil
}

// interfaceGone reports whether a program of iproute2 failed because its interface was removed in the meantime.
func interfaceGone(err error) bool { return strings.Contains(err.Error(), "Cannot find device") }

// nft returns the nftables ruleset. It sorts the elements of each set, because nft prints them in the order of
// a hash table.
func (n *NS) nft() ([]string, error) {
	var tables []*nftables.Table
	err := n.Do(func() (err error) { tables, err = (&nftables.Conn{}).ListTables(); return err })
	if err != nil || len(tables) == 0 {
		return nil, err
	}
	out, err := n.Exec("nft", "-s", "list", "ruleset")
	if err != nil {
		return nil, err
	}
	var lines, elements []string
	inside := false
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		rest, opens := strings.CutPrefix(line, "elements = {")
		if !inside && !opens {
			lines = append(lines, "nft "+line)
			continue
		}
		if opens {
			inside, line, elements = true, rest, nil
		}
		line, closes := strings.CutSuffix(line, "}")
		elements = append(elements, splitOutsideQuotes(line, ',')...)
		if closes {
			inside = false
			slices.Sort(elements)
			for _, e := range slices.DeleteFunc(elements, func(e string) bool { return e == "" }) {
				lines = append(lines, "nft element "+e)
			}
		}
	}
	return lines, nil
}

// splitOutsideQuotes splits s at each separator that is not between quotation marks.
func splitOutsideQuotes(s string, sep rune) []string {
	quoted := false
	parts := strings.FieldsFunc(s, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == sep && !quoted
	})
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func (n *NS) netfilter() ([]string, error) {
	ruleset, err := n.nft()
	if err != nil {
		return nil, err
	}
	tables, err := n.iptables(ruleset)
	return append(ruleset, tables...), err
}

// iptables returns the tables of iptables. The tables of the nft variant are in the families ip and ip6 of the
// ruleset. iptables reads tables of the legacy variant only if there are any, because reading a table creates
// it.
func (n *NS) iptables(ruleset []string) ([]string, error) {
	var programs []string
	for _, variant := range []struct{ table, program string }{
		{"nft table ip ", "iptables-nft-save"},
		{"nft table ip6 ", "ip6tables-nft-save"},
	} {
		if slices.ContainsFunc(ruleset, func(line string) bool { return strings.HasPrefix(line, variant.table) }) {
			programs = append(programs, variant.program)
		}
	}
	for _, legacy := range []struct{ names, program string }{
		{"/proc/thread-self/net/ip_tables_names", "iptables-legacy-save"},
		{"/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy-save"},
	} {
		var names []byte
		if err := n.Do(func() (err error) { names, err = os.ReadFile(legacy.names); return err }); err == nil && len(names) > 0 {
			programs = append(programs, legacy.program)
		}
	}
	var lines []string
	for _, program := range programs {
		out, err := n.Exec(program)
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s (Debian package iptables) is needed: %w", program, err)
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " [") // counters
			if !strings.HasPrefix(line, "#") {
				lines = append(lines, strings.TrimSuffix(program, "-save")+" "+line)
			}
		}
	}
	return lines, nil
}

// sysctls returns the settings that CNI plugins change, including the settings of each interface.
func (n *NS) sysctls() ([]string, error) {
	var lines []string
	err := n.Do(func() error {
		for _, top := range []string{"ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh", "bridge", "ipv4/ip_forward"} {
			err := filepath.WalkDir("/proc/sys/net/"+top, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return ignoreGone(err)
				}
				if value, err := readSetting(path); err == nil { // stable_secret returns EIO until it is set
					lines = append(lines, "sysctl "+strings.TrimPrefix(path, "/proc/sys/")+" "+strings.TrimSpace(value))
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return lines, err
}

// readSetting reads a file of /proc/sys with three system calls, fewer than os.ReadFile needs, because a
// namespace has a thousand settings.
func readSetting(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	return string(buf[:max(n, 0)]), errors.Join(err, unix.Close(fd))
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// objects runs a program of iproute2 that prints JSON arrays of objects. It returns one line per
// object, and for a link one line per property.
func (n *NS) objects(stdin, what, name string, args ...string) ([]string, error) {
	out, err := n.ExecInput(stdin, name, args...)
	if err != nil {
		return nil, err
	}
	var lines []string
	dec := json.NewDecoder(bytes.NewReader([]byte(out)))
	dec.UseNumber()
	for {
		var array []map[string]any
		err := dec.Decode(&array)
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
		}
		for _, object := range array {
			if len(object) == 0 { // ip prints an empty object for each address that a filter excludes
				continue
			}
			lines = append(lines, describe(what, object)...)
		}
	}
}

// describe returns the lines of an object. The lines begin with what or, if what is empty, with the kind of the
// object.
func describe(what string, object map[string]any) []string {
	properties := flatten("", object)
	has := func(key string) bool { _, ok := object[key]; return ok }
	switch {
	case what == "" && has("lladdr"):
		what = "neigh"
	case what == "" && has("type"):
		what = "route"
	case what == "":
		what = "rule"
	}
	if !has("ifindex") {
		return []string{what + " " + strings.Join(properties, " ")}
	}
	head := fmt.Sprintf("link %v ", object["ifname"])
	for i := range properties {
		properties[i] = head + properties[i]
	}
	return properties
}

// volatileKeys lists the properties that change without a call.
var volatileKeys = []string{
	"valid_life_time", "preferred_life_time", "tentative", "expires", "refcnt", "used",
	"bytes", "packets", "drops", "overlimits", "requeues", "backlog", "qlen", "rule_hit", "success", "stats", "direct_packets_stat",
	"installed", "last_used", "first_used", "age",
}

// flatten returns the properties of a JSON value as "key.key=value", sorted by key. An object in a
// list is one property.
func flatten(prefix string, v any) []string {
	switch v := v.(type) {
	case map[string]any:
		var all []string
		for key, value := range v {
			if slices.Contains(volatileKeys, key) || strings.HasSuffix(key, "_timer") {
				continue
			}
			all = append(all, flatten(strings.TrimPrefix(prefix+"."+key, "."), value)...)
		}
		slices.Sort(all)
		return all
	case []any:
		var all []string
		plain := []string{}
		for _, item := range v {
			if _, object := item.(map[string]any); object {
				all = append(all, prefix+"={"+strings.Join(flatten("", item), " ")+"}")
				continue
			}
			if item != "linkdown" { // a flag of a route, which follows the carrier with a delay
				plain = append(plain, fmt.Sprint(item))
			}
		}
		if len(plain) > 0 {
			all = append(all, prefix+"=["+strings.Join(plain, " ")+"]")
		}
		return all
	}
	return []string{fmt.Sprintf("%s=%v", prefix, v)}
}

// field returns the value of a key in a line of describe, or "".
func field(line, key string) string {
	for word := range strings.FieldsSeq(line) {
		if value, ok := strings.CutPrefix(word, key+"="); ok {
			return value
		}
	}
	return ""
}
