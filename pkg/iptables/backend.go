package iptables

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// ByBackend calls byNFT with a connection to nf_tables, or byIPTables. backend is the value of a configuration key: "nftables",
// "iptables" or, for the default, empty. The default is nftables, or iptables if the kernel lacks what byNFT needs
// (nft.ErrUnavailable), for example NAT in the family inet (Linux 5.2). With the backend nftables, that is an error with
// types.CodeConfig, which matches nft.ErrUnavailable.
func ByBackend(host *ns.Handle, backend string, byNFT func(*nft.Conn) error, byIPTables func() error) error {
	if backend == "iptables" {
		return byIPTables()
	}
	c, err := nft.Open(host)
	if err == nil {
		err = byNFT(c)
	}
	switch {
	case !errors.Is(err, nft.ErrUnavailable):
		return err
	case backend == "nftables":
		return types.Errorf(types.CodeConfig, "load the module nf_tables, or use the iptables backend: %w", err)
	}
	return byIPTables()
}
