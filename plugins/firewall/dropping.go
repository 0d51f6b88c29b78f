package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	bus "github.com/plumb-cni/plumb/v2/plugins/firewall/internal/firewalld"
)

// A packet that one base chain accepts still passes through the other base chains at the same hook, and any of them can
// drop it. Therefore an accept rule in plumb's own table would not help. The chain that would drop a container's
// packets must accept them itself, either because the container's address is a source of a firewalld zone, or by a rule
// in the iptables chain FORWARD. The plugin does not change the nftables chains of other programs.

// A filterTable describes the iptables table filter of one family, in nftables or in the legacy tables.
type filterTable struct {
	tool         xt.Tool
	chains       []string // the chains of a table in nftables
	drops        bool     // whether FORWARD drops all packets that it does not accept
	hasOwnChains bool     // whether it contains chains of this plugin or of the reference plugin
	inUse        bool     // whether hasOwnChains is set, or the table contains Docker's chains
}

// addChain updates t for a chain of the table.
func (t *filterTable) addChain(chain string, drops bool) {
	t.drops = t.drops || chain == "FORWARD" && drops
	t.hasOwnChains = t.hasOwnChains || chain == forwardChain || chain == stage1 || chain == stage2
	t.inUse = t.inUse || t.hasOwnChains || strings.HasPrefix(chain, "DOCKER")
}

// filterTables returns the existing tables of one family. It runs a program only for a legacy table, and
// omits that table if the program is missing.
func (f *firewall) filterTables(fam nft.Family) (all []filterTable, err error) {
	t := filterTable{tool: f.nftTool(fam)}
	for _, ch := range f.chains {
		if ch.Table == (nft.Table{Family: fam, Name: filter}) {
			t.chains = append(t.chains, ch.Name)
			t.addChain(ch.Name, ch.Drop != "")
		}
	}
	if t.chains != nil {
		all = append(all, t)
	}
	tool, found, err := xt.LegacyTool(f.r.HostNS, fam, filter)
	if !found || err != nil {
		return all, err
	}
	t = filterTable{tool: tool}
	table, err := tool.Read(xt.Part{Table: filter, Chains: []string{"FORWARD"}, Follow: func(r xt.Rule) bool { return r.Matches == "" }})
	if err != nil {
		return all, err
	}
	drops, err := nft.DropsAll("FORWARD", table.ListedRules)
	for _, chain := range table.Chains {
		t.addChain(chain, drops || slices.Contains(table.Closed, "FORWARD"))
	}
	return append(all, t), err
}

// closedChains describes the nftables chains of other programs that drop all forwarded packets of these families that they
// do not accept.
func (f *firewall) closedChains(fams []nft.Family) (names []string) {
	for _, ch := range f.chains {
		isIPTablesChain := ch.Name == "FORWARD" && ch.Table.Name == filter && ch.Table.Family != nft.Inet
		hasFamily := ch.Table.Family == nft.Inet || slices.Contains(fams, ch.Table.Family)
		if ch.Drop != "" && hasFamily && !isIPTablesChain {
			names = append(names, fmt.Sprintf("the %s of chain %s of table %s", ch.Drop, ch.Name, ch.Table))
		}
	}
	return names
}

// mayDropText is the warning of ADD and the error of STATUS about closedChains.
const mayDropText = "%s may drop packets of containers; add a rule there that accepts them"

// allow lets the host forward the packets of the attachment.
func (f *firewall) allow() error {
	tables, err := f.tablesToAllow()
	if err != nil {
		return err
	}
	for _, t := range tables {
		if err := f.addRules(t.tool); err != nil {
			return err
		}
	}
	return nil
}

// tablesToAllow returns the iptables tables that need rules. If firewalld runs, it adds the sources instead.
func (f *firewall) tablesToAllow() (all []filterTable, err error) {
	if f.conf.backend == iptables {
		for _, fam := range f.families() {
			tool := xt.Tool{HostNS: f.r.HostNS, Family: fam}
			all, err = append(all, filterTable{tool: tool}), cmp.Or(err, tool.Find())
		}
		return all, err // a missing program is reported before the first change
	}
	if done, err := f.addSources(); done || err != nil {
		return nil, err
	}
	if names := f.closedChains(f.families()); len(names) > 0 {
		f.r.Warn(mayDropText, strings.Join(names, ", "))
	}
	return f.closedTables(f.families(), func(t filterTable) bool { return t.drops || t.inUse && f.conf.backend == "" })
}

