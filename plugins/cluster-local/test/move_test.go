package datastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
)

// This spec builds plumb and three plugins.
var _ = Describe("a move from host-local, in the order of cluster-local's page", func() {
	DescribeTable("gives no address of a running container again,", func(hostLocal, clusterLocal string, imported int) {
		c := newCluster(1)
		dir, bin := GinkgoT().TempDir(), filepath.Dir(pluginPath())
		if os.Getenv("PLUMB_BIN") == "" {
			build("../../..", bin+"/", "-trimpath", "./cmd/plumb", "./plugins/bridge", "./plugins/host-local")
		}
		Expect(errors.Join(os.Mkdir(filepath.Join(dir, "conf"), 0o755), os.Mkdir(filepath.Join(dir, "cache"), 0o755), os.Mkdir(filepath.Join(dir, "data"), 0o755))).To(Succeed())
		cni := cnitest.New(c.clients, filepath.Join(dir, "cache"), bin)
		config := func(ipam string) string {
			return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "ipam": {"subnet": "10.70.0.0/28", %s}}]}`, strings.ReplaceAll(ipam, "DIR", dir))
		}
		add := func(text, id string) (netip.Prefix, error) {
			result, err := cni.AddNetworkList(context.Background(), cnitest.ParseList(text), cnitest.NewContainer(id).RT)
			if err != nil {
				return netip.Prefix{}, err
			}
			r, err := current.GetResult(result)
			Expect(err).NotTo(HaveOccurred())
			return netip.MustParsePrefix(r.IPs[0].Address.String()), nil
		}
		plumb := func(args ...string) (string, error) {
			args = append([]string{"ipam"}, append(args, "--conf-dir", filepath.Join(dir, "conf"), "--cache-dir", filepath.Join(dir, "cache"),
				"--data-dir", filepath.Join(dir, "data"), "--cni-path", bin)...)
			var out bytes.Buffer
			cmd := exec.Command(filepath.Join(bin, "plumb"), args...)
			cmd.Stdout, cmd.Stderr = &out, &out
			Expect(c.clients.Start(cmd)).To(Succeed())
			err := cmd.Wait()
			GinkgoWriter.Println("$ plumb", strings.Join(args[:2], " "), out.String())
			return out.String(), err
		}
		former := config(`"type": "host-local", "dataDir": "DIR/` + hostLocal + `"`)
		next := config(`"type": "cluster-local", "node": "n1", "dataDir": "DIR/` + clusterLocal + `", "datastore": ` + string(c.datastoreConfig("node", nil)))
		given := map[netip.Prefix]bool{}
		for i := range 3 {
			a, err := add(former, fmt.Sprint("old", i))
			Expect(err).NotTo(HaveOccurred())
			given[a] = true
		}
		file := filepath.Join(dir, "pods.conflist")
		Expect(os.WriteFile(file, []byte(next), 0o600)).To(Succeed())
		Expect(plumb("freeze", "--config", file)).To(ContainSubstring("now frozen"))
		Expect(os.Rename(file, filepath.Join(dir, "conf/pods.conflist"))).To(Succeed())
		text, err := plumb("thaw")
		Expect(err).To(HaveOccurred())
		Expect(text).To(ContainSubstring("nothing was changed, because other nodes could assign addresses that containers of this node use: 10.70.0.2: "))
		Expect(plumb("import")).To(HaveSuffix(fmt.Sprintf("imported %d addresses\n", imported)))
		Expect(plumb("check")).To(ContainSubstring("of which containers use 3; 0 problems"))
		Expect(plumb("resync")).To(ContainSubstring("the store contains the addresses"))
		Expect(plumb("thaw")).To(ContainSubstring("now not frozen"))
		for i := range 10 { // all other addresses, without the gateway
			a, err := add(next, fmt.Sprint("new", i))
			Expect(err).NotTo(HaveOccurred())
			Expect(given).NotTo(HaveKey(a))
			given[a] = true
		}
		_, err = add(next, "more")
		Expect(err).To(MatchError(ContainSubstring("no IP addresses available")))
	},
		Entry("with one directory", "networks", "networks", 0),
		Entry("with two directories", "former", "networks", 3),
	)
})
