// Package datastore tests the datastores of cluster-local for etcd and Kubernetes. The members of the etcd clusters and the
// API servers of Kubernetes run in network namespaces.
package datastore

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/faults/inject"
)

func TestMain(m *testing.M) {
	inject.Launch()
	os.Exit(m.Run())
}

func TestDatastore(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/cluster-local/test")
}

// etcdPath and datastorePath are the paths of the executables of etcd and of cluster-local-etcd. The directory of
// datastorePath also contains cluster-local-kubernetes.
var etcdPath, datastorePath string

var _ = BeforeSuite(func() {
	dir := GinkgoT().TempDir()
	etcdPath, datastorePath = filepath.Join(dir, "etcd"), filepath.Join(dir, "cluster-local-etcd")
	build(".", etcdPath, "./etcd")
	if bin := os.Getenv("PLUMB_BIN"); bin != "" {
		datastorePath = filepath.Join(bin, "cluster-local-etcd")
	} else {
		build("../datastore/etcd", datastorePath, "-trimpath", ".")
		build("../../..", filepath.Join(dir, "cluster-local-kubernetes"), "-trimpath", "./plugins/cluster-local/datastore/kubernetes")
	}
})

// build builds an executable of a module. It uses the flags and the environment of this test binary, so that Go's build
// cache contains the packages of etcd that the test binary imports.
func build(module, out string, args ...string) {
	GinkgoHelper()
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", out}, args...)...)
	cmd.Dir = module
	text, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(text))
}
