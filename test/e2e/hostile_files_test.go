package e2e

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// hostilePlugins is a list whose plugins write files of every kind.
const hostilePlugins = `
	{"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "dataDir": "DIR/leases", "cooldown": 1, "sticky": "pod",
		"ranges": [[{"subnet": "10.1.0.0/16"}]]}},
	{"type": "tuning", "dataDir": "DIR/tuning", "sysctl": {"net.core.somaxconn": "500"}, "mtu": 1400}`

// victim is the target of symbolic links, which no call may change.
const victim = "/run/victim"

// Each spec calls the plugins for a fifth of the files that they write, and with all faults for each of these files. The five
// specs together replace each file.
var _ = DescribeTable("calls of plugins end, and DEL and GC do without the file, if one of their files is replaced by", func(kind int, create func(path string) error) {
	network := newNetwork("1.1.0", hostilePlugins)
	network.RunScript(`exec timeout -s KILL 60 "$PLUGIN"`)
	newContainer := func(id string) *container {
		c := cnitest.NewContainer(id)
		c.RT.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "d"}, {"K8S_POD_NAME", "pod-" + id}}
		return c
	}
	former, present, next := newContainer("former"), newContainer("present"), newContainer("next")
	gc := func() error { return network.WithoutCache(func() error { return network.GC() }) }
	writeFiles := func() (files []string) {
		GinkgoHelper()
		Expect(gc()).To(Succeed())
		Expect(errors.Join(os.RemoveAll(network.Dir), os.RemoveAll("/run/cni"), os.WriteFile(victim, []byte("victim"), 0o640))).To(Succeed())
		network.ClearCache()
		Expect(errors.Join(network.Add(former), network.Del(former), network.Add(present))).To(Succeed())
		for _, dir := range []string{network.Dir, "/run/cni"} {
			Expect(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					files = append(files, path)
				}
				return err
			})).To(Succeed())
		}
		return files
	}
	files := writeFiles()
	Expect(files).To(ContainElements(HaveSuffix("/lock"), HaveSuffix("/last_reserved_ip.0"), HaveSuffix("/releases"), HaveSuffix("/count"),
		HaveSuffix("/present_eth0.json"), Equal("/run/cni/plumb.lock"), Equal("/run/cni/plumb.deleted")))
	for i := range files {
		if (i+kind)%5 != 0 && !nstest.AllFaults() {
			continue
		}
		path := writeFiles()[i]
		Expect(os.Remove(path)).To(Succeed())
		Expect(create(path)).To(Succeed())
		for step, call := range map[string]func() error{
			"CHECK": func() error { return network.Check(present) }, "STATUS": network.Status, "ADD": func() error { return network.Add(next) },
		} {
			if err := call(); err != nil {
				Expect(err.Error()).NotTo(ContainSubstring("signal: killed"), "%s with %s", step, path)
			}
		}
		for step, call := range map[string]func() error{
			"DEL": func() error { return network.Del(present) }, "second DEL": func() error { return network.Del(next) }, "GC": gc,
		} {
			if err := call(); err != nil {
				Expect(err).To(MatchError(ContainSubstring("remove it")), "%s with %s", step, path)
			}
		}
		Expect(os.ReadFile(victim)).To(BeEquivalentTo("victim"), path)
		Expect(os.RemoveAll(path)).To(Succeed())
	}
},
	Entry("a directory", 0, func(path string) error { return os.MkdirAll(path+"/x", 0o700) }),
	Entry("a named pipe", 1, func(path string) error { return unix.Mkfifo(path, 0o600) }),
	Entry("a socket", 2, func(path string) error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err == nil {
			l.SetUnlinkOnClose(false)
			err = l.Close()
		}
		return err
	}),
	Entry("a symbolic link", 3, func(path string) error { return os.Symlink(victim, path) }),
	Entry("a large file", 4, func(path string) error {
		err := os.WriteFile(path, nil, 0o600)
		if err == nil {
			err = os.Truncate(path, 1<<40)
		}
		return err
	}),
)
