package attach

import (
	"errors"
	"os"
	"time"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A DADMode says whether the kernel does duplicate address detection (DAD) for the IPv6
// addresses of an interface.
type DADMode int

const (
	// DADOff: no detection, and addresses are usable at once. It is for links on which
	// the IPAM plugin assigns every address.
	DADOff DADMode = iota
	// DADOn: an address is usable after the detection (RFC 4862). It is for links with
	// hosts that the IPAM plugin does not know.
	DADOn
	// DADOptimistic: an address is usable during the detection (RFC 4429).
	DADOptimistic
)

// DADKeys is the key with which a configuration chooses between DADOn and DADOptimistic. A plugin
// embeds it in the struct of its configuration.
type DADKeys struct {
	OptimisticDAD bool `json:"optimisticDAD"`
}

// Mode returns the configured mode.
func (k DADKeys) Mode() DADMode {
	if k.OptimisticDAD {
		return DADOptimistic
	}
	return DADOn
}

// CodeDuplicate is the code of an ADD that found another host with an address of the container.
const CodeDuplicate = 101

// dadTimeout limits how long ADD waits for duplicate address detection. The detection takes one
// second for each probe; the sysctl dad_transmits is the number of probes.
const dadTimeout = 10 * time.Second

// AwaitDAD waits until duplicate address detection has ended for all addresses of the interface.
// If another host has one of the addresses, the error has CodeDuplicate. If the detection does not
// end in time, the error has types.CodeTryAgain.
func AwaitDAD(c *nl.Conn, l nl.Link) error {
	err := c.AwaitUsable(l, dadTimeout)
	switch {
	case errors.Is(err, nl.ErrDuplicate):
		return types.Errorf(CodeDuplicate, "%w; give the other host or this container another address", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return types.Errorf(types.CodeTryAgain, "%w", err)
	}
	return err
}
