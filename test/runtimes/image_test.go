package runtimes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// image is the name of the image of all containers. It has the program workload only.
const image = "plumb.test/workload:1"

// imageTar writes the image to a file that runtimes can import, and returns its path.
func imageTar(dir string) string {
	GinkgoHelper()
	text, err := workloadImage()
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(dir, "workload.tar")
	Expect(os.WriteFile(path, text, 0o644)).To(Succeed())
	return path
}

var workloadImage = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "workload")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "./workload")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build workload: %w\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "workload"))
	if err != nil {
		return nil, err
	}
	return ociImage(program)
})

// ociImage returns a tar archive with an OCI image layout of one layer with one program.
func ociImage(program []byte) ([]byte, error) {
	var layer archive
	for _, d := range []string{"dev/", "etc/", "proc/", "sys/", "tmp/"} {
		layer.add(d, 0o755, nil)
	}
	layer.add("workload", 0o755, program)
	layer.add("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/\n"))
	layerText, err := layer.close()
	if err != nil {
		return nil, err
	}

	var out archive
	blob := func(kind string, text []byte) map[string]any {
		sum := fmt.Sprintf("%x", sha256.Sum256(text))
		out.add("blobs/sha256/"+sum, 0o644, text)
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sum, "size": len(text)}
	}
	layerBlob := blob("layer.v1.tar", layerText)
	config := blob("config.v1+json", mustMarshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/workload"}, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layerBlob["digest"]}},
	}))
	manifest := blob("manifest.v1+json", mustMarshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{layerBlob},
	}))
	manifest["annotations"] = map[string]string{
		"io.containerd.image.name": image, "org.opencontainers.image.ref.name": image,
	}
	out.add("index.json", 0o644, mustMarshal(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}}))
	out.add("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return out.close()
}

// mustMarshal returns v as JSON.
func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	return text
}

// An archive writes a tar archive. close returns the first error.
type archive struct {
	buf bytes.Buffer
	tar *tar.Writer
	err error
}

// add adds a file, or a folder if the name ends with a slash.
func (a *archive) add(name string, mode int64, text []byte) {
	if a.tar == nil {
		a.tar = tar.NewWriter(&a.buf)
	}
	if a.err == nil {
		a.err = a.tar.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(text))})
	}
	if a.err == nil {
		_, a.err = a.tar.Write(text)
	}
}

// close returns the archive.
func (a *archive) close() ([]byte, error) {
	if a.err != nil {
		return nil, a.err
	}
	err := a.tar.Close()
	return a.buf.Bytes(), err
}
