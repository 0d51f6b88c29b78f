package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ContainerPrefix begins the lines of State about containers.
const ContainerPrefix = "container: "

// State returns what exists on the host, in the containers and in the plugins' directories, one object a line: links,
// addresses, routes, rules, permanent neighbours, qdiscs, filters, nftables, legacy iptables and files. It omits what changes
// without a call.
func (b *Bed) State(containers ...*Container) ([]string, error) {
	all, err := b.Host.state("host: ")
	for _, c := range containers {
		lines, err2 := c.state(ContainerPrefix)
		all, err = append(all, lines...), errors.Join(err, err2)
	}
	files, err2 := b.files()
	return append(all, files...), errors.Join(err, err2)
}

// Left waits until the state is as before. It returns the lines that differ, or "" if the state is equal.
func (b *Bed) Left(before []string, containers ...*Container) (string, error) {
	for deadline, pause := time.Now().Add(b.Settle), 10*time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		after, err := b.State(containers...)
		diff := compare(before, after)
		if err != nil || diff == "" || time.Now().After(deadline) {
			return diff, err
		}
		time.Sleep(pause)
	}
}

func compare(before, after []string) string {
	count := map[string]int{}
	for _, line := range before {
		count[line]--
	}
	for _, line := range after {
		count[line]++
	}
	var diff []string
	for line, n := range count {
		if n != 0 {
			diff = append(diff, map[bool]string{true: "+ ", false: "- "}[n > 0]+line)
		}
	}
	slices.SortFunc(diff, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	return strings.Join(diff, "\n")
}

func (n *NS) state(prefix string) (lines []string, err error) {
	add := func(format string, args ...any) {
		lines = append(lines, prefix+strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	err = n.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		names := map[int]string{0: ""}
		for _, l := range links {
			names[l.Attrs().Index] = l.Attrs().Name
		}
		for _, l := range links {
			a := l.Attrs()
			mac := a.HardwareAddr.String()
			if l.Type() == "bridge" || l.Type() == "bond" {
				mac = "" // it follows the ports
			}
			add("link %s %s mtu %d master %q %s alias %q %v %s %q", a.Name, l.Type(), a.MTU, names[a.MasterIndex], mac, a.Alias, a.AltNames,
				map[bool]string{true: "up"}[a.RawFlags&unix.IFF_UP != 0], map[bool]string{true: "promisc"}[a.Promisc != 0])
		}
		return errors.Join(addresses(add, names), routes(add, names), shaping(add, links), firewall(add))
	})
	return lines, err
}

// addresses adds addresses, rules and permanent neighbours. The kernel adds link-local addresses later.
func addresses(add func(string, ...any), names map[int]string) error {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for _, a := range addrs {
		if a.IP.To4() != nil || !a.IP.IsLinkLocalUnicast() {
			add("address %s %s", names[a.LinkIndex], a.IPNet)
		}
	}
	rules, err2 := netlink.RuleList(netlink.FAMILY_ALL)
	for _, r := range rules {
		add("rule %s", r.String())
	}
	neighbours, err3 := netlink.NeighList(0, netlink.FAMILY_ALL)
	for _, n := range neighbours {
		if n.State&netlink.NUD_PERMANENT != 0 {
			add("neighbour %s %s %s", names[n.LinkIndex], n.IP, n.HardwareAddr)
		}
	}
	return errors.Join(err, err2, err3)
}

// routes adds the routes of all tables. It omits those that the kernel adds for each interface with IPv6, some of them later.
func routes(add func(string, ...any), names map[int]string) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range all {
			if family == netlink.FAMILY_V6 && (r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_BLACKHOLE && r.Type != unix.RTN_UNREACHABLE ||
				r.Dst != nil && (r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast())) {
				continue
			}
			hops := ""
			for _, hop := range r.MultiPath {
				hops += fmt.Sprintf(" via %v dev %s", hop.Gw, names[hop.LinkIndex])
			}
			add("route %v via %v dev %s src %v table %d proto %d metric %d type %d %s", r.Dst, r.Gw, names[r.LinkIndex], r.Src, r.Table, r.Protocol, r.Priority, r.Type, hops)
		}
	}
	return nil
}

