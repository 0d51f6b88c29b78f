package attach

import (
	"errors"
	"os"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A DADMode is a mode of the kernel's duplicate address detection (DAD) for the IPv6 addresses of
// an interface.
type DADMode int

const (
	// DADOff disables the detection, so that addresses are usable at once. It is for links on which
	// the IPAM plugin assigns every address.
	DADOff DADMode = iota
	// DADOn makes an address usable after the detection (RFC 4862). It is for links with hosts that
	// the IPAM plugin does not know.
	DADOn
	// DADOptimistic makes an address usable during the detection (RFC 4429).
	DADOptimistic
)

// DADKeys contains the key that selects DADOn or DADOptimistic. A plugin embeds it in its
// configuration struct.
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

// CodeDuplicate is the error code of an ADD that found an address of the container on another host.
const CodeDuplicate = 101

// dadTimeout limits how long ADD waits for duplicate address detection. The detection takes one
// second per probe, and the sysctl dad_transmits sets the number of probes.
const dadTimeout = 10 * time.Second

// AwaitDAD waits until duplicate address detection has ended for all addresses of the interface. If
// another host uses one of the addresses, the error has CodeDuplicate. If the detection does not
// end in time, the error has types.CodeTryAgain and matches os.ErrDeadlineExceeded.
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
