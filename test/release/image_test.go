package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// An imageLayout is the image of a release.
type imageLayout struct {
	files     map[string][]byte
	index     oci.Descriptor           // the index of the architectures
	manifests map[string]digest.Digest // the manifests' digests, by architecture
}

func readImage(t *testing.T, out string) imageLayout {
	t.Helper()
	f, err := os.Open(filepath.Join(out, imageName))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	i := imageLayout{files: map[string][]byte{}, manifests: map[string]digest.Digest{}}
	for name, file := range readTar(t, f) {
		i.files[name] = file.content
	}
	var top, index oci.Index
	decode(t, i.files[oci.ImageIndexFile], &top)
	if len(top.Manifests) != 1 {
		t.Fatalf("want one entry in index.json, got %d", len(top.Manifests))
	}
	i.index = top.Manifests[0]
	decode(t, i.blob(t, i.index), &index)
	for _, m := range index.Manifests {
		i.manifests[m.Platform.Architecture] = m.Digest
		_ = i.blob(t, m)
	}
	return i
}

// A tarFile is one file of a tar archive.
type tarFile struct {
	header  tar.Header
	content []byte
}

func readTar(t *testing.T, r io.Reader) map[string]tarFile {
	t.Helper()
	files := map[string]tarFile{}
	visitTar(t, r, func(h *tar.Header, r io.Reader) {
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = tarFile{*h, content}
	})
	return files
}

func decode(t *testing.T, text []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// blob returns the content of a blob, and checks its size and digest against the descriptor.
func (i imageLayout) blob(t *testing.T, d oci.Descriptor) []byte {
	t.Helper()
	content, ok := i.files["blobs/sha256/"+d.Digest.Encoded()]
	if !ok || int64(len(content)) != d.Size || digest.FromBytes(content) != d.Digest {
		t.Fatalf("blob: want %v, got %d bytes with the digest %s", d, len(content), digest.FromBytes(content))
	}
	return content
}

// checkImage checks that the image of each architecture contains one layer, with nothing but the
// executables of its archive.
func checkImage(t *testing.T, out string) {
	image := readImage(t, out)
	if name := image.index.Annotations[oci.AnnotationRefName]; name != "registry.example/plumb:"+tag {
		t.Errorf("unexpected name of the image: %q", name)
	}
	if len(image.manifests) != len(architectures()) {
		t.Errorf("unexpected architectures of the image: %v", image.manifests)
	}
	for arch := range architectures() {
		checkPlatform(t, image, arch, filepath.Join(out, archiveName(arch)))
	}
	blobs := 1 + 3*len(architectures())
	if files := blobs + 2; len(image.files) != files {
		t.Errorf("want %d files in the archive, got %d", files, len(image.files))
	}
}

func checkPlatform(t *testing.T, image imageLayout, arch, archive string) {
	var manifest oci.Manifest
	decode(t, image.files["blobs/sha256/"+image.manifests[arch].Encoded()], &manifest)
	var config oci.Image
	decode(t, image.blob(t, manifest.Config), &config)
	if config.Architecture != arch || config.OS != "linux" || !slices.Equal(config.Config.Entrypoint, []string{"/plumb"}) {
		t.Errorf("%s: unexpected configuration %+v", arch, config)
	}
	if len(manifest.Layers) != 1 || len(config.RootFS.DiffIDs) != 1 {
		t.Fatalf("%s: want one layer, got %d, and %d in the configuration", arch, len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	z, err := gzip.NewReader(bytes.NewReader(image.blob(t, manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil || digest.FromBytes(layer) != config.RootFS.DiffIDs[0] {
		t.Fatalf("%s: want the digest %s of the layer, got %s (%v)", arch, config.RootFS.DiffIDs[0], digest.FromBytes(layer), err)
	}
	files := readTar(t, bytes.NewReader(layer))
	readArchive(t, archive, func(h *tar.Header, r io.Reader) {
		if slices.Contains(texts, h.Name) {
			return
		}
		want, err := io.ReadAll(r)
		name := strings.TrimPrefix(h.Name, "./")
		f := files[name]
		if err != nil || !bytes.Equal(f.content, want) || f.header.Mode != 0o755 || f.header.Uid != 0 || f.header.ModTime.Unix() != epoch {
			t.Errorf("%s: %s in the layer differs from the archive's file: %+v (%v)", arch, name, f.header, err)
		}
		delete(files, name)
	})
	if len(files) > 0 {
		t.Errorf("%s: the layer contains %d more files", arch, len(files))
	}
}
