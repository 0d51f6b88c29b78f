package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

// wrongInfix separates the name of a plugin from the case that it breaks, for example in ptp-breaks-VERSION-1.
const wrongInfix = "-breaks-"

// A wrongPlugin is a call of a plugin that breaks one case. It calls the plugin whose name begins its own name, in the same
// directory, and changes the call or its answer.
type wrongPlugin struct {
	path    string // the plugin that is right
	command string
	env     []string
	stdin   string
	quiet   bool // drops stderr

	// The attachments for which DEL was called on this host, including this call. Most cases call DEL once before they test.
	dels []string
}

// A breaker answers a call with an exit status and a text for stdout.
type breaker func(*wrongPlugin) (exit int, out string)

// wrong runs a call of a plugin that breaks a case, and returns its exit status.
func wrong(plugin, id string) int {
	stdin, _ := io.ReadAll(os.Stdin)
	p := &wrongPlugin{path: filepath.Join(filepath.Dir(os.Args[0]), plugin), command: os.Getenv("CNI_COMMAND"), env: os.Environ(), stdin: string(stdin)}
	if p.command == "DEL" {
		p.dels = countDel()
	}
	exit, out := breaks[id](p)
	fmt.Print(out)
	return exit
}

// call calls the plugin that is right.
func (p *wrongPlugin) call() (exit int, out string) {
	cmd := &exec.Cmd{Path: p.path, Args: []string{p.path}, Env: p.env, Stdin: strings.NewReader(p.stdin)}
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if !p.quiet {
		cmd.Stderr = os.Stderr
	}
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), stdout.String()
}

func (p *wrongPlugin) hasPrevResult() bool { return strings.Contains(p.stdin, `"prevResult"`) }

// edit changes the object that a command prints, or all commands with "".
func edit(command string, f func(map[string]any)) breaker {
	return func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if object, err := lab.Object(out); err == nil && (command == "" || p.command == command) {
			f(object)
			out = lab.JSON(object)
		}
		return exit, out
	}
}

// editError changes the errors with a code.
func editError(code string, f func(map[string]any)) breaker {
	return edit("", func(o map[string]any) {
		if o["code"] == json.Number(code) {
			f(o)
		}
	})
}

func wrongCode(from, to string) breaker {
	return editError(from, func(o map[string]any) { o["code"] = json.Number(to) })
}

// editInterface changes the container's interface in the result.
func editInterface(key string, value any) breaker {
	return edit("ADD", func(o map[string]any) {
		all, _ := o["interfaces"].([]any) // version 0.2.0 has none
		for _, v := range all {
			if v := v.(map[string]any); v["name"] == os.Getenv("CNI_IFNAME") {
				v[key] = value
			}
		}
	})
}

// swap replaces a text in the result. The plugin finds the text that it expects in prevResult.
func swap(text, by string) breaker {
	return func(p *wrongPlugin) (int, string) {
		p.stdin = strings.ReplaceAll(p.stdin, by, text)
		exit, out := p.call()
		if p.command == "ADD" {
			out = strings.ReplaceAll(out, text, by)
		}
		return exit, out
	}
}

// editConfig changes the configuration.
func editConfig(f func(p *wrongPlugin, conf map[string]any)) breaker {
	return func(p *wrongPlugin) (int, string) {
		if conf, err := lab.Object(p.stdin); err == nil {
			f(p, conf)
			p.stdin = lab.JSON(conf)
		}
		return p.call()
	}
}

func deleteRuntimeConfig(key string) breaker {
	return editConfig(func(_ *wrongPlugin, conf map[string]any) {
		if runtimeConfig, ok := conf["runtimeConfig"].(map[string]any); ok {
			delete(runtimeConfig, key)
		}
	})
}

// collectNothing tells GC that all containers are valid, if its list is empty or is not.
func collectNothing(empty bool) breaker {
	return editConfig(func(p *wrongPlugin, conf map[string]any) {
		valid, _ := conf["cni.dev/valid-attachments"].([]any)
		if p.command == "GC" && (len(valid) == 0) == empty {
			for n := range 10 {
				valid = append(valid, map[string]any{"containerID": fmt.Sprintf("cnf%06d-1f0c2a9b", n), "ifname": "eth0"})
			}
			conf["cni.dev/valid-attachments"] = valid
		}
	})
}

// fail is the answer of a plugin that fails.
func fail(text string) (int, string) {
	return 1, fmt.Sprintf(`{"cniVersion": "1.1.0", "code": 100, "msg": %q}`, text)
}

