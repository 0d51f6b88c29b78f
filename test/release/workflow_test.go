package release

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A job is a job of a workflow.
type job struct {
	Uses        string
	Needs       string
	Permissions map[string]string
	Steps       []struct{ Run string }
}

func (j job) commands() string {
	var all strings.Builder
	for _, s := range j.Steps {
		all.WriteString(s.Run + "\n")
	}
	return all.String()
}

// TestReleaseWorkflow checks in which order the workflow of a release works, and which job can sign.
func TestReleaseWorkflow(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(nstest.Root(t), ".github/workflows/release.yml"))
	nstest.Must(t, err)
	var workflow struct{ Jobs map[string]job }
	nstest.Must(t, yaml.Unmarshal(text, &workflow))
	jobs := workflow.Jobs
	if jobs["test"].Uses != "./.github/workflows/test.yml" || jobs["build"].Needs != "test" || jobs["publish"].Needs != "build" || len(jobs) != 3 {
		t.Errorf("the jobs must be test, build and publish, each after the one before, got %+v", jobs)
	}
	for name, j := range jobs {
		if _, signs := j.Permissions["id-token"]; signs != (name == "publish") {
			t.Errorf("job %s has the permissions %v, and only publish may sign", name, j.Permissions)
		}
	}
	build, publish := jobs["build"].commands(), jobs["publish"].commands()
	inOrder(t, build, "merge-base --is-ancestor HEAD origin/main", "gh release view", "scripts/vuln.sh", "scripts/release.sh", "gh release create")
	if !strings.Contains(build, " --draft ") || strings.Contains(publish, "scripts/release.sh") {
		t.Error("build must create a draft, and publish must not build")
	}
	inOrder(t, publish, "sha256sum", "cosign sign-blob", "crane push", `cosign sign --yes --recursive "$image"`, "--draft=false", "crane tag", "helm push")
	for _, program := range []string{"cosign", "crane", "helm"} {
		if !regexp.MustCompile(`go install \S+/cmd/` + program + `@v\d+\.\d+\.\d+\n`).MatchString(publish) {
			t.Errorf("the version of %s is not pinned", program)
		}
	}
}

// inOrder checks that the text contains the parts in this order.
func inOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	var at []int
	for _, part := range parts {
		at = append(at, strings.Index(text, part))
	}
	if at[0] < 0 || !slices.IsSorted(at) {
		t.Errorf("want %q in this order (found at %v):\n%s", parts, at, text)
	}
}
