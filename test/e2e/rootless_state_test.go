package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// A userBed is a process of user 1000 that is root in a user namespace and a mount namespace, with empty directories
// /run/netns and /var/lib. The specs run plugins in its namespaces.
type userBed struct {
	enter []string      // the command that enters the namespaces
	saved func() string // called after ADD; may be nil
}

// asRoot prepares /run, which belongs to root and in which root has used plugins, for a userBed.
const asRoot = `
	mount --make-rprivate /
	mount -t tmpfs -o mode=755 none /run
	mkdir -p /run/netns /run/cni /run/user/1000
	mkdir -m 700 /run/cni/tuning /run/cni/host-device /run/cni/ipvlan
	(umask 077; touch /run/cni/plumb.lock /run/cni/plumb.deleted)
	chown 1000:1000 /run/user/1000`

// newUserBed starts the process. root is a script that root runs in the new mount namespace, flags are flags of unshare(1),
// and user is a script that the process runs in its user namespace.
func newUserBed(root, flags, user string) userBed {
	GinkgoHelper()
	const script = `%s
		exec setpriv --reuid=1000 --regid=1000 --clear-groups unshare %s sh -ec '
			mount -t tmpfs none /run/netns
			mount -t tmpfs none /var/lib
			%s
			echo ready
			exec cat'`
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", fmt.Sprintf(script, root, flags, user))
	startReady(cmd)
	bed := userBed{enter: []string{"nsenter", fmt.Sprintf("--target=%d", cmd.Process.Pid), "--user", "--mount"}}
	if strings.Contains(flags, "n") {
		bed.enter = append(bed.enter, "--net")
	}
	return bed
}

