package node

import (
	"fmt"
	"os"

	. "github.com/onsi/ginkgo/v2"
)

var _ = Describe("a node for you", Label("keep"), func() {
	It("runs until you press Ctrl-C", func(ctx SpecContext) {
		if !*keep {
			Skip("only run.sh --keep starts it")
		}
		c := newCluster(1, os.Getenv("PLUMB_BIN"))
		c.startPods()
		fmt.Printf("The node runs the pods a, with the host ports 18080 and 18081, and b. In another shell, enter it with\n\n"+
			"    nsenter -t $(pgrep -nf 'machine.sh .* node1 inside') -a env KUBECONFIG=/etc/kubernetes/admin.conf PATH=%s:/opt/cni/bin:$PATH bash\n\nand press Ctrl-C here to end it.\n",
			os.Getenv("KUBERNETES"))
		<-ctx.Done()
	})
})