// A condition is true for calls that a plugin breaks. out is what the plugin that is right printed.
type condition func(p *wrongPlugin, out string) bool

// failIf reports a failure of a command if the condition was true before it, without out.
func failIf(command string, when condition) breaker {
	return func(p *wrongPlugin) (int, string) {
		broken := p.command == command && when(p, "")
		exit, out := p.call()
		if broken && exit == 0 {
			return fail("wrong")
		}
		return exit, out
	}
}

// succeedIf reports success if a command failed, or any with "", and the condition is true.
func succeedIf(command string, when condition) breaker {
	return func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if (command == "" || p.command == command) && exit != 0 && when(p, out) {
			exit = 0
		}
		return exit, out
	}
}

// printsMore adds a text to what a command prints, or any with "", if the condition is true.
func printsMore(command string, when condition) breaker {
	return func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if (command == "" || p.command == command) && when(p, out) {
			out += "more\n"
		}
		return exit, out
	}
}

func always(*wrongPlugin, string) bool { return true }

func withoutNetns(*wrongPlugin, string) bool { return os.Getenv("CNI_NETNS") == "" }

// deadNetns is true if CNI_NETNS does not exist.
func deadNetns(*wrongPlugin, string) bool {
	_, err := os.Stat(os.Getenv("CNI_NETNS"))
	return os.Getenv("CNI_NETNS") != "" && err != nil
}

// printsCode is a condition about an error. The code of an IPAM plugin that a case replaced is 123.
func printsCode(code json.Number) condition {
	return func(_ *wrongPlugin, out string) bool {
		object, _ := lab.Object(out)
		return object["code"] == code
	}
}

// inContainer calls f in the namespace CNI_NETNS.
func inContainer(f func()) {
	fd, err := unix.Open(os.Getenv("CNI_NETNS"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Setns(fd, unix.CLONE_NEWNET) == nil {
			f()
		}
	}()
	<-done
}

// found returns the last of these that the container has, if it has the ones before: an interface CNI_IFNAME, an address of it, a
// default route, and more, which is the route that a case adds.
func found() (what string) {
	inContainer(func() {
		link, err := netlink.LinkByName(os.Getenv("CNI_IFNAME"))
		if err != nil {
			return
		}
		what = "interface"
		if addrs, _ := netlink.AddrList(link, netlink.FAMILY_V4); len(addrs) == 0 {
			return
		}
		what = "address"
		routes, _ := netlink.RouteList(link, netlink.FAMILY_V4)
		for _, next := range []struct{ dst, what string }{{"0.0.0.0/0", "route"}, {"198.18.1.0/24", "more"}} {
			if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst.String() == next.dst }) {
				return
			}
			what = next.what
		}
	})
	return what
}

func finds(what string) condition {
	return func(*wrongPlugin, string) bool { return found() == what }
}

func addLink(name string, flags net.Flags) {
	_ = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: flags}, PeerName: "p" + name})
}

func deleteLink(name string) {
	if link, err := netlink.LinkByName(name); err == nil {
		_ = netlink.LinkDel(link)
	}
}

// deletesInterface deletes the interface CNI_IFNAME before a command.
func deletesInterface(command string) breaker {
	return func(p *wrongPlugin) (int, string) {
		if p.command == command {
			inContainer(func() { deleteLink(os.Getenv("CNI_IFNAME")) })
		}
		return p.call()
	}
}

// leaves adds a link to the host that nothing deletes, after a command for which the condition is true.
func leaves(command string, when condition) breaker {
	return func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if p.command == command && when(p, out) {
			addLink("wrong0", 0)
		}
		return exit, out
	}
}

// leavesIfDiskFails is leaves for an ADD that cannot write a file.
func leavesIfDiskFails(errno unix.Errno) breaker {
	return leaves("ADD", func(*wrongPlugin, string) bool {
		fd, err := unix.Open("/run", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err == nil {
			_, err = unix.Write(fd, []byte("x"))
		}
		return errors.Is(err, errno)
	})
}

func countDel() (dels []string) {
	f, err := os.OpenFile("/run/wrong-dels", os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil // a read-only directory
	}
	_, _ = f.WriteString(ownName() + "\n") // not the container's ID, which the state would contain
	end, _ := f.Seek(0, io.SeekCurrent)
	text := make([]byte, end)
	_, _ = f.ReadAt(text, 0)
	return strings.Fields(string(text))
}

// ownName is the name of a link of an attachment.
func ownName() string {
	return fmt.Sprintf("w%x", crc32.ChecksumIEEE([]byte(os.Getenv("CNI_CONTAINERID"))))
}

// leavesInterface leaves an interface CNI_IFNAME during the first DEL on a host, if it is with prevResult, or without.
func leavesInterface(withPrevResult bool) breaker {
	return func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if len(p.dels) == 1 && p.hasPrevResult() == withPrevResult {
			inContainer(func() { addLink(os.Getenv("CNI_IFNAME"), 0) })
		}
		return exit, out
	}
}

