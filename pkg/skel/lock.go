package skel

import (
	"errors"
	"os"
	"time"

	"github.com/plumb-cni/plumb/pkg/lock"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

const (
	// lockFile is the lock file (see lock.NewKey), with one key per plugin and attachment.
	lockFile = "/run/cni/plumb.lock"
	// lockWait is how long a call waits for another call for the same attachment. Runtimes
	// let a call run for some minutes.
	lockWait = time.Minute
)

// lockAttachment waits until no other call of this plugin for the same attachment runs, and
// locks the attachment until this call ends. If a runtime is killed during ADD, the plugin
// still runs, and the restarted runtime calls DEL. Without the lock, that DEL would not delete
// what the ADD makes after it.
//
// After lockWait, ADD and CHECK return an error with types.CodeTryAgain. DEL must succeed, so
// it prints a warning and goes on. If the lock file cannot be made, all verbs go on without the
// lock. IPAM plugins take no lock, because the plugin that calls them has it.
func (r *Request) lockAttachment(v verb) error {
	if v.netns == netnsNone || r.plugin.IPAM {
		return nil
	}
	err := r.lockIn(r.env.lock())
	switch {
	case err == nil, errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil
	case !errors.Is(err, os.ErrDeadlineExceeded):
		r.Warn("lock the attachment: %v; the call goes on without the lock", err)
	case r.Command == "DEL":
		r.Warn("another call of %s for %s has run for over %s; DEL goes on, and does not delete what that call makes from now on", r.plugin.Name, r.Attachment(), r.env.lockWait())
	default:
		return types.Errorf(types.CodeTryAgain, "another call of %s for %s has run for over %s: %w; try again when it has ended",
			r.plugin.Name, r.Attachment(), r.env.lockWait(), err)
	}
	return nil
}

// lockIn locks the attachment with the lock file at path.
func (r *Request) lockIn(path string) error {
	key, err := lock.NewKey(path, r.plugin.Name+"/"+r.Attachment().String())
	if err != nil {
		return err
	}
	r.lock = key
	free, err := key.TryLock()
	if free || err != nil {
		return err
	}
	return r.Trace.Do("wait for another call for "+r.Attachment().String(), func() error { return key.Lock(r.env.lockWait()) })
}

func (e Env) lock() string {
	if e.Lock == "" {
		return lockFile
	}
	return e.Lock
}

func (e Env) lockWait() time.Duration {
	if e.LockWait == 0 {
		return lockWait
	}
	return e.LockWait
}
