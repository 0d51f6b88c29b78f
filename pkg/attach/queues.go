package attach

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// QueueKeys are the keys of a configuration that set the numbers of queues of an interface. 0 means the kernel's choice.
type QueueKeys struct {
	TxQueues int `json:"numTxQueues"`
	RxQueues int `json:"numRxQueues"`
}

// Check returns an error if the kernel would reject a number (rtnl_create_link).
func (k QueueKeys) Check() error {
	const most = 4096
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(k.TxQueues < 0 || k.TxQueues > most, "numTxQueues %d must be between 0 and %d", k.TxQueues, most)
	reportIf(k.RxQueues < 0 || k.RxQueues > most, "numRxQueues %d must be between 0 and %d", k.RxQueues, most)
	return errors.Join(errs...)
}
