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

// image is the name of the image that all containers run. Its only program is workload.
const image = "plumb.test/workload:1"

// writeImage writes the image to a tar archive in dir, which runtimes can import. It returns the
// path of the archive.
func writeImage(dir string) string {
	GinkgoHelper()
	content, err := buildImage()
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(dir, "workload.tar")
	Expect(os.WriteFile(path, content, 0o644)).To(Succeed())
	return path
}

// buildImage compiles the program workload once, and returns the image as a tar archive.
var buildImage = sync.OnceValues(func() ([]byte, error) {
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

// ociImage returns a tar archive in the OCI image layout. The image's only layer contains the
// program and the directories at which a runtime mounts file systems.
func ociImage(program []byte) ([]byte, error) {
	var layer archive
	for _, d := range []string{"dev/", "etc/", "proc/", "sys/", "tmp/"} {
		layer.add(d, 0o755, nil)
	}
	layer.add("workload", 0o755, program)
	layer.add("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/\n"))
	layerContent, err := layer.close()
	if err != nil {
		return nil, err
	}

	var out archive
	addBlob := func(mediaType string, content []byte) (descriptor map[string]any) {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		out.add("blobs/sha256/"+sum, 0o644, content)
		return map[string]any{"mediaType": "application/vnd.oci.image." + mediaType, "digest": "sha256:" + sum, "size": len(content)}
	}
	layerBlob := addBlob("layer.v1.tar", layerContent)
	config := addBlob("config.v1+json", mustMarshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/workload"}, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layerBlob["digest"]}},
	}))
	manifest := addBlob("manifest.v1+json", mustMarshal(map[string]any{
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

func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	return text
}

// An archive builds a tar archive in memory. close returns the first error of all calls.
type archive struct {
	buf bytes.Buffer
	tar *tar.Writer
	err error
}

// add adds a file, or a directory if the name ends with a slash.
func (a *archive) add(name string, mode int64, content []byte) {
	if a.tar == nil {
		a.tar = tar.NewWriter(&a.buf)
	}
	if a.err == nil {
		a.err = a.tar.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))})
	}
	if a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

// close ends the archive and returns it.
func (a *archive) close() ([]byte, error) {
	if a.err != nil {
		return nil, a.err
	}
	err := a.tar.Close()
	return a.buf.Bytes(), err
}
