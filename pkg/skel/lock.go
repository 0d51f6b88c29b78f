package skel

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/plumb-cni/plumb/pkg/lock"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

const (
	// LockFile is the lock file (see lock.NewKey), with one key per plugin and attachment, and one
	// per container for LockContainer.
	LockFile = "/run/cni/plumb.lock"
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
	attachment := r.Attachment().String()
	return r.lock(wantedLock{
		key:    r.plugin.Name + "/" + attachment,
		step:   "wait for another call for " + attachment,
		holder: fmt.Sprintf("call of %s for %s", r.plugin.Name, attachment),
	})
}

// LockContainer waits until no other call that has called LockContainer for the same container runs, and
// locks the container until this call ends. A plugin calls it if it looks for a free number in
// the container, such as that of a routing table: the attachments of one container can be made
// at the same time. LockContainer fails as the lock of the attachment does (see lockAttachment).
func (r *Request) LockContainer() error {
	return r.lock(wantedLock{
		key:    fmt.Sprintf("container %d", r.ContainerNS.Cookie()),
		step:   "wait for another call for the container of " + r.Attachment().String(),
		holder: "call for the container of " + r.Attachment().String(),
	})
}

// A wantedLock is a lock that a call waits for.
type wantedLock struct {
	key    string // see lock.NewKey
	step   string // the name of the step that waits
	holder string // the call that has the lock, for errors
}

// lock waits for a lock. See lockAttachment for its errors.
func (r *Request) lock(w wantedLock) error {
	err := r.lockIn(cmp.Or(r.env.Lock, LockFile), w)
	switch {
	case err == nil, errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil
	case !errors.Is(err, os.ErrDeadlineExceeded):
		r.Warn("lock the attachment: %v; the call goes on without the lock", err)
	case r.Command == "DEL":
		r.Warn("another %s has run for over %s; DEL goes on, and does not delete what that call makes from now on", w.holder, r.env.lockWait())
	default:
		return types.Errorf(types.CodeTryAgain, "another %s has run for over %s: %w; try again when it has ended",
			w.holder, r.env.lockWait(), err)
	}
	return nil
}

// lockIn locks with the lock file at path.
func (r *Request) lockIn(path string, w wantedLock) error {
	key, err := lock.NewKey(path, w.key)
	if err != nil {
		return err
	}
	r.locks = append(r.locks, key)
	free, err := key.TryLock()
	if free || err != nil {
		return err
	}
	return r.Trace.Do(w.step, func() error { return key.Lock(r.env.lockWait()) })
}

func (e Env) lockWait() time.Duration { return cmp.Or(e.LockWait, lockWait) }
