package iptables

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// NAT is the table for masquerade and port maps.
const NAT = "nat"

// Tables returns the tables of iptables with this name.
func Tables(name string) []nft.Table {
	return []nft.Table{{Family: nft.IPv4, Name: name}, {Family: nft.IPv6, Name: name}}
}

// A Cleanup finds and deletes rules that the iptables backends of plumb or of the reference plugins
// added.
type Cleanup struct {
	// Tables lists tables in nftables. A table of iptables can be a legacy table as well.
	Tables []nft.Table
	// Chains lists the chains whose rules Select gets. Cleanup skips a table without the last of them. It may be empty, for
	// all chains, if Tables contains no table of iptables.
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

// StaleChains returns a Cleanup of table nat for the chains of containers without an attachment in keep, and the jumps to
// them from the chain from. It selects a chain only if ContainerChain can return its name, and if the comment of one of
// its rules, or of a jump to it, starts with comment. A chain with another name belongs to an administrator who has copied
// a comment.
func StaleChains(keep types.Set, from, prefix, comment string) Cleanup {
	selectStale := func(rules []Rule) (stale Selection) {
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
	return Cleanup{Tables: Tables(NAT), Chains: []string{from}, Prefix: prefix, Select: selectStale}
}

// Delete runs the cleanups. It commits the deletions in nftables and the other changes as one transaction, without
// running a program. Afterwards, it deletes the rules in legacy tables (see LegacyTool). The parameter description
// describes the deletion in errors and in the trace.
func Delete(host *ns.Handle, description string, cleanups []Cleanup, changes ...nft.Change) error {
	c, err := nft.OpenIfSupported(host)
	if c != nil {
		err = c.Atomically("nft "+description, func(tx *nft.Tx) error {
			var errs []error
			for _, change := range changes {
				errs = append(errs, change(c, tx))
			}
			for _, cleanup := range cleanups {
				for _, t := range cleanup.Tables {
					errs = append(errs, cleanup.deleteNFT(c, tx, t))
				}
			}
			return errors.Join(errs...)
		})
	}
	errs := []error{err}
	for _, cleanup := range cleanups {
		for _, t := range cleanup.Tables {
			Tool{HostNS: host, Family: t.Family}.forget()
			errs = append(errs, cleanup.deleteLegacy(host, t, description))
		}
	}
	return errors.Join(errs...)
}

// deleteNFT adds the deletion of the rules and chains of a table in nftables to tx.
func (c Cleanup) deleteNFT(conn *nft.Conn, tx *nft.Tx, t nft.Table) error {
	chains := c.Chains
	if len(chains) > 0 {
		err := conn.CheckChain(t, chains[len(chains)-1])
		if err != nil {
			return types.IgnoreNotExist(err)
		}
	}
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
	return nil
}

// deleteLegacy deletes the rules and chains of a legacy table.
func (c Cleanup) deleteLegacy(host *ns.Handle, t nft.Table, description string) error {
	tool, found, err := LegacyTool(host, t.Family, t.Name)
	if !found {
		return err
	}
	return tool.Change(Part{Table: t.Name, Chains: c.Chains, Prefix: c.Prefix}, description, func(table Table) (string, error) {
		if !table.HasChain(c.Chains[len(c.Chains)-1]) {
			return "", nil
		}
		selected := c.Select(table.Rules)
		lines := Deletions(selected.Rules)
		for _, chain := range selected.Chains {
			lines = append(lines, "-F "+chain, "-X "+chain)
		}
		return Script(t.Name, lines...), nil
	})
}
