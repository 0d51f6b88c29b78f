package doctor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestDoctor(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "cmd/plumb/internal/doctor")
}

// A testHost is a host with its own directories, on which the built plumb runs.
type testHost struct {
	*nstest.NS
	dir   string
	built string   // the directory of the built executables
	args  []string // further arguments of plumb doctor
}

// newTestHost returns a host with these plugins and without a configuration.
func newTestHost(plugins ...string) *testHost {
	GinkgoHelper()
	tb := GinkgoTB()
	n := &testHost{NS: nstest.NewHost(tb), dir: tb.TempDir(), built: nstest.Build(tb, append(plugins, "plumb")...)}
	for _, dir := range []string{n.confDir(), n.bin(), n.pools(), filepath.Join(n.dir, "cache")} {
		Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	}
	for _, p := range plugins {
		n.sh(fmt.Sprintf("install -m 0755 %s/%s %s", n.built, p, n.bin()))
	}
	return n
}

func (n *testHost) confDir() string { return filepath.Join(n.dir, "net.d") }
func (n *testHost) bin() string     { return filepath.Join(n.dir, "bin") }
func (n *testHost) pools() string   { return filepath.Join(n.dir, "networks") }

// write writes a configuration file. In text, POOLS stands for the directory of reservations.
func (n *testHost) write(name, text string) {
	GinkgoHelper()
	text = strings.ReplaceAll(text, "POOLS", n.pools())
	Expect(os.WriteFile(filepath.Join(n.confDir(), name), []byte(text), 0o644)).To(Succeed())
}

func (n *testHost) change(name, from, to string) {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), filepath.Join(n.confDir(), name))
	Expect(text).To(ContainSubstring(from))
	n.write(name, strings.ReplaceAll(text, from, to))
}

// writeVendor writes the plugin vendor, which supports 0.4.0 and 1.0.0, and does nothing.
func (n *testHost) writeVendor() {
	GinkgoHelper()
	n.writeScript("vendor", `cat >/dev/null; echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'`)
}

// writeScript writes a plugin that is a shell script.
func (n *testHost) writeScript(name, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(n.bin(), name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)).To(Succeed())
}

// buildOld builds a plugin of the release v1.9.9.
func (n *testHost) buildOld(plugin, path string) {
	GinkgoHelper()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-X github.com/plumb-cni/plumb/v2/pkg/version.linked=v1.9.9", "-o", path, "./plugins/"+plugin)
	cmd.Dir, cmd.Env = nstest.Root(GinkgoTB()), append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// sh runs a command on the host. PATH contains the built plumb.
func (n *testHost) sh(command string) string {
	GinkgoHelper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = append(os.Environ(), "PATH="+n.built+":"+os.Getenv("PATH"))
	var out []byte
	err := n.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	Expect(err).NotTo(HaveOccurred(), "%s\n%s", command, out)
	return string(out)
}

// plumb runs plumb on the host, and returns its stdout and exit status.
func (n *testHost) plumb(args ...string) (stdout string, status int) {
	GinkgoHelper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(filepath.Join(n.built, "plumb"), args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := n.Do(cmd.Run)
	status = cmd.ProcessState.ExitCode()
	Expect(errOut.String()).To(BeEmpty())
	Expect(err == nil).To(Equal(status == 0))
	return out.String(), status
}

// directories returns the arguments that name the directories of the host.
func (n *testHost) directories() []string {
	return append([]string{"--conf-dir", n.confDir(), "--cni-path", n.bin(), "--cache-dir", filepath.Join(n.dir, "cache"), "--data-dir", n.pools()}, n.args...)
}

func (n *testHost) doctor(files ...string) doctor.Report {
	GinkgoHelper()
	out, status := n.plumb(append(append([]string{"doctor", "-o", "json"}, n.directories()...), files...)...)
	var report doctor.Report
	Expect(json.Unmarshal([]byte(out), &report)).To(Succeed(), out)
	Expect(report.Errors).To(BeEmpty())
	Expect(status == 1).To(Equal(len(report.Findings) > 0), "exit status %d", status)
	for _, f := range slices.Concat(report.Findings, report.Notes) {
		requireSolution(f, report.Files)
	}
	return report
}

// requireSolution fails the test unless the finding says how to fix it: with a command for sh, with an edit that names one of the
// files, or with sentences of which the last one may end with a command.
func requireSolution(f doctor.Finding, files []string) {
	GinkgoHelper()
	Expect(f.Lines()).NotTo(BeEmpty(), f.What)
	if f.Fix != "" {
		Expect(f.Fix).To(MatchRegexp("^[a-z]+ "))
		Expect(exec.Command("sh", "-n", "-c", f.Fix).Run()).To(Succeed(), f.Fix)
	}
	if f.Edit != "" {
		file, text, _ := strings.Cut(f.Edit, ": ")
		Expect(files).To(ContainElement(file), f.Edit)
		Expect(text).To(MatchRegexp("^[a-z]+ "), f.Edit)
	}
	if f.Advice != "" {
		Expect(f.Advice).To(MatchRegexp(`^[A-Z].*(\.|: [a-z]+ .*[^.])$`))
		Expect(f.Advice).NotTo(ContainSubstring("the text"))
	}
}

// find returns the finding of a check that contains what in its place and text. It fails the test if another check
// found something.
func (n *testHost) find(check, what string) doctor.Finding {
	GinkgoHelper()
	var found []doctor.Finding
	for _, f := range n.doctor().Findings {
		Expect(f.Check).To(Equal(check), "%s: %s", f.Where, f.What)
		if strings.Contains(f.Where+": "+f.What, what) {
			found = append(found, f)
		}
	}
	Expect(found).NotTo(BeEmpty(), "no finding of %s with %q; if the check is new, is it in doctor.go, and is PLUMB_BIN up to date?", check, what)
	return found[0]
}

func isCommand(f doctor.Finding) bool { return f.Fix != "" }

// requireFixed follows the advice of a finding, or calls byHand if the advice is not a command. Afterwards, doctor
// must find nothing.
func (n *testHost) requireFixed(f doctor.Finding, byHand func()) {
	GinkgoHelper()
	if isCommand(f) {
		Expect(byHand).To(BeNil(), "the advice is a command: %s", f.Fix)
		n.sh(f.Fix)
	} else {
		Expect(byHand).NotTo(BeNil(), "no command fixes it: %s", f.Lines())
		byHand()
	}
	Expect(n.doctor().Findings).To(BeEmpty(), "after %s", f.Lines())
}
