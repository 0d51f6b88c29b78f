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
	// lockFile has a key for each attachment that a call is about.
	lockFile = "/run/cni/plumb.lock"
	// lockWait is how long a call waits for another one about the same attachment. Runtimes
	// give a call some minutes.
	lockWait = time.Minute
)

// lockAttachment waits until no other call of this plugin about the same attachment is at
// work, and keeps others waiting until this one has ended. A runtime that is killed in the
// midst of an ADD leaves the plugin running, and its successor asks for a DEL: what that
// ADD makes after the DEL, nobody would delete. DEL must finish, so it does not wait
// without end; nor does it need the lock, nor do ADD and CHECK, where the file cannot be
// made. An IPAM plugin is called by one that has the lock.
func (r *Request) lockAttachment(v verb) error {
	if v.netns == netnsNone || r.plugin.IPAM {
		return nil
	}
	err := r.lockIn(r.env.lock())
	switch {
	case err == nil, errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil
	case !errors.Is(err, os.ErrDeadlineExceeded):
		r.Warn("go on without the lock of the attachment: %v", err)
	case r.Command == "DEL":
		r.Warn("another call of %s about %s has been at work for over %s; go on, though it may leave what it still makes", r.plugin.Name, r.Attachment(), r.env.lockWait())
	default:
		return types.Errorf(types.CodeTryAgain, "another call of %s about %s has been at work for over %s: %w; try again when it has ended",
			r.plugin.Name, r.Attachment(), r.env.lockWait(), err)
	}
	return nil
}

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
	return r.Trace.Do("wait for another call about "+r.Attachment().String(), func() error { return key.Lock(r.env.lockWait()) })
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
