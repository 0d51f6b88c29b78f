package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// TestGoInstall installs a plugin and the tool with go install from a module proxy on this machine, which has one tagged
// version. go install refuses a module whose path does not end in the major version, or whose go.mod replaces modules. The
// executables know their version, although no script passes it to the linker.
func TestGoInstall(t *testing.T) {
	root, tagged := nstest.Root(t), module.Version{Path: "github.com/plumb-cni/plumb/v2", Version: "v2.98.0"}
	proxy, bin, mods := t.TempDir(), t.TempDir(), t.TempDir()
	versions := filepath.Join(proxy, tagged.Path, "@v")
	nstest.Must(t, os.MkdirAll(versions, 0o755))
	archive, err := os.Create(filepath.Join(versions, tagged.Version+".zip"))
	nstest.Must(t, err)
	sources := t.TempDir()
	checkout(t, sources)
	nstest.Must(t, zip.CreateFromDir(archive, tagged, sources))
	nstest.Must(t, archive.Close())
	run(t, root, nil, "cp", "go.mod", filepath.Join(versions, tagged.Version+".mod"))
	for name, text := range map[string]string{"list": tagged.Version, tagged.Version + ".info": `{"Version": "` + tagged.Version + `"}`} {
		nstest.Must(t, os.WriteFile(filepath.Join(versions, name), []byte(text+"\n"), 0o644))
	}
	downloads := strings.TrimSpace(run(t, root, nil, "go", "env", "GOMODCACHE")) + "/cache/download"
	for path, want := range map[string]string{
		"plugins/loopback": "CNI loopback plugin " + tagged.Version + "\n",
		"cmd/plumb":        "plumb " + tagged.Version + "\n",
	} {
		run(t, t.TempDir(), []string{"GOPROXY=file://" + proxy + ",file://" + downloads, "GOSUMDB=off", "GOFLAGS=-modcacherw", "CGO_ENABLED=0",
			"GOBIN=" + bin, "GOMODCACHE=" + mods, "GOWORK=off"}, "go", "install", "-trimpath", tagged.Path+"/"+path+"@"+tagged.Version)
		got := run(t, bin, []string{"CNI_COMMAND="}, "sh", "-c", `"./$0" --version 2>&1`, filepath.Base(path))
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: want %q, got %q", path, want, got)
		}
	}
}
