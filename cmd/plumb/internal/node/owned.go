package node

import (
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
)

// ReadOwned returns the state of cluster-local for a network. It is empty if the file is missing or unreadable.
func ReadOwned(dataDir, network string) *owned.State {
	text, _ := statefile.Read(filepath.Join(dataDir, ".plumb", ".owned", network))
	st, ok := owned.Parse(string(text))
	if !ok {
		return &owned.State{}
	}
	return st
}
