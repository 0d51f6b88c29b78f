package credentials

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A volume is a projected volume, which the test writes as the kubelet does (AtomicWriter in k8s.io/kubernetes/pkg/volume/util).
type volume struct {
	dir      string
	versions int
}

func newVolume(t *testing.T) *volume {
	v := &volume{dir: t.TempDir()}
	for _, name := range []string{"token", "ca.crt"} {
		if err := os.Symlink("..data/"+name, filepath.Join(v.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// renew replaces the content of the volume with files that contain the text.
func (v *volume) renew(t *testing.T, text string) {
	t.Helper()
	v.versions++
	old, _ := os.Readlink(filepath.Join(v.dir, "..data"))
	name := fmt.Sprintf("..version%d", v.versions)
	dir := filepath.Join(v.dir, name)
	err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "token"), []byte("token-"+text+"\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("ca-"+text), 0o644),
		os.Symlink(name, filepath.Join(v.dir, "..data_tmp")), os.Rename(filepath.Join(v.dir, "..data_tmp"), filepath.Join(v.dir, "..data")))
	if err == nil && old != "" {
		err = os.RemoveAll(filepath.Join(v.dir, old))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// read returns the token and the CA in a kubeconfig file.
func read(t *testing.T, file string) (token, ca string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string
				CA     []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct{ User struct{ Token string } }
	}
	if err := json.Unmarshal(text, &k); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if server := k.Clusters[0].Cluster.Server; server != "https://[fd00::1]:443" {
		t.Errorf("server %q", server)
	}
	return k.Users[0].User.Token, string(k.Clusters[0].Cluster.CA)
}

func TestFollowCopiesEachRenewal(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	v := newVolume(t)
	v.renew(t, "0")
	w := Writer{From: v.dir, File: filepath.Join(t.TempDir(), "kubeconfig"), Server: ServerFromEnvironment(), Every: time.Hour}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	written, done := make(chan bool, 100), make(chan error)
	go func() { done <- w.Follow(ctx, func() { written <- true }) }()
	for i := range 20 {
		want := fmt.Sprint(i)
		if i > 0 {
			v.renew(t, want)
		}
		for token := ""; token != "token-"+want; {
			select {
			case <-written:
			case err := <-done:
				t.Fatalf("renewal %d: Follow has ended: %v", i, err)
			}
			var ca string
			token, ca = read(t, w.File)
			if strings.TrimPrefix(token, "token-") != strings.TrimPrefix(ca, "ca-") {
				t.Fatalf("the token %q comes with %q", token, ca)
			}
		}
	}
	info, err := os.Stat(w.File)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if token, _ := read(t, w.File); token != "token-19" {
		t.Errorf("%q after the end", token)
	}
}

func TestFollowNamesWhatIsMissing(t *testing.T) {
	v := newVolume(t)
	dir := t.TempDir()
	for want, w := range map[string]Writer{
		filepath.Join(v.dir, "token"): {From: v.dir, File: filepath.Join(dir, "kubeconfig"), Every: time.Hour},
		"absent":                      {From: filepath.Join(dir, "absent"), File: filepath.Join(dir, "kubeconfig"), Every: time.Hour},
	} {
		if err := w.Follow(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	v.renew(t, "0")
	w := Writer{From: v.dir, File: filepath.Join(dir, "absent", "kubeconfig"), Every: time.Hour}
	if err := w.Follow(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("want an error with the directory, got %v", err)
	}
}

func TestFollowGivesAReplacedFileItsMode(t *testing.T) {
	v := newVolume(t)
	v.renew(t, "0")
	w := Writer{From: v.dir, File: filepath.Join(t.TempDir(), "kubeconfig"), Server: "https://[fd00::1]:443", Every: time.Hour}
	if err := os.WriteFile(w.File, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.Follow(ctx, cancel); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(w.File); err != nil || info.Mode() != 0o600 {
		t.Errorf("want mode 0600, got %v (%v)", info.Mode(), err)
	}
}

func TestFollowRestoresAFileThatAnotherPodHasReplaced(t *testing.T) {
	v := newVolume(t)
	v.renew(t, "0")
	w := Writer{From: v.dir, File: filepath.Join(t.TempDir(), "kubeconfig"), Server: "https://[fd00::1]:443", Every: time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	writes := 0
	err := w.Follow(ctx, func() {
		writes++
		if token, _ := read(t, w.File); token != "token-0" {
			t.Errorf("token %q", token)
		}
		if writes == 2 {
			cancel()
		} else if err := os.WriteFile(w.File, []byte("from the former pod"), 0o600); err != nil {
			t.Error(err)
		}
	})
	if err != nil || writes != 2 {
		t.Errorf("want 2 writes, got %d (%v)", writes, err)
	}
}
