package iptables

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The backends, as configurations name them.
const (
	BackendNFTables = "nftables"
	BackendIPTables = "iptables"
)

// ByBackend calls runNFT with a connection to nftables, or runIPTables. backend is BackendNFTables, BackendIPTables or "",
// the default. The default is nftables, unless the kernel lacks a feature that runNFT needs (nft.ErrUnavailable), for
// example NAT in the family inet (Linux 5.2). If BackendNFTables needs such a feature, the error matches
// nft.ErrUnavailable, and its code is types.CodeConfig.
func ByBackend(host *ns.Handle, backend string, runNFT func(*nft.Conn) error, runIPTables func() error) error {
	if backend == BackendIPTables {
		return runIPTables()
	}
	c, err := nft.Open(host)
	if err == nil {
		err = runNFT(c)
	}
	switch {
	case !errors.Is(err, nft.ErrUnavailable):
		return err
	case backend == BackendNFTables:
		return types.Errorf(types.CodeConfig, "%w; load the module nf_tables, or use the iptables backend", err)
	}
	return runIPTables()
}
