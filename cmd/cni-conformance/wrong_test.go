package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
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
}

// wrong runs a call of a plugin that breaks a case, and returns its exit status.
func wrong(plugin, id string) int {
	stdin, _ := io.ReadAll(os.Stdin)
	p := &wrongPlugin{filepath.Join(filepath.Dir(os.Args[0]), plugin), os.Getenv("CNI_COMMAND"), os.Environ(), string(stdin), false}
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

func (p *wrongPlugin) conf() map[string]any {
	conf, _ := lab.Object(p.stdin)
	return conf
}

// fail is the answer of a plugin that fails.
func fail(text string) (int, string) {
	return 1, fmt.Sprintf(`{"cniVersion": "1.1.0", "code": 100, "msg": %q}`, text)
}

// editResult changes the object that a command prints if it succeeds.
func editResult(command string, f func(map[string]any)) func(*wrongPlugin) (int, string) {
	return func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if object, err := lab.Object(out); err == nil && exit == 0 && p.command == command {
			f(object)
			out = lab.JSON(object)
		}
		return exit, out
	}
}

// editConfig changes the configuration.
func editConfig(f func(map[string]any)) func(*wrongPlugin) (int, string) {
	return func(p *wrongPlugin) (int, string) {
		if conf := p.conf(); conf != nil {
			f(conf)
			p.stdin = lab.JSON(conf)
		}
		return p.call()
	}
}

// editFailure changes the error of a command, or of all commands with "".
func editFailure(command string, f func(map[string]any) (int, string)) func(*wrongPlugin) (int, string) {
	return func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if object, err := lab.Object(out); err == nil && exit != 0 && (command == "" || p.command == command) {
			return f(object)
		}
		return exit, out
	}
}

// wrongCode replaces an error code.
func wrongCode(from, to string) func(*wrongPlugin) (int, string) {
	return editFailure("", func(object map[string]any) (int, string) {
		if object["code"] == json.Number(from) {
			object["code"] = json.Number(to)
		}
		return 1, lab.JSON(object)
	})
}

// succeed does nothing for a command.
func succeed(command string) func(*wrongPlugin) (int, string) {
	return func(p *wrongPlugin) (int, string) {
		if p.command == command {
			return 0, ""
		}
		return p.call()
	}
}

// failIf fails a command if the condition is true.
func failIf(command string, condition func(*wrongPlugin) bool) func(*wrongPlugin) (int, string) {
	return func(p *wrongPlugin) (int, string) {
		if p.command == command && condition(p) {
			return fail("wrong")
		}
		return p.call()
	}
}

func always(*wrongPlugin) bool { return true }

