package iptables

import (
	"errors"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// Exclusive runs f while nobody else who asks so works on the namespace's tables: what
// f reads is what it changes. The lock is a flock of the namespace itself, which
// leaves nothing behind. One that is not got in time is an error with
// types.CodeTryAgain.
func Exclusive(node *ns.Handle, wait time.Duration, f func() error) error {
	err := node.Step("lock the tables of iptables", func() error { return lock(node.FD(), wait) })
	if err != nil {
		return err
	}
	err = f()
	return errors.Join(err, flock(node.FD(), syscall.LOCK_UN))
}

// lock waits in the kernel, which serves those who wait in their turn. A thread that
// waits in vain ends with the process.
func lock(fd int, wait time.Duration) error {
	got := make(chan error, 1)
	go func() { got <- flock(fd, syscall.LOCK_EX) }()
	select {
	case err := <-got:
		return err
	case <-time.After(wait):
		return types.Errorf(types.CodeTryAgain, "lock the tables of iptables: others had the lock for over %s; try again", wait)
	}
}

func flock(fd, how int) error {
	for {
		if err := syscall.Flock(fd, how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
