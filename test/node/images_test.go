package node

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// agnhost is the image of Kubernetes' own tests, whose only program is agnhost.
const agnhost = "plumb.test/agnhost:1"

// images returns the archives of the images that all nodes need, by the names of the images. It writes them once.
func images() map[string]string {
	GinkgoHelper()
	all, err := writeImages()
	Expect(err).NotTo(HaveOccurred())
	return all
}

var writeImages = sync.OnceValues(func() (map[string]string, error) {
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for image, program := range map[string]string{agnhost: os.Getenv("KUBERNETES") + "/agnhost", "plumb.test/pause:1": os.Getenv("PAUSE")} {
		all[image] = filepath.Join(dir, filepath.Base(program)+".tar")
		if err := writeProgramImage(image, all[image], program); err != nil {
			return nil, err
		}
	}
	return all, nil
})

// writeProgramImage writes an archive of an image whose only file is a program.
func writeProgramImage(image, archive, program string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: filepath.Base(program), Mode: 0o755, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return writeArchive(archive, layer.Bytes(), map[string]v1.Config{image: {Entrypoint: []string{"/" + filepath.Base(program)}}})
}

// writeArchive writes an archive of images that consist of the same layer.
func writeArchive(archive string, layer []byte, configs map[string]v1.Config) error {
	base, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return err
	}
	images := map[name.Tag]v1.Image{}
	for image, config := range configs {
		file, err := base.ConfigFile()
		if err != nil {
			return err
		}
		file = file.DeepCopy()
		file.OS, file.Architecture = "linux", runtime.GOARCH
		file.Config = config
		file.Config.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		tag, err := name.NewTag(image)
		if err != nil {
			return err
		}
		if images[tag], err = mutate.ConfigFile(base, file); err != nil {
			return err
		}
	}
	return tarball.MultiWriteToFile(archive, images)
}
