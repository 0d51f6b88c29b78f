package skel

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const (
	// LockFile is the lock file of root (see lock.NewKey and LockPath). It contains one key for each plugin and
	// attachment, and one for each container (see LockContainer).
	LockFile = "/run/cni/plumb.lock"
	// lockWait is how long a call waits for another call for the same attachment. Runtimes allow a call
	// some minutes.
	lockWait = time.Minute
)

// lockAttachment waits until no other call of this plugin for the same attachment runs, and locks the
// attachment until this call ends. If a runtime is killed during ADD, the plugin still runs, and the
// restarted runtime calls DEL. Without the lock, what the ADD creates after that DEL would remain.
//
// After lockWait, ADD, CHECK and REPAIR return an error with types.CodeTryAgain. DEL must succeed, and therefore
// only warns and continues. If the lock file cannot be opened, all verbs continue without the lock, after a warning.
// IPAM plugins take no lock, because the plugin that calls them holds it.
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

// LockContainer waits until no other call holds this lock for the same container, and locks the container until this
// call ends. A plugin calls it before it looks for a free number in the container, such as the number of a routing
// table, because runtimes can add several attachments of one container at the same time. If the lock is not free in
// time, ADD and CHECK get an error with types.CodeTryAgain, and DEL continues after a warning.
func (r *Request) LockContainer() error {
	return r.lock(wantedLock{
		key:    fmt.Sprintf("container %d", r.ContainerNS.Cookie()),
		step:   "wait for another call for the container of " + r.Attachment().String(),
		holder: "call for the container of " + r.Attachment().String(),
	})
}

// A wantedLock is a lock that a call waits for.
type wantedLock struct {
	key    string // the key of the lock (see lock.NewKey)
	step   string // the name of the step that waits
	holder string // describes the call that holds the lock, in errors
}

// lock waits for a lock. lockAttachment describes its errors.
func (r *Request) lock(w wantedLock) error {
	err := r.lockIn(w)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrDeadlineExceeded):
		r.Warn("lock the attachment: %v; the call continues without the lock", err)
	case r.Command == "DEL":
		r.Warn("another %s has run for over %s; DEL continues, and does not delete what that call creates from now on", w.holder, r.env.lockWait())
	default:
		return types.Errorf(types.CodeTryAgain, "another %s has run for over %s: %w; try again when it has ended",
			w.holder, r.env.lockWait(), err)
	}
	return nil
}

func (r *Request) lockIn(w wantedLock) error {
	path, err := r.lockPath()
	if err != nil {
		return err
	}
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

// LockPath returns the path of the lock file of this process (see hostfile.InRun).
func LockPath() (string, error) {
	path := hostfile.InRun(LockFile)
	if path == "" {
		return "", errors.New(hostfile.NotWritable(LockFile))
	}
	return path, nil
}

// lockPath returns the path that a test has chosen, or LockPath.
func (r *Request) lockPath() (string, error) {
	if r.env.Lock != "" {
		return r.env.Lock, nil
	}
	path, err := LockPath()
	r.env.Lock = path
	return path, err
}

func (e Env) lockWait() time.Duration { return cmp.Or(e.LockWait, lockWait) }
