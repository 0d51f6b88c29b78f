// Package maintain removes what dead containers left on the host and repairs what living ones have lost, once or as a
// service.
package maintain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/metrics"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/watch"
	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// ErrBusy is returned by Lock if another process holds the lock.
var ErrBusy = errors.New("another plumb maintain works on this host; wait until it ends, or stop it")

// lockWait is how long Lock waits. If a plumb maintain is killed while it starts a plugin, the new process shares the lock until it
// executes the plugin.
const lockWait = 3 * time.Second

// Lock takes the lock that only one plumb maintain holds at a time. The caller calls unlock. The kernel unlocks when
// the process ends.
func Lock(path string) (unlock func() error, err error) {
	key, err := lock.NewKey(path, "maintain")
	if err != nil {
		return nil, err
	}
	if err = key.Lock(lockWait); errors.Is(err, os.ErrDeadlineExceeded) {
		err = ErrBusy
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, key.Close()))
	}
	return key.Close, nil
}

// A Maintainer calls GC and Repair. Both return soon after their context is done, but finish the attachment at hand.
type Maintainer struct {
	GC     func(context.Context) (removed, suspect, left int, err error)
	Repair func(context.Context) (repaired, left int, err error)

	Every   time.Duration   // the time between two runs, or zero for one run
	Events  <-chan []string // what is deleted or changed between two runs, see watch.Watcher; may be nil
	Metrics string          // the path of the file for node_exporter, or "" for none
	State   statefile.File  // keeps the numbers of the metrics between runs; without a Dir, the numbers begin with zero
	Log     func(format string, args ...any)

	limiter watch.Limiter
	numbers metrics.Maintenance
	gcLeft  int // how many attachments the last call of GC left
}

// Run calls GC and then Repair, and writes the metrics. With Every, Run repeats this until ctx is done, calls Repair after
// each event, and logs all errors. Without Every, it returns how many attachments the run could not remove, and plugins of
// attachments that it could not repair.
// If ctx is done, Run returns no error.
func (m *Maintainer) Run(ctx context.Context) (left int, err error) {
	text, _ := statefile.Read(m.State.Path()) // without the file, the counters begin with zero
	_ = json.Unmarshal(text, &m.numbers)
	if m.Every == 0 {
		if err = m.runAll(ctx); ctx.Err() != nil {
			return 0, nil
		}
		return m.numbers.Left, err
	}
	m.logError(ctx, m.runAll(ctx))
	ticker := time.NewTicker(m.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, nil
		case <-ticker.C:
			m.limiter.Forget()
			m.logError(ctx, m.runAll(ctx))
		case changed := <-m.Events:
			repair, postponed := m.limiter.Allow(changed, time.Now())
			if len(postponed) > 0 {
				m.Log("%s: change detected again after %d repairs within %s; find the program that does this; plumb tries again in %s",
					strings.Join(postponed, ", "), watch.MaxRepairs, watch.Window, m.Every)
				ticker.Reset(m.Every)
			}
			if len(repair) > 0 {
				m.Log("%s: change detected; repairing", strings.Join(repair, ", "))
				m.logError(ctx, errors.Join(m.repair(ctx), m.writeMetrics()))
			}
		}
	}
}

// logError logs the error of a run, unless the run failed because ctx is done.
func (m *Maintainer) logError(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		m.Log("%v", err)
	}
}

// runAll calls GC and Repair. It also repairs if GC fails, because a runtime that does not answer does not affect the
// repair.
func (m *Maintainer) runAll(ctx context.Context) error {
	removed, suspect, left, err := m.GC(ctx)
	if err != nil {
		err = fmt.Errorf("gc: %w", err)
	}
	m.numbers.Removed += removed
	if err == nil {
		m.numbers.Suspect, m.gcLeft = suspect, left
	}
	if ctx.Err() != nil {
		return err
	}
	if err = errors.Join(err, m.repair(ctx)); err == nil && ctx.Err() == nil {
		m.numbers.Success = time.Now()
	}
	return errors.Join(err, m.writeMetrics())
}

// repair calls Repair.
func (m *Maintainer) repair(ctx context.Context) error {
	repaired, left, err := m.Repair(ctx)
	m.numbers.Repaired += repaired
	if err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	m.numbers.Left = m.gcLeft + left
	return nil
}

// writeMetrics replaces the file with the metrics.
func (m *Maintainer) writeMetrics() error {
	if m.Metrics == "" {
		return nil
	}
	temp := m.Metrics + ".new"         // node_exporter reads only *.prom
	text, _ := json.Marshal(m.numbers) // times and integers can always be encoded
	err := errors.Join(m.State.Write(text), m.writeNewFile(temp))
	if err == nil {
		err = os.Rename(temp, m.Metrics)
	}
	if err != nil {
		return fmt.Errorf("write metrics: %w", errors.Join(err, types.IgnoreNotExist(os.Remove(temp))))
	}
	return nil
}

// writeNewFile writes the metrics to a new file, and deletes the file or symbolic link that exists at the path. All users
// can read the file.
func (m *Maintainer) writeNewFile(path string) error {
	if err := os.Remove(path); types.IgnoreNotExist(err) != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(m.numbers.Write(file), file.Close())
}