// shaping adds qdiscs and their filters. It omits the qdiscs that the kernel chooses by itself.
func shaping(add func(string, ...any), links []netlink.Link) error {
	for _, l := range links {
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			return fmt.Errorf("list qdiscs: %w", err)
		}
		for _, q := range qdiscs {
			if q.Attrs().Handle == 0 {
				continue // the default
			}
			add("qdisc %s %s parent %x", l.Attrs().Name, q.Type(), q.Attrs().Parent)
			parents := []uint32{q.Attrs().Handle}
			if q.Type() == "clsact" || q.Type() == "ingress" {
				parents = []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS, netlink.MakeHandle(0xffff, 0)}
			}
			for _, parent := range parents {
				filters, err := netlink.FilterList(l, parent)
				if err != nil {
					continue // the qdisc does not support filters
				}
				for _, f := range filters {
					add("filter %s parent %x %s priority %d", l.Attrs().Name, parent, f.Type(), f.Attrs().Priority)
				}
			}
		}
	}
	return nil
}

// firewall adds the lines that nft and the programs of legacy iptables print, without counters, if they are installed.
func firewall(add func(string, ...any)) error {
	for _, list := range []struct {
		onlyIf string
		args   []string
	}{
		{"/proc/thread-self/net/netfilter", []string{"nft", "-s", "list", "ruleset"}},
		{"/proc/thread-self/net/ip_tables_names", []string{"iptables-legacy-save"}},
		{"/proc/thread-self/net/ip6_tables_names", []string{"ip6tables-legacy-save"}},
	} {
		if text, err := os.ReadFile(list.onlyIf); len(text) == 0 && list.args[0] != "nft" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		out, err := exec.Command(list.args[0], list.args[1:]...).Output()
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", list.args[0], err)
		}
		where := list.args[0]
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "table ") || strings.HasPrefix(line, "chain ") || strings.HasPrefix(line, "set ") || strings.HasPrefix(line, "map ") {
				where = list.args[0] + " " + strings.TrimSuffix(line, " {")
				add("%s", where)
				continue
			}
			for _, part := range splitElements(line) {
				add("%s: %s", where, part)
			}
		}
	}
	return nil
}

// splitElements returns the elements of a line of a set, which nft prints in any order, and other lines as they are. It
// removes the counters of iptables-save.
func splitElements(line string) []string {
	rest, isFirst := strings.CutPrefix(line, "elements = {")
	if !isFirst && !strings.HasSuffix(line, ",") && !strings.HasSuffix(line, " }") {
		rest, _, _ = strings.Cut(line, " [")
		if strings.HasPrefix(rest, "#") || rest == "}" || rest == "" {
			return nil
		}
		return []string{rest}
	}
	quoted := false
	parts := strings.FieldsFunc(strings.TrimSuffix(rest, "}"), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return slices.DeleteFunc(parts, func(s string) bool { return s == "" })
}

// Scratch is a directory for the cases' own files, which State omits.
const Scratch = "/run/cni-conformance"

// files returns the paths in the plugins' directories, and which containers the content of a file names.
func (b *Bed) files() (lines []string, err error) {
	for _, dir := range b.StateDir {
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist) || path == dir:
				return nil
			case err != nil:
				return err
			case path == netnsDir || path == Scratch:
				return filepath.SkipDir
			case path == filler(dir):
				return nil
			}
			line := "file: " + path
			if d.Type().IsRegular() {
				text, err := os.ReadFile(path)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				for _, c := range b.Containers {
					if bytes.Contains(text, []byte(c.ID)) {
						line += ", names " + c.ID
					}
				}
			}
			lines = append(lines, line)
			return nil
		}))
	}
	return lines, err
}

func filler(dir string) string { return filepath.Join(dir, ".cni-conformance-fills-the-disk") }

// MakeStateReadOnly remounts the plugins' directories, so that a write returns EROFS.
func (b *Bed) MakeStateReadOnly() error { return b.remountState(unix.MS_RDONLY) }

// RestoreState makes the plugins' directories writable.
func (b *Bed) RestoreState() error {
	err := b.remountState(0)
	for _, dir := range b.StateDir {
		_ = os.Remove(filler(dir))
	}
	return err
}

// remountState remounts the tmpfs that HideState mounted.
func (b *Bed) remountState(flags uintptr) error {
	for _, dir := range b.StateDir {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
			return fmt.Errorf("%s is not a tmpfs: %w", dir, err)
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, tmpfsOptions); err != nil {
			return fmt.Errorf("remount %s: %w", dir, err)
		}
	}
	return nil
}

// FillState fills the plugins' directories, so that a write returns ENOSPC.
func (b *Bed) FillState() error {
	for _, dir := range b.StateDir {
		f, err := os.Create(filler(dir))
		if err != nil {
			return err
		}
		var st unix.Statfs_t
		err = unix.Fstatfs(int(f.Fd()), &st)
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*int64(st.Bsize))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("fill %s: %w", dir, err)
		}
	}
	return nil
}