// withLink adds a second link to the container during ADD, and calls set if the flags are not enough. DEL deletes the link if the
// link is up and del returns true.
func withLink(flags net.Flags, set func(netlink.Link) error, del func(*wrongPlugin, netlink.Link) bool) breaker {
	return func(p *wrongPlugin) (exit int, out string) {
		if p.command == "ADD" {
			inContainer(func() { addLink(ownName(), flags) })
		}
		each := func(f func(netlink.Link)) {
			inContainer(func() {
				if link, err := netlink.LinkByName(ownName()); err == nil {
					f(link)
				}
			})
		}
		switch {
		case p.command == "ADD" && set != nil:
			each(func(link netlink.Link) { _ = set(link) })
		case p.command == "DEL":
			each(func(link netlink.Link) {
				if link.Attrs().Flags&net.FlagUp != 0 && del(p, link) {
					_ = netlink.LinkDel(link)
				}
			})
		}
		exit, out = p.call()
		if p.command == "ADD" && exit != 0 {
			inContainer(func() { deleteLink(ownName()) })
		}
		return exit, out
	}
}

// lock locks one of the files until this process ends. It reports false if other processes have locked all that exist.
func lock(how int, paths ...string) bool {
	locked := false
	for _, path := range paths {
		if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			if unix.Flock(fd, how|unix.LOCK_NB) == nil {
				return true
			}
			locked = true
		}
	}
	return !locked
}

// crowded is a condition that is true if n other processes have locked the first n namespaces.
func crowded(n int, pattern string) condition {
	return func(*wrongPlugin, string) bool {
		paths, _ := filepath.Glob(os.ExpandEnv(pattern))
		if !lock(unix.LOCK_EX, paths[:min(n, len(paths))]...) {
			return true
		}
		time.Sleep(time.Second)
		return false
	}
}

// inherent maps a case to others that a plugin that breaks it cannot pass.
var inherent = map[string][]string{
	"ADD-9": {"PARALLEL-1"}, // 32 ADDs at the same time contain 8
}

