package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A conditionsChain is a chain with the conditions of a network for one family. All containers of the network share
// it. The conditions are in the language of nft, which only the program nft can parse. plumb runs nft for the first
// container of the network.
type conditionsChain struct {
	network string
	text    string // the conditions
	next    string // the chain for packets that meet the conditions; if it is empty, they return to the calling chain
}

// name returns the name of the chain, which contains a hash of its rules.
func (c conditionsChain) name() string {
	return nft.NetworkChain(conditionsKind, c.network, types.ShortHash(c.text + "\n" + c.next)[:16])
}

// layout returns the chain with empty rules, because nft.Conn.DamagedChains compares only their number.
func (c conditionsChain) layout() nft.Layout {
	l := tableLayout()
	l.Chains = []nft.Chain{{Name: c.name(), Rules: make([]nft.Rule, 2)}}
	return l
}

// script returns the commands for nft that create the chain. The chain accepts a packet that does
// not meet the conditions, so that no later rule of the table translates it.
func (c conditionsChain) script() string {
	verdict, next := "return", ""
	if c.next != "" {
		verdict, next = "goto "+c.next, fmt.Sprintf("add chain %s %s\n", tables.Inet().Table, c.next) // a DEL may just have deleted it
	}
	chain, comment := fmt.Sprintf("%s %s", tables.Inet().Table, c.name()), c.layout().Comment()
	return next + fmt.Sprintf("add chain %s\nflush chain %s\nadd rule %s %s %s comment %q\nadd rule %s accept comment %q\n",
		chain, chain, chain, c.text, verdict, comment, chain, comment)
}

// ensure runs nft to create the chain if it is missing or damaged. The table must exist. If the chain next is missing,
// ensure creates it without rules. The code of the error is types.CodeConfig if nft rejects the conditions.
func (c conditionsChain) ensure(conn *nft.Conn, host *ns.Handle) error {
	damaged, err := conn.DamagedChains(c.layout())
	if err != nil || len(damaged) == 0 {
		return err
	}
	path, err := findNFT()
	if err != nil {
		return err
	}
	_, err = iptables.Program{Path: path, Args: []string{"-f", "-"}, Stdin: c.script(), Limit: nftLimit}.Run(host, "run nft")
	var exit *iptables.ExitError
	if errors.As(err, &exit) {
		return types.Errorf(types.CodeConfig, "nft refuses the conditions: %w", err)
	}
	return err
}

// findNFT returns the path of the program nft. See iptables.FindProgram.
func findNFT() (string, error) {
	path, err := iptables.FindProgram("nft")
	if err != nil {
		return "", types.Errorf(types.CodeConfig, "conditionsV4 and conditionsV6 need the program nft: %w; install nftables, or remove these keys", err)
	}
	return path, nil
}

// nftLimit is the time after which plumb kills nft.
const nftLimit = 10 * time.Second
