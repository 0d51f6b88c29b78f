package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = It("plumb doctor prints a finding on one line, and the command, the edit and the sentence on the next lines", func() {
	var out strings.Builder
	Expect(printReport(&out, &doctor.Report{Findings: []doctor.Finding{
		{Where: "host", What: "CHECK fails: one\ntwo", Solution: plugins.Solution{Fix: "true", Advice: "Then\nlook."}},
		{Where: "kernel", What: "three", Solution: plugins.Solution{Edit: "/f: four", Advice: "Five."}},
		{Where: "host", What: "container " + id("4c1f0a77e1d2") + " is gone", Solution: plugins.Solution{Fix: "true"}, Details: []string{"five"}},
		{Where: "host", What: "six", Solution: plugins.Solution{Fix: "true"}},
	}}, false)).To(Succeed())
	Expect(out.String()).To(HavePrefix("host: CHECK fails: one; two\n    true\n    Then; look.\nkernel: three\n    edit: /f: four\n    Five.\nhost: container 4c1f0a77e1d2 is gone\nhost: six\n    true\n4 problems ("))
})

var _ = It("deploy/doctor.yaml mounts the directories that plumb reads, at their own paths", func() {
	for _, variable := range []string{"NETCONFPATH", "CNI_PATH"} {
		GinkgoT().Setenv(variable, "")
	}
	text := nstest.ReadFile(GinkgoTB(), filepath.Join(nstest.Root(GinkgoTB()), "deploy/doctor.yaml"))
	var mounted []string
	for _, m := range regexp.MustCompile(`\{name: (\w+), mountPath: ([^,}]+)[^}]*}`).FindAllStringSubmatch(text, -1) {
		Expect(text).To(ContainSubstring("- name: "+m[1]+"\n      hostPath: {path: "+strings.Replace(m[2], "/var/run", "/run", 1)+", "), "%s", m[0])
		mounted = append(mounted, m[2]+"/")
		Expect(strings.Contains(m[0], ", readOnly: true}")).To(Equal(m[1] != "state" && m[1] != "run"), "only plugins write, and only there: %s", m[0])
	}
	p := newPlaces(pflag.NewFlagSet("", pflag.ContinueOnError))
	for _, dir := range slices.Concat([]string{p.DataDir, p.RunDir, "/run/netns", "/var/run/netns"}, p.ConfDirs, p.PluginPath, p.CacheDirs) {
		Expect(slices.ContainsFunc(mounted, func(m string) bool { return strings.HasPrefix(dir+"/", m) })).To(BeTrue(), dir)
	}
})
