// image writes the container image of a release as a tar archive in the OCI image layout: for each
// architecture an image with one layer, which has the executables, and nothing else.
//
//	image NAME OUT ARCH=DIRECTORY…      NAME is the name of the image, with its tag; DIRECTORY has the executables
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

const source = "https://github.com/plumb-cni/plumb"

// variants are the variants of the architectures that scripts/release.sh builds for.
var variants = map[string]string{"arm": "v6"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	if len(args) < 3 {
		return errors.New("usage: image NAME OUT ARCH=DIRECTORY…")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	out, err := os.Create(args[1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	i := image{name: args[0], created: time.Unix(epoch, 0).UTC(), out: tar.NewWriter(out)}
	index := oci.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex, Annotations: i.annotations()}
	for _, arg := range args[2:] {
		arch, directory, _ := strings.Cut(arg, "=")
		manifest, err := i.add(oci.Platform{OS: "linux", Architecture: arch, Variant: variants[arch]}, directory)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		index.Manifests = append(index.Manifests, manifest)
	}
	return i.finish(index)
}

// An image is the archive that is being written.
type image struct {
	name    string
	created time.Time
	out     *tar.Writer
}

// annotations describe the image to registries and their users.
func (i image) annotations() map[string]string {
	return map[string]string{
		oci.AnnotationTitle:       "plumb",
		oci.AnnotationDescription: "CNI plugins, and plumb, which installs them on a host",
		oci.AnnotationSource:      source,
		oci.AnnotationLicenses:    "Apache-2.0",
		oci.AnnotationVersion:     i.name[strings.LastIndex(i.name, ":")+1:],
		oci.AnnotationCreated:     i.created.Format(time.RFC3339),
	}
}

// add adds the image for one platform, and returns the descriptor of its manifest.
func (i image) add(platform oci.Platform, directory string) (oci.Descriptor, error) {
	plain, err := i.layer(directory)
	if err != nil {
		return oci.Descriptor{}, err
	}
	packed, err := compress(plain)
	if err != nil {
		return oci.Descriptor{}, err
	}
	layer, err := i.blob(oci.MediaTypeImageLayerGzip, packed)
	if err != nil {
		return oci.Descriptor{}, err
	}
	config, err := i.object(oci.MediaTypeImageConfig, oci.Image{
		Created: &i.created, Platform: platform,
		Config:  oci.ImageConfig{Entrypoint: []string{"/plumb"}, Env: []string{"PATH=/"}, Labels: i.annotations()},
		RootFS:  oci.RootFS{Type: "layers", DiffIDs: []digest.Digest{sum(plain)}},
		History: []oci.History{{Created: &i.created, CreatedBy: "scripts/release.sh"}},
	})
	if err != nil {
		return oci.Descriptor{}, err
	}
	manifest, err := i.object(oci.MediaTypeImageManifest, oci.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageManifest,
		Config: config, Layers: []oci.Descriptor{layer}, Annotations: i.annotations(),
	})
	manifest.Platform = &platform
	return manifest, err
}

// layer returns a tar archive with the executables of the directory.
func (i image) layer(directory string) ([]byte, error) {
	files, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return nil, err
		}
		if info.Mode()&0o111 == 0 {
			continue // a text of the release
		}
		content, err := os.ReadFile(filepath.Join(directory, f.Name()))
		if err != nil {
			return nil, err
		}
		if err := i.write(archive, tar.Header{Name: f.Name(), Mode: 0o755}, content); err != nil {
			return nil, err
		}
	}
	err = archive.Close()
	return b.Bytes(), err
}

// write adds a file to a tar archive.
func (i image) write(archive *tar.Writer, header tar.Header, content []byte) error {
	header.Typeflag, header.Size, header.ModTime, header.Format = tar.TypeReg, int64(len(content)), i.created, tar.FormatUSTAR
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

func compress(content []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.Copy(z, bytes.NewReader(content))
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

// object adds a JSON object as a blob.
func (i image) object(mediaType string, v any) (oci.Descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return oci.Descriptor{}, err
	}
	return i.blob(mediaType, text)
}

// blob adds a blob, and returns its descriptor.
func (i image) blob(mediaType string, content []byte) (oci.Descriptor, error) {
	d := sum(content)
	path := oci.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
	err := i.write(i.out, tar.Header{Name: path, Mode: 0o644}, content)
	return oci.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}, err
}

func sum(content []byte) digest.Digest {
	s := sha256.Sum256(content)
	return digest.NewDigestFromBytes(digest.SHA256, s[:])
}

// finish adds the index of the platforms, and the index.json that names it. containerd takes the name of the
// image from an annotation of its own.
func (i image) finish(index oci.Index) error {
	all, err := i.object(oci.MediaTypeImageIndex, index)
	if err != nil {
		return err
	}
	all.Annotations = map[string]string{oci.AnnotationRefName: i.name, "io.containerd.image.name": i.name}
	top := oci.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex, Manifests: []oci.Descriptor{all}}
	return errors.Join(
		i.file(oci.ImageIndexFile, top),
		i.file(oci.ImageLayoutFile, oci.ImageLayout{Version: oci.ImageLayoutVersion}),
		i.out.Close(),
	)
}

// file adds a JSON object as a file of the layout.
func (i image) file(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return i.write(i.out, tar.Header{Name: name, Mode: 0o644}, text)
}
