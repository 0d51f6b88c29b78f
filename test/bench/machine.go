package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A machine describes the system on which the figures were measured.
type machine struct {
	CPU          string   `json:"cpu"`
	CPUs         int      `json:"cpus"`
	MemoryMiB    uint64   `json:"memoryMiB"`
	Kernel       string   `json:"kernel"`
	Distribution string   `json:"distribution"`
	State        string   `json:"stateOn"` // the file system of dataDir
	Plumb        string   `json:"plumb"`
	Reference    string   `json:"reference"`
	Go           string   `json:"go"` // the version of Go that built plumb, and the architecture
	Programs     []string `json:"programs"`
	Load         string   `json:"load"` // the load at the start of the run
}

func thisMachine(b bins) machine {
	var info unix.Sysinfo_t
	var uts unix.Utsname
	_, _ = unix.Sysinfo(&info), unix.Uname(&uts)
	m := machine{
		CPU: field("/proc/cpuinfo", "model name"), CPUs: runtime.NumCPU(),
		MemoryMiB:    uint64(info.Totalram) * uint64(info.Unit) >> 20,
		Kernel:       unix.ByteSliceToString(uts.Release[:]) + " " + unix.ByteSliceToString(uts.Machine[:]),
		Distribution: strings.Trim(field("/etc/os-release", "PRETTY_NAME"), `"`),
		State:        fileSystem(os.TempDir()),
		Plumb:        about(filepath.Join(b.plumb, "bridge")), Reference: module(filepath.Join(b.reference, "bridge")),
	}
	if owner := firstLine("dpkg-query", "-S", filepath.Join(b.reference, "bridge")); owner != "" {
		pkg, _, _ := strings.Cut(owner, ":")
		m.Reference = firstLine("dpkg-query", "-W", "-f", "${Package} ${Version}", pkg)
	}
	m.Go, m.Reference = toolchain(filepath.Join(b.plumb, "bridge")), m.Reference+", "+toolchain(filepath.Join(b.reference, "bridge"))
	m.Programs = []string{firstLine("iptables", "--version"), firstLine("nft", "--version")}
	load, _ := os.ReadFile("/proc/loadavg")
	m.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	return m
}

// field returns the value after the first "key:" or "key=" in a file.
func field(path, key string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(strings.TrimLeft(rest, " \t:="))
		}
	}
	return ""
}

func fileSystem(dir string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return err.Error()
	}
	names := map[uint32]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.TMPFS_MAGIC: "tmpfs", unix.XFS_SUPER_MAGIC: "xfs",
		unix.BTRFS_SUPER_MAGIC: "btrfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	}
	magic := uint32(s.Type) // s.Type is int32 on some processors, where btrfs's magic number would be negative
	if name := names[magic]; name != "" {
		return name
	}
	return fmt.Sprintf("%#x", magic)
}

// about returns the first line that a plugin prints when it is called without CNI variables.
func about(path string) string {
	cmd := exec.Command(path)
	cmd.Env = []string{}
	out, _ := cmd.CombinedOutput()
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// module returns the module of an executable that was built from a released module, with the module's version, or what
// about returns.
func module(path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil || !strings.HasPrefix(info.Main.Version, "v") {
		return about(path)
	}
	return strings.TrimPrefix(info.Main.Path, "github.com/") + " " + info.Main.Version
}

// toolchain returns the version of Go that built an executable, and the executable's architecture.
func toolchain(path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	for _, s := range info.Settings {
		if s.Key == "GOARCH" {
			return info.GoVersion + " " + s.Value
		}
	}
	return info.GoVersion
}

func firstLine(name string, args ...string) string {
	out, err := exec.CommandContext(context.Background(), name, args...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// sizes returns the sizes of the named files in dir, in bytes.
func sizes(dir string, names []string) map[string]int64 {
	all := map[string]int64{}
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			all[name] = info.Size()
		}
	}
	return all
}

func executables(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no executables in " + dir)
	}
	return names, nil
}

// A usage is the processor time that all processes except this one and its children have used until a given time.
type usage struct {
	at     time.Time
	others time.Duration
}

func startUsage() usage {
	stat, _ := os.ReadFile("/proc/stat")
	var user, nice, system, idle, wait, irq, soft, steal int64
	_, _ = fmt.Sscanf(string(stat), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &soft, &steal)
	u := usage{time.Now(), time.Duration(user+nice+system+irq+soft+steal) * 10 * time.Millisecond} // USER_HZ is 100
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if unix.Getrusage(who, &r) == nil {
			u.others -= time.Duration(r.Utime.Nano() + r.Stime.Nano())
		}
	}
	return u
}

// since returns the share of all processors that other processes have used since u.
func (u usage) since() float64 {
	now := startUsage()
	return max(0, float64(now.others-u.others)/float64(now.at.Sub(u.at))/float64(runtime.NumCPU()))
}
