package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A loss is a table of plumb that another program has deleted, with what containers lack for this reason.
type loss struct {
	table      string // such as "inet plumb"
	containers []string
	networks   []string
	effects    []string // what the containers lack
	details    []string // the texts of CHECK and STATUS
}

// losses returns a loss for each table of plumb that does not exist.
func (h host) losses() (all []*loss) {
	c, err := nft.Open(h.ns)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil
	}
	for _, l := range tables.All() {
		var chains []nft.ListedChain
		if err == nil {
			chains, err = c.Chains(l.Table)
		}
		h.report.failed("nftables", types.IgnoreNotExist(err))
		if len(chains) == 0 {
			all = append(all, &loss{table: l.Table.String()})
		}
	}
	return all
}

// lossesOf returns the losses that explain the damage: all its problems are in their tables, and plumb repair can fix them.
func lossesOf(d plugins.Damage, losses []*loss) (all []*loss) {
	if d.Repair() != "" || errors.Is(d.Err, plugins.ErrNotChecked) {
		return nil
	}
	for _, p := range plugins.Failure(d.Err).Problems {
		i := slices.IndexFunc(losses, func(l *loss) bool { return l.table == p.Table })
		if i < 0 {
			return nil
		}
		if !slices.Contains(all, losses[i]) {
			all = append(all, losses[i])
		}
	}
	return all
}

// effects says what a container lacks without the rules that a plugin adds to a table. It may have other rules, for example
// the masquerade of the reference plugins, which does not follow ipMasqExcept.
var effects = map[string]string{
	"portmap inet plumb": "host ports", "bridge inet plumb": "masquerade", "ptp inet plumb": "masquerade",
	"bridge bridge plumb": "macspoofchk", "host-access inet plumb": "access to the host",
}

func (l *loss) add(a *node.Attachment, plugin, text string) {
	effect := cmp.Or(effects[plugin+" "+l.table], "rules of "+plugin)
	for list, value := range map[*[]string]string{&l.containers: a.ContainerID, &l.networks: a.Network, &l.effects: effect} {
		if !slices.Contains(*list, value) {
			*list = append(*list, value)
		}
	}
	slices.Sort(l.effects)
	l.details = append(l.details, fmt.Sprintf("container %s, interface %s, %s", a.ContainerID, a.IfName, text))
}

// addTo adds one finding for all containers, in place of what STATUS says about the table.
func (l *loss) addTo(r *Report, flags string) {
	if len(l.containers) == 0 {
		return
	}
	who := "1 container lacks its "
	if n := len(l.containers); n > 1 {
		who = fmt.Sprintf("%d containers lack its ", n)
	}
	lacks := []string{who + strings.Join(l.effects, " and ")}
	r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool {
		same := f.table == l.table
		if same {
			l.details = append(l.details, f.What)
		}
		if same && f.effect != "" {
			lacks = append(lacks, f.effect)
		}
		return same
	})
	words := []string{"plumb", "repair"}
	if len(l.networks) == 1 {
		words = append(words, "--network", l.networks[0])
	}
	r.Findings = append(r.Findings, Finding{
		Check: "check", Where: onHost, What: "table " + l.table + " is missing: " + strings.Join(lacks, ", and "),
		Solution: plugins.Solution{Fix: types.Command(words...) + flags}, Details: l.details,
	})
}
