package iptables

import (
	"errors"
	"os"
	"time"

	"github.com/plumb-cni/plumb/pkg/lock"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// LockWait is how long a call waits for other calls and programs that change the rules, and for
// /run/xtables.lock. Calls for the same attachment wait for each other for the same time, because on a
// starved host the holder of a lock may not run for many seconds.
const LockWait = time.Minute

// WithLock runs f while no other call of WithLock runs in the same namespace, so that the tables do not
// change after f has read them and before it changes them. The lock is a flock(2) of the namespace's
// file, so that no lock file is needed. If the lock is not free within limit, WithLock returns an error
// with types.CodeTryAgain and does not run f.
func WithLock(host *ns.Handle, limit time.Duration, f func() error) error {
	err := host.Step("lock the tables of iptables", func() error { return lock.Flock(host.FD(), limit) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return types.Errorf(types.CodeTryAgain, "lock the tables of iptables: other processes held the lock for over %s; try again", limit)
	}
	if err != nil {
		return err
	}
	err = f()
	return errors.Join(err, unix.Flock(host.FD(), unix.LOCK_UN))
}
