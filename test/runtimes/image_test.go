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

// image is the name of the image that all containers are made of: tenant, and nothing
// else.
const image = "plumb.test/tenant:1"

// imageTar writes the image, made once a test process, into a file of the kind that
// runtimes import.
func imageTar(dir string) string {
	GinkgoHelper()
	text, err := tenantImage()
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(dir, "tenant.tar")
	Expect(os.WriteFile(path, text, 0o644)).To(Succeed())
	return path
}

var tenantImage = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "tenant")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "./tenant")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build tenant: %w\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "tenant"))
	if err != nil {
		return nil, err
	}
	return ociImage(program)
})

// ociImage is an OCI image layout of one layer with one program, as a tar.
func ociImage(program []byte) ([]byte, error) {
	var layer archive
	for _, d := range []string{"dev/", "etc/", "proc/", "sys/", "tmp/"} {
		layer.add(d, 0o755, nil)
	}
	layer.add("tenant", 0o755, program)
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
	config := blob("config.v1+json", object(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/tenant"}, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layerBlob["digest"]}},
	}))
	manifest := blob("manifest.v1+json", object(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{layerBlob},
	}))
	manifest["annotations"] = map[string]string{
		"io.containerd.image.name": image, "org.opencontainers.image.ref.name": image,
	}
	out.add("index.json", 0o644, object(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}}))
	out.add("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return out.close()
}

func object(v any) []byte {
	text, err := json.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	return text
}

// An archive is a tar being written; the first error is kept for close.
type archive struct {
	buf bytes.Buffer
	tar *tar.Writer
	err error
}

// add puts a file, or a folder when the name ends in a slash.
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

func (a *archive) close() ([]byte, error) {
	if a.err != nil {
		return nil, a.err
	}
	err := a.tar.Close()
	return a.buf.Bytes(), err
}