// breaks maps each case to the calls of a plugin that breaks it.
var breaks = map[string]breaker{
	"VERSION-1": edit("VERSION", func(o map[string]any) { o["supportedVersions"] = append(o["supportedVersions"].([]any), "latest") }),
	"VERSION-2": edit("VERSION", func(o map[string]any) { o["cniVersion"] = "1.0.0" }),
	"ADD-1": edit("ADD", func(o map[string]any) {
		if o["cniVersion"] == "0.4.0" {
			delete(o["ips"].([]any)[0].(map[string]any), "version")
		}
	}),
	"ADD-2": func(p *wrongPlugin) (int, string) {
		exit, out := swap(`"eth0"`, `"alt0"`)(p)
		if p.command == "ADD" && exit == 0 {
			inContainer(func() {
				if link, err := netlink.LinkByName("eth0"); err == nil {
					_ = netlink.LinkAddAltName(link, "alt0")
				}
			})
		}
		return exit, out
	},
	"ADD-3": edit("ADD", func(o map[string]any) {
		if all, ok := o["interfaces"].([]any); ok {
			o["interfaces"] = append(all, map[string]any{"name": "none"})
		}
	}),
	"ADD-4":        editInterface("mac", "02:00:00:00:00:99"),
	"ADD-5":        editInterface("mtu", 9999),
	"ADD-6":        swap(`/24"`, `/25"`),
	"ADD-7":        swap(`"0.0.0.0/0"`, `"128.0.0.0/1"`),
	"ADD-8":        deletesInterface("ADD"),
	"ADD-9":        failIf("ADD", crowded(1, "/run/netns/*")),
	"ADD-10":       failIf("ADD", func(*wrongPlugin, string) bool { return strings.Contains(os.Getenv("CNI_ARGS"), "FOO") }),
	"CHAIN-1":      edit("ADD", func(o map[string]any) { delete(o, "routes") }),
	"CAPABILITY-1": deleteRuntimeConfig("mac"),
	"CAPABILITY-2": deleteRuntimeConfig("ips"),
	"ERROR-1":      succeedIf("", printsCode("4")),
	"ERROR-2":      printsMore("", func(_ *wrongPlugin, out string) bool { return strings.Contains(out, `"code"`) }),
	"ERROR-3":      wrongCode("4", "100"),
	"ERROR-4":      editError("4", func(o map[string]any) { o["msg"], o["details"] = "a variable is wrong", "" }),
	"ERROR-5":      wrongCode("1", "7"),
	"ERROR-6":      wrongCode("6", "100"),
	"ERROR-7":      wrongCode("7", "100"),
	"DEL-1":        leavesInterface(true),
	"DEL-2":        failIf("DEL", func(p *wrongPlugin, _ string) bool { return len(p.dels) == 2 && p.dels[0] == p.dels[1] }),
	"DEL-3":        leavesInterface(false),
	"DEL-4":        failIf("DEL", withoutNetns),
	"DEL-5":        failIf("DEL", deadNetns),
	"DEL-6":        failIf("DEL", func(p *wrongPlugin, _ string) bool { return len(p.dels) == 1 && !p.hasPrevResult() && found() == "" }),
	"CHECK-1":      failIf("CHECK", finds("route")),
	"CHECK-2":      failIf("CHECK", finds("more")),
	"CHECK-3":      succeedIf("CHECK", func(p *wrongPlugin, _ string) bool { return strings.Contains(p.stdin, "198.18.2.77/24") }),
	"CHECK-4":      succeedIf("CHECK", finds("")),
	"CHECK-5":      succeedIf("CHECK", finds("interface")),
	"CHECK-6":      succeedIf("CHECK", finds("address")),
	"STATUS-1":     failIf("STATUS", always),
	"STATUS-2": succeedIf("STATUS", func(*wrongPlugin, string) bool {
		_, err := invoke.FindInPath("host-local", filepath.SplitList(os.Getenv("CNI_PATH")))
		return err != nil
	}),
	"STATUS-3": succeedIf("STATUS", printsCode("123")),
	"STATUS-4": wrongCode("50", "7"),
	"GC-1":     printsMore("GC", always),
	"GC-2":     collectNothing(false),
	"GC-3":     collectNothing(true),
	"DELEGATE-1": func(p *wrongPlugin) (int, string) {
		p.env = append(p.env, "CNI_ARGS=")
		return p.call()
	},
	"DELEGATE-2": editConfig(func(_ *wrongPlugin, conf map[string]any) { delete(conf, "ipMasq") }),
	"DELEGATE-3": (*wrongPlugin).call, // see known
	"DELEGATE-4": succeedIf("DEL", printsCode("123")),
	"DELEGATE-5": succeedIf("CHECK", printsCode("123")),
	"DELEGATE-6": succeedIf("GC", printsCode("123")),
	"DELEGATE-7": func(p *wrongPlugin) (int, string) { p.quiet = true; return p.call() },
	"LEFT-1": withLink(net.FlagUp, nil, func(p *wrongPlugin, _ netlink.Link) bool {
		return len(p.dels) != 2 || p.dels[0] == p.dels[1] || !p.hasPrevResult()
	}),
	"LEFT-2":     leaves("DEL", withoutNetns),
	"LEFT-3":     leaves("DEL", deadNetns),
	"LEFT-4":     leaves("ADD", deadNetns),
	"LEFT-5":     leaves("ADD", printsCode("123")),
	"KILL-1":     withLink(0, netlink.LinkSetUp, func(*wrongPlugin, netlink.Link) bool { return true }),
	"KILL-2":     withLink(net.FlagUp, nil, func(_ *wrongPlugin, link netlink.Link) bool { return netlink.LinkSetDown(link) == nil }),
	"PARALLEL-1": failIf("ADD", crowded(8, "/run/netns/*")),
	"PARALLEL-2": failIf("DEL", crowded(1, "$CNI_NETNS")),
	"PARALLEL-3": func(p *wrongPlugin) (int, string) {
		if p.command == "ADD" && lock(unix.LOCK_EX, os.Getenv("CNI_NETNS")) {
			time.Sleep(500 * time.Millisecond) // until DEL has begun
		}
		return leaves("DEL", func(*wrongPlugin, string) bool { return !lock(unix.LOCK_SH, os.Getenv("CNI_NETNS")) })(p)
	},
	"DISK-1":  leavesIfDiskFails(unix.EROFS),
	"DISK-2":  leavesIfDiskFails(unix.ENOSPC),
	"REUSE-1": deletesInterface("DEL"),
}