// run runs a program in the namespaces of the process.
func (b userBed) run(stdin string, environ []string, words ...string) (stdout, stderr string, err error) {
	cmd := exec.Command(b.enter[0], append(b.enter[1:], words...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = strings.NewReader(stdin), &out, &errs, append(os.Environ(), environ...)
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// sh runs a script, which must succeed, and returns its output.
func (b userBed) sh(script string) string {
	GinkgoHelper()
	out, errs, err := b.run("", nil, "sh", "-ec", script)
	Expect(err).NotTo(HaveOccurred(), script+": "+errs)
	return out
}

// A userCall is a plugin with a configuration.
type userCall struct {
	plugin, keys string
	chained      bool
}

// userCalls contains a call for each plugin. DEV is a device of the host.
var userCalls = []userCall{
	{"bridge", `"bridge": "b0", IPAM`, false},
	{"bridge", `"bridge": "b1", "isGateway": true, "ipMasq": true, IPAM`, false},
	{"ptp", `"ipMasq": true, IPAM`, false},
	{"macvlan", `"master": "DEV", IPAM`, false},
	{"ipvlan", `"master": "DEV", IPAM`, false},
	{"vlan", `"master": "DEV", "vlanId": 5, IPAM`, false},
	{"dummy", `IPAM`, false},
	{"host-device", `"device": "DEV", IPAM`, false},
	{"loopback", `"x": 1`, false},
	{"tuning", `"sysctl": {"net.ipv4.conf.all.arp_notify": "1"}`, true},
	{"tuning", `"mtu": 1400, "mac": "02:00:00:00:00:07"`, true},
	{"portmap", `"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}`, true},
	{"firewall", `"x": 1`, true},
	{"bandwidth", `"ingressRate": 1000000, "ingressBurst": 1000000`, true},
	{"sbr", `"x": 1`, true},
	{"host-access", `"hostAddresses": ["192.0.2.77"]`, true},
	{"vrf", `"vrfname": "red"`, true},
	{"route-override", `"flushroutes": true`, true},
}

// outcomes runs the verbs of the call for a new container, and returns the error or "ok" for each. It also returns the
// warnings of ADD and the result of the field saved.
func (b userBed) outcomes(bin string, c userCall, id string) map[string]string {
	GinkgoHelper()
	dev := "d" + id
	b.sh(fmt.Sprintf("touch /run/netns/%s; unshare --net=/run/netns/%[1]s ip link set lo up", id))
	_, _, _ = b.run("", nil, "sh", "-c", fmt.Sprintf("ip link add %s type veth peer name p%s; ip link set %[1]s up", dev, id)) // fails if the host belongs to another user namespace
	const prev = `{"cniVersion": "1.0.0", "interfaces": [{"name": "veth%[1]s"}, {"name": "eth0", "sandbox": "/run/netns/%[1]s"}], "ips": [{"address": "10.9.0.2/24", "interface": 1}]}`
	result := ""
	if c.chained {
		_, _, _ = b.run("", nil, "sh", "-c", fmt.Sprintf("ip -n %[1]s link add eth0 type veth peer name veth%[1]s; ip -n %[1]s link set veth%[1]s netns $$; ip link set veth%[1]s up; ip -n %[1]s address add 10.9.0.2/24 dev eth0; ip -n %[1]s link set eth0 up", id))
		result = fmt.Sprintf(prev, id)
	}
	got := map[string]string{}
	for _, verb := range verbs {
		version := "1.0.0"
		if verb == "GC" || verb == "STATUS" {
			version = "1.1.0"
		}
		keys := strings.NewReplacer("IPAM", `"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}`, "DEV", dev).Replace(c.keys)
		conf := fmt.Sprintf(`{"cniVersion": %q, "name": "n", "type": %q, %s`, version, c.plugin, keys)
		if result != "" && verb != "GC" && verb != "STATUS" {
			conf += `, "prevResult": ` + result
		}
		if verb == "GC" {
			conf += fmt.Sprintf(`, "cni.dev/valid-attachments": [{"containerID": %q, "ifname": %q}]`, id, ifNameOf(c))
		}
		environ := []string{"CNI_COMMAND=" + verb, "CNI_PATH=" + bin}
		if verb != "GC" && verb != "STATUS" {
			environ = append(environ, "CNI_CONTAINERID="+id, "CNI_NETNS=/run/netns/"+id, "CNI_IFNAME="+ifNameOf(c))
		}
		stdout, stderr, err := b.run(conf+"}", environ, filepath.Join(bin, c.plugin))
		got[verb] = "ok"
		if err != nil {
			var failure struct{ Msg, Details string }
			_ = json.Unmarshal([]byte(stdout), &failure)
			got[verb] = failure.Msg + " " + failure.Details + stderr
		} else if verb == "ADD" {
			result, got["warning"] = stdout, stderr
			if b.saved != nil {
				got["saved"] = b.saved()
			}
		}
	}
	return got
}

func ifNameOf(c userCall) string {
	if c.plugin == "loopback" {
		return "lo"
	}
	return "eth0"
}

// copyUp replaces /run by a writable directory with symbolic links to what was there, as RootlessKit does.
const copyUp = `
	mkdir -p /var/lib/run
	mount --rbind /run /var/lib/run
	mount -t tmpfs none /run
	mkdir /run/.ro
	mount --move /var/lib/run /run/.ro
	rmdir /var/lib/run
	for f in /run/.ro/*; do ln -s .ro/${f##*/} /run; done`

var verbs = []string{"STATUS", "ADD", "CHECK", "GC", "DEL"}

// pluginsOf returns the names of the plugins, with host-local.
func pluginsOf(calls []userCall) []string {
	names := []string{"host-local"}
	for _, c := range calls {
		if !slices.Contains(names, c.plugin) {
			names = append(names, c.plugin)
		}
	}
	return names
}

// The spec calls each plugin with each verb, which takes some seconds.
var _ = DescribeTable("a plugin succeeds wherever the reference plugin succeeds, for root of a user namespace beside plugins of root", func(flags string) {
	bed := newUserBed(asRoot, flags, "")
	bin := copyForUsers(pluginsOf(userCalls)...)
	for i, c := range userCalls {
		own := bed.outcomes(bin, c, fmt.Sprintf("p%d", i))
		if _, err := os.Stat(filepath.Join(debianDir, c.plugin)); err != nil {
			continue // the reference has no such plugin
		}
		reference := bed.outcomes(debianDir, c, fmt.Sprintf("r%d", i))
		for _, verb := range verbs[1:] { // Debian's plugins have no STATUS
			if reference[verb] == "ok" && !(verb == "CHECK" && reference["ADD"] != "ok") {
				Expect(own[verb]).To(Equal("ok"), "%s %s", verb, c)
			}
		}
		if reference["ADD"] == "ok" {
			Expect(own["STATUS"]).To(Equal("ok"), "STATUS %s", c)
			Expect(own["GC"]).To(Equal("ok"), "GC %s", c)
		}
	}
},
	Entry("with a network namespace", "-Urnm"),
	Entry("in the parent's network namespace, which the process may not enter again", "-Urm"),
)

var _ = DescribeTable("plugins of a user namespace save state in a directory that they can write:", func(root, user, where, lockDir string) {
	bed := newUserBed(asRoot+root, "-Urnm", user)
	calls := []userCall{
		{"tuning", `"sysctl": {"net.ipv4.conf.all.arp_notify": "1"}, "mtu": 1400`, true},
		{"host-device", `"device": "DEV"`, false},
	}
	bin := copyForUsers(append(pluginsOf(calls), "plumb")...)
	files := map[string]string{"tuning": "c0_eth0.json", "host-device": "*.json"}
	for i, c := range calls {
		id := fmt.Sprintf("c%d", i)
		if where != "" {
			bed.saved = func() string {
				return bed.sh(fmt.Sprintf("ls %s/%s/%s %s/plumb.lock 2>&1 || true; %s/plumb list -o json", where, c.plugin, files[c.plugin], lockDir, bin))
			}
		}
		got := bed.outcomes(bin, c, id)
		for _, verb := range verbs {
			Expect(got[verb]).To(Equal("ok"), "%s %s", verb, c)
		}
		Expect(got["saved"]).NotTo(ContainSubstring("No such file"), c.plugin)
		if where != "" {
			Expect(got["saved"]).To(ContainSubstring(`"where": "%s/%s/`, where, c.plugin), "plumb list")
		}
		if where == "" {
			Expect(got["warning"]).To(ContainSubstring("no state is saved for DEL"), c.plugin)
			Expect(got["warning"]).To(ContainSubstring("the call continues without the lock"), c.plugin)
		} else {
			Expect(got["warning"]).NotTo(ContainSubstring("can be written"), c.plugin)
			Expect(bed.sh("ls "+where+"/"+c.plugin)).To(BeEmpty(), "files of "+c.plugin+" after DEL")
			Expect(bed.sh("ls " + lockDir)).To(ContainSubstring("plumb.deleted"))
		}
		if c.plugin == "host-device" {
			Expect(bed.sh("ip -br link")).To(ContainSubstring("d"+id), "the device is back")
		}
	}
},
	Entry("root's directories are in /run/cni", "", "", "/run/user/1000/cni", "/run/user/1000/cni"),
	Entry("/run is RootlessKit's copy", "", copyUp, "/run/user/1000/cni", "/run/user/1000/cni"),
	Entry("only the plugins' directories in /run/cni are root's", "", copyUp+`
		cni=$(realpath /run/cni)
		rm /run/cni
		mkdir /run/cni
		ln -s $cni/tuning $cni/host-device /run/cni`, "/run/user/1000/cni", "/run/cni"),
	Entry("/run/cni is read-only", "", copyUp+`
		rm /run/cni
		mkdir /run/cni
		mount --bind /run/cni /run/cni
		mount -o remount,bind,ro /run/cni`, "/run/user/1000/cni", "/run/user/1000/cni"),
	Entry("/run is the user's", "", "mount -t tmpfs none /run; mkdir /run/netns; mount -t tmpfs none /run/netns", "/run/cni", "/run/cni"),
	Entry("no directory can be written", "\n\trmdir /run/user/1000", "", "", ""),
)