// families returns the families of the attachment's addresses.
func (f *firewall) families() []nft.Family {
	return slices.DeleteFunc(nft.Families(), func(fam nft.Family) bool { return len(f.addrsOf(fam)) == 0 })
}

// closedTables returns the iptables tables that need a rule. With the backend nftables, such a table is an error.
func (f *firewall) closedTables(fams []nft.Family, needs func(filterTable) bool) (all []filterTable, err error) {
	for _, fam := range fams {
		tables, err := f.filterTables(fam)
		if err != nil {
			return nil, err
		}
		for _, t := range tables {
			if !needs(t) {
				continue
			}
			if f.conf.backend == nftables {
				return nil, types.Errorf(types.CodeConfig,
					"chain FORWARD of %s drops packets by its policy or its last rule, and no nftables rule can change that; "+
						"use the backend iptables, omit backend, or let the chain accept packets", t.tool.Name())
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// checkAllowed returns an error that lists the missing rules or sources without which the host may drop
// the packets of the attachment.
func (f *firewall) checkAllowed() error {
	if f.conf.backend == iptables {
		return f.checkIPTables(f.checkRules)
	}
	if done, err := f.checkSources(); done || err != nil {
		return err
	}
	tables, err := f.closedTables(f.families(), func(t filterTable) bool { return t.drops })
	for _, t := range tables {
		err = errors.Join(err, f.checkTable(t, f.checkRules))
	}
	return err
}

// checkTable reads the table and runs the check. For a table in nftables, it runs no program.
func (f *firewall) checkTable(t filterTable, check func(xt.Tool, xt.Table) error) (err error) {
	table := xt.Table{Chains: t.chains}
	if t.chains == nil {
		table, err = t.tool.Read(part())
	} else {
		table.Rules, err = xt.ReadNFT(f.c, nft.Table{Family: t.tool.Family, Name: filter}, part().Chains...)
	}
	if err != nil {
		return err
	}
	return check(t.tool, table)
}

// checkIPTables returns nil if, for each family, one table passes the check. It reads only tables
// with chains of the plugin, because running a program for another table could create that table.
func (f *firewall) checkIPTables(check func(xt.Tool, xt.Table) error) error {
	var errs []error
	for _, fam := range f.families() {
		tables, err := f.filterTables(fam)
		tableErr := errors.Join(err, fmt.Errorf("table %s of %s has no chain %s", filter, xt.Tool{Family: fam}.Name(), forwardChain))
		for _, t := range tables {
			if !t.hasOwnChains {
				continue
			}
			if tableErr = f.checkTable(t, check); tableErr == nil {
				break
			}
		}
		errs = append(errs, tableErr)
	}
	return errors.Join(errs...)
}

// checkAdd returns the error of STATUS. It changes nothing.
func (f *firewall) checkAdd() error {
	var err error
	if f.conf.policy != open {
		err = f.c.CheckSupport(isolationLayout())
	}
	if f.conf.policy == isolated {
		err = errors.Join(err, f.c.CheckSupport(isolatedPortsLayout()))
	}
	if err != nil || f.conf.backend == iptables {
		return types.NotAvailable(cmp.Or(err, xt.Tool{HostNS: f.r.HostNS, Family: nft.IPv4}.Find()))
	}
	z, err := bus.Open(f.r.HostNS)
	if err == nil {
		err = z.Close()
		if f.c != nil { // ADD lists the sources in table inet plumb
			err = errors.Join(err, f.c.CheckSupport(isolationLayout()))
		}
		return types.NotAvailable(err)
	}
	if f.isOptional(err) {
		var tables []filterTable
		tables, err = f.closedTables(nft.Families(), func(t filterTable) bool { return t.drops })
		for _, t := range tables {
			err = cmp.Or(err, t.tool.Find())
		}
	}
	if err != nil {
		return types.NotAvailable(err)
	}
	if names := f.closedChains(nft.Families()); len(names) > 0 {
		p := types.Problem{Object: "chain " + names[0], Kind: types.ProblemConflict, Repair: types.RepairNever,
			Advice: "let the program that owns the chain accept packets from and to the containers; with firewalld, set \"backend\": \"firewalld\""}
		return types.Coded(types.CodeLimited, p.Errorf(mayDropText, strings.Join(names, ", ")))
	}
	return nil
}
