package iptables

import (
	"cmp"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io/fs"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// NAT is the table for masquerade and port maps.
const NAT = "nat"

// A Cleanup finds and deletes rules that the iptables backends of plumb or of the reference plugins
// added.
type Cleanup struct {
	// Tables lists nftables tables of the reference plugins. If it is empty, the rules are in the tables nat
	// of both families, in nftables and in the legacy tables.
	Tables []nft.Table
	// Required is a chain. Cleanup skips a table that does not contain it. It may be empty.
	Required string
	// Chains lists the chains whose rules Select gets. If it is empty, Select gets the rules of all chains.
	Chains []string
	// Prefix also selects the chains whose names start with it, unless it is empty.
	Prefix string
	// Select selects the rules and chains to delete from a table. Cleanup calls it again if another
	// program has changed the table in the meantime.
	Select func(rules []Rule) Selection
}

// A Selection lists the rules and chains that a Cleanup deletes from a table.
type Selection struct {
	Rules  []Rule
	Chains []string // chains to delete together with their rules
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

// chainNameLength is the longest name of a chain (XT_EXTENSION_MAXNAMELEN without the NUL).
const chainNameLength = 28

// ContainerChain returns the name of a container's chain, which consists of the prefix and hexadecimal digits. The
// reference plugins use the same names.
func ContainerChain(prefix string, container types.Attachment) string {
	sum := sha512.Sum512([]byte(container.Network + container.ContainerID))
	return (prefix + hex.EncodeToString(sum[:]))[:chainNameLength]
}

// isContainerChain reports whether ContainerChain can return the name for the prefix.
func isContainerChain(prefix, name string) bool {
	digits, found := strings.CutPrefix(name, prefix)
	return found && len(name) == chainNameLength && strings.Trim(digits, "0123456789abcdef") == ""
}

// SelectStale returns a function for Select that selects the chains of containers without an attachment in keep, and
// the jumps to them. It selects a chain only if ContainerChain can return its name, and if the comment of one of its rules,
// or of a jump to it, starts with comment. A chain with another name belongs to an administrator who has copied a
// comment.
func SelectStale(keep types.Set, prefix, comment string) func(rules []Rule) Selection {
	return func(rules []Rule) (stale Selection) {
		isStale := map[string]bool{} // maps the name of a chain to true if its container is not in keep
		for a := range keep {
			isStale[ContainerChain(prefix, a)] = false
		}
		for _, r := range rules {
			for _, name := range []string{r.Chain, r.Jump} {
				if _, seen := isStale[name]; !seen && isContainerChain(prefix, name) && strings.HasPrefix(r.Comment, comment) {
					isStale[name] = true
					stale.Chains = append(stale.Chains, name)
				}
			}
		}
		stale.Rules = Where(rules, func(r Rule) bool { return isStale[r.Jump] })
		return stale
	}
}

// Delete runs the cleanups. It commits the deletions in nftables and the other changes as one transaction, without
// running a program. Afterwards, it deletes the rules in legacy tables (see LegacyTool). The parameter description
// describes the deletion in errors and in the trace.
func Delete(host *ns.Handle, description string, cleanups []Cleanup, changes ...nft.Change) error {
	var errs []error
	c, err := nft.OpenIfSupported(host)
	if c != nil {
		err = c.Atomically("nft "+description, func(tx *nft.Tx) error {
			var errs []error
			for _, change := range changes {
				errs = append(errs, change(c, tx))
			}
			for _, cleanup := range cleanups {
				errs = append(errs, cleanup.deleteNFT(c, tx))
			}
			return errors.Join(errs...)
		})
	}
	for _, f := range nft.Families() {
		Tool{HostNS: host, Family: f}.forget()
		tool, found, legacyErr := LegacyTool(host, f, NAT)
		if found {
			legacyErr = tool.Change(legacyPart(cleanups), description, func(t Table) (string, error) { return Script(NAT, deletions(cleanups, t)...), nil })
		}
		errs = append(errs, legacyErr)
	}
	return errors.Join(append(errs, err)...)
}

// deleteNFT adds the deletion of the rules and chains in nftables to tx.
func (c Cleanup) deleteNFT(conn *nft.Conn, tx *nft.Tx) error {
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
		chains := c.Chains
		if c.Prefix != "" {
			chains = nil // all
		}
		rules, err := ReadNFT(conn, t, chains...)
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

// legacyPart returns the part of a legacy table nat that the cleanups need.
func legacyPart(cleanups []Cleanup) Part {
	p := Part{Table: NAT}
	for _, c := range cleanups {
		if len(c.Tables) == 0 {
			p.Chains, p.Prefix = append(p.Chains, c.Chains...), cmp.Or(p.Prefix, c.Prefix)
		}
	}
	return p
}

// deletions returns the lines that delete the selections from a legacy table nat.
func deletions(cleanups []Cleanup, t Table) (lines []string) {
	for _, c := range cleanups {
		if len(c.Tables) > 0 || c.Required != "" && !t.HasChain(c.Required) {
			continue
		}
		selected := c.Select(t.Rules)
		lines = append(lines, Deletions(selected.Rules)...)
		for _, chain := range selected.Chains {
			lines = append(lines, chainDeletion(chain)...)
		}
	}
	return lines
}
