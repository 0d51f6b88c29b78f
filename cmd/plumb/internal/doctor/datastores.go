package doctor

import (
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// findDatastores finds networks with cluster-local whose datastore does not answer or is frozen. STATUS does not call it, because a
// node with free addresses of its own needs no datastore.
func (k asker) findDatastores(s *state, files []*file, add addFunc) {
	for _, p := range pluginsOf(usable(files)) {
		if p.IPAMType != "cluster-local" {
			continue
		}
		n, err := ipam.Read(s.inventory, k.caller, p.file.path)
		if err != nil {
			k.report.failed("datastore of network "+p.file.name(), err)
			continue
		}
		command := func(verb string) string {
			return types.Command("plumb", "ipam", verb, "--network", p.file.name()) + s.Flags
		}
		n.Warn = func(string) {}
		answer, err := n.Call(k.ctx, datastore.Status, func(*datastore.Request) {})
		switch where := p.where("ipam"); {
		case err != nil:
			add(where, say("Correct what the error names. This command calls the datastore again: %s", command("list")),
				"network %q gets no addresses from its datastore, so that ADD fails when this node has no free one: %v", p.file.name(), err)
		case answer.Frozen != "":
			add(where, say("Finish the steps of the move or of the restore, and then run this: %s", command("thaw")),
				"network %q gets no addresses from its datastore, which is frozen since %s", p.file.name(), answer.Frozen)
		}
	}
}
