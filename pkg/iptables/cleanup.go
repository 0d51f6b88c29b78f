package iptables

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
)

// NAT is the table for masquerade and port maps.
const NAT = "nat"

// A Cleanup finds and deletes rules that the iptables backends of plumb or of the reference plugins
// added. The rules can be in nf_tables, where iptables-nft keeps its tables, and in legacy tables.
type Cleanup struct {
	// Tables lists the nftables tables. If it is empty, they are the tables nat of both families.
	Tables []nft.Table
	// Required is a chain. Cleanup skips a table that does not contain it. It may be empty.
	Required string
	// Chains lists the chains in nf_tables whose rules Select gets. If it is empty, Select gets the
	// rules of all chains. Select always gets all rules of a legacy table.
	Chains []string
	// Select selects the rules and chains to delete from a table. Cleanup calls it again if another
	// program has changed the table in the meantime.
	Select func(rules []Rule) Selection
}

// A Selection lists the rules and chains that a Cleanup deletes from a table.
type Selection struct {
	Rules  []Rule
	Chains []string // to delete together with their rules
}

// Where returns the rules for which match returns true.
func Where(rules []Rule, match func(r Rule) bool) (matching []Rule) {
	for _, r := range rules {
		if match(r) {
			matching = append(matching, r)
		}
	}
	return matching
}

// NFT adds the deletion of the rules and chains in nf_tables to tx. It runs no program.
func (c Cleanup) NFT(conn *nft.Conn, tx *nft.Tx) error {
	tables := c.Tables
	if len(tables) == 0 {
		tables = []nft.Table{{Family: nft.IPv4, Name: NAT}, {Family: nft.IPv6, Name: NAT}}
	}
	for _, t := range tables {
		if c.Required != "" {
			err := conn.CheckChain(t, c.Required)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
		}
		rules, err := ReadNFT(conn, t, c.Chains...)
		if err != nil {
			return err
		}
		selected := c.Select(rules)
		for _, r := range selected.Rules {
			tx.DelRule(t, *r.found)
		}
		for _, chain := range selected.Chains {
			tx.DelChain(t, chain)
		}
	}
	return nil
}

// Legacy deletes the rules and chains in the legacy tables nat (see LegacyTool). The parameter
// description describes the deletion in errors and in the trace.
func (c Cleanup) Legacy(host *ns.Handle, description string) error {
	var errs []error
	for _, f := range nft.Families() {
		tool, found, err := LegacyTool(host, f, NAT)
		if found {
			err = tool.Change(NAT, description, func(t Table) (string, error) { return Script(NAT, c.deletions(t)...), nil })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// deletions returns the lines that delete the selection from a legacy table.
func (c Cleanup) deletions(t Table) (lines []string) {
	if c.Required != "" && !t.HasChain(c.Required) {
		return nil
	}
	selected := c.Select(t.Rules)
	lines = Deletions(selected.Rules)
	for _, chain := range selected.Chains {
		lines = append(lines, "-F "+chain, "-X "+chain)
	}
	return lines
}
