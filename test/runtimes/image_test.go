package runtimes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// image is the name of the image that all containers run. Its only program is workload, with the path /plumb.
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
	bin, archive := filepath.Join(dir, "bin"), filepath.Join(dir, "image.tar")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(bin, "plumb"), "./workload")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build workload: %w\n%s", err, out)
	}
	if err := packImage(image, archive, bin); err != nil {
		return nil, err
	}
	return os.ReadFile(archive)
})

// packImage writes a tar archive with an image of the executables in a directory, as for a release. The image starts
// the executable plumb.
func packImage(name, archive, directory string) error {
	pack := exec.Command("go", "-C", "../..", "run", "./scripts/image", name, archive, runtime.GOARCH+"="+directory)
	pack.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("pack %s: %w\n%s", name, err, out)
	}
	return nil
}