// ignoreFailure succeeds if the command fails.
func ignoreFailure(command string) func(*wrongPlugin) (int, string) {
	return editFailure(command, func(map[string]any) (int, string) { return 0, "" })
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

func deleteInContainer(p *wrongPlugin) {
	inContainer(func() {
		if link, err := netlink.LinkByName(os.Getenv("CNI_IFNAME")); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
}

// markerFile and hostLink are the objects that some wrong plugins create for an attachment.
func markerFile() string { return "/run/wrong-" + os.Getenv("CNI_CONTAINERID") }

func hasMarker() bool {
	_, err := os.Stat(markerFile())
	return err == nil
}

func mark() error {
	err := os.WriteFile(markerFile(), []byte("x"), 0o644)
	if err != nil {
		_ = os.Remove(markerFile()) // an empty file
	}
	return err
}

func hostLink() *netlink.Veth {
	name := fmt.Sprintf("w%x", crc32.ChecksumIEEE([]byte(os.Getenv("CNI_CONTAINERID"))))
	return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "p" + name}
}

func deleteHostLink() {
	if link, err := netlink.LinkByName(hostLink().Name); err == nil {
		_ = netlink.LinkDel(link)
	}
}

// withHostLink creates a link on the host before ADD and a file after it, and deletes the link during DEL only if the condition is
// true. It does not delete the link if it cannot write the file.
func withHostLink(condition func() bool) func(*wrongPlugin) (int, string) {
	return func(p *wrongPlugin) (int, string) {
		switch p.command {
		case "ADD":
			_ = netlink.LinkAdd(hostLink())
			exit, out := p.call()
			if err := mark(); err != nil {
				return fail(err.Error())
			}
			return exit, out
		case "DEL":
			marked := condition()
			_ = os.Remove(markerFile())
			if marked {
				deleteHostLink()
			}
		}
		return p.call()
	}
}

// alone fails a command if another process runs it.
func alone(command string) func(*wrongPlugin) (int, string) {
	return func(p *wrongPlugin) (int, string) {
		if p.command == command {
			f, err := os.Create("/run/wrong-lock")
			if err != nil || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
				return fail("another process runs")
			}
			time.Sleep(time.Second)
		}
		return p.call()
	}
}

// leaveOnFailure leaves a file if ADD fails, until DEL.
func leaveOnFailure(p *wrongPlugin) (int, string) {
	exit, out := p.call()
	if p.command == "ADD" && exit != 0 {
		_ = mark()
	} else if p.command == "DEL" {
		_ = os.Remove(markerFile())
	}
	return exit, out
}

// first returns the first entry of a list in an object.
func first(object map[string]any, key string) map[string]any {
	return object[key].([]any)[0].(map[string]any)
}

// inSandbox returns the interface of the container in a result.
func inSandbox(object map[string]any) map[string]any {
	all := object["interfaces"].([]any)
	return all[slices.IndexFunc(all, func(v any) bool { return v.(map[string]any)["name"] == os.Getenv("CNI_IFNAME") })].(map[string]any)
}

func deleteRuntimeConfig(key string) func(map[string]any) {
	return func(conf map[string]any) {
		if runtimeConfig, ok := conf["runtimeConfig"].(map[string]any); ok {
			delete(runtimeConfig, key)
		}
	}
}

// breaks maps each case to the calls of a plugin that breaks it.
var breaks = map[string]func(*wrongPlugin) (int, string){
	"VERSION-1": editResult("VERSION", func(o map[string]any) { o["supportedVersions"] = append(o["supportedVersions"].([]any), "latest") }),
	"VERSION-2": editResult("VERSION", func(o map[string]any) { o["cniVersion"] = "1.0.0" }),
	"ADD-1": editResult("ADD", func(o map[string]any) {
		if o["cniVersion"] == "0.4.0" {
			delete(first(o, "ips"), "version")
		}
	}),
	"ADD-2": editResult("ADD", func(o map[string]any) { inSandbox(o)["name"] = "eth1" }),
	"ADD-3": editResult("ADD", func(o map[string]any) {
		o["interfaces"] = append(o["interfaces"].([]any), map[string]any{"name": "none"})
	}),
	"ADD-4": editResult("ADD", func(o map[string]any) { inSandbox(o)["mac"] = "02:00:00:00:00:99" }),
	"ADD-5": editResult("ADD", func(o map[string]any) { inSandbox(o)["mtu"] = 9999 }),
	"ADD-6": editResult("ADD", func(o map[string]any) { first(o, "ips")["address"] = "10.1.0.222/24" }),
	"ADD-7": editResult("ADD", func(o map[string]any) {
		o["routes"] = append(o["routes"].([]any), map[string]any{"dst": "198.51.100.0/24"})
	}),
	"ADD-8": func(p *wrongPlugin) (int, string) {
		if p.command == "ADD" {
			deleteInContainer(p)
		}
		return p.call()
	},
	"ADD-9":        alone("ADD"),
	"ADD-10":       failIf("ADD", func(*wrongPlugin) bool { return strings.Contains(os.Getenv("CNI_ARGS"), "FOO") }),
	"CHAIN-1":      editResult("ADD", func(o map[string]any) { delete(o, "ips") }),
	"CAPABILITY-1": editConfig(deleteRuntimeConfig("mac")),
	"CAPABILITY-2": editConfig(deleteRuntimeConfig("ips")),
	"ERROR-1":      editFailure("", func(o map[string]any) (int, string) { return 0, lab.JSON(o) }),
	"ERROR-2":      editFailure("", func(o map[string]any) (int, string) { return 1, "error\n" + lab.JSON(o) }),
	"ERROR-3":      wrongCode("4", "100"),
	"ERROR-4": editFailure("", func(o map[string]any) (int, string) {
		o["msg"], o["details"] = "a variable is wrong", ""
		return 1, lab.JSON(o)
	}),
	"ERROR-5": wrongCode("1", "7"),
	"ERROR-6": wrongCode("6", "100"),
	"ERROR-7": wrongCode("7", "100"),
	"DEL-1":   succeed("DEL"),
	"DEL-2": failIf("DEL", func(*wrongPlugin) bool {
		missing := true
		inContainer(func() { _, err := netlink.LinkByName(os.Getenv("CNI_IFNAME")); missing = err != nil })
		return missing
	}),
	"DEL-3":   failIf("DEL", func(p *wrongPlugin) bool { return p.conf()["prevResult"] == nil }),
	"DEL-4":   failIf("DEL", func(*wrongPlugin) bool { return os.Getenv("CNI_NETNS") == "" }),
	"DEL-5":   failIf("DEL", func(*wrongPlugin) bool { _, err := os.Stat(os.Getenv("CNI_NETNS")); return err != nil }),
	"DEL-6":   failIf("DEL", func(p *wrongPlugin) bool { return p.conf()["prevResult"] == nil }),
	"CHECK-1": failIf("CHECK", always),
	"CHECK-2": failIf("CHECK", func(*wrongPlugin) (found bool) {
		inContainer(func() {
			routes, _ := netlink.RouteList(nil, netlink.FAMILY_V4)
			found = slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == "198.18.1.0/24" })
		})
		return found
	}),
	"CHECK-3":  succeed("CHECK"),
	"CHECK-4":  succeed("CHECK"),
	"CHECK-5":  succeed("CHECK"),
	"CHECK-6":  succeed("CHECK"),
	"STATUS-1": failIf("STATUS", always),
	"STATUS-2": succeed("STATUS"),
	"STATUS-3": succeed("STATUS"),
	"STATUS-4": wrongCode("50", "7"),
	"GC-1": func(p *wrongPlugin) (int, string) {
		exit, out := p.call()
		if p.command == "GC" {
			out = "{}"
		}
		return exit, out
	},
	"GC-2": succeed("GC"),
	"GC-3": succeed("GC"),
	"DELEGATE-1": func(p *wrongPlugin) (int, string) {
		p.env = append(p.env, "CNI_ARGS=")
		return p.call()
	},
	"DELEGATE-2": editConfig(func(conf map[string]any) { delete(conf, "ipMasq") }),
	"DELEGATE-3": func(p *wrongPlugin) (int, string) {
		if p.command == "ADD" {
			path, _ := invoke.FindInPath("host-local", filepath.SplitList(os.Getenv("CNI_PATH")))
			ipam := wrongPlugin{path: path, env: p.env, stdin: p.stdin}
			if exit, out := ipam.call(); exit != 0 {
				return exit, out
			}
			ipam.env = append(p.env, "CNI_COMMAND=DEL")
			_, _ = ipam.call()
		}
		return p.call()
	},
	"DELEGATE-4": ignoreFailure("DEL"),
	"DELEGATE-5": ignoreFailure("CHECK"),
	"DELEGATE-6": ignoreFailure("GC"),
	"DELEGATE-7": func(p *wrongPlugin) (int, string) { p.quiet = true; return p.call() },
	"LEFT-1":     withHostLink(func() bool { return false }),
	"LEFT-2":     withHostLink(func() bool { return os.Getenv("CNI_NETNS") != "" }),
	"LEFT-3":     withHostLink(func() bool { _, err := os.Stat(os.Getenv("CNI_NETNS")); return err == nil }),
	"LEFT-4":     leaveOnFailure,
	"LEFT-5":     leaveOnFailure,
	"KILL-1":     withHostLink(hasMarker),
	"KILL-2":     withHostLink(hasMarker),
	"PARALLEL-1": alone("ADD"),
	"PARALLEL-2": alone("DEL"),
	"PARALLEL-3": func(p *wrongPlugin) (int, string) {
		switch {
		case p.command == "ADD":
			for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end) && !hasMarker(); {
				time.Sleep(time.Millisecond) // until DEL has begun
			}
		case p.command == "DEL" && hasMarker():
			return 0, ""
		case p.command == "DEL":
			exit, out := p.call()
			_ = mark()
			return exit, out
		}
		return p.call()
	},
	"DISK-1": withHostLink(hasMarker),
	"DISK-2": withHostLink(hasMarker),
	"REUSE-1": func(p *wrongPlugin) (int, string) {
		if p.command == "DEL" {
			deleteInContainer(p)
		}
		return p.call()
	},
}
