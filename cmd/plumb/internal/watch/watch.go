// Package watch reports when other programs delete plumb's nftables tables and sets, delete bridges of attachments, set
// them down or change their addresses, change the addresses of Services, or reload firewalld.
package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
)

const (
	// settleTime is the time in which Start collects reports, because one command such as nft flush ruleset deletes
	// several objects.
	settleTime = 200 * time.Millisecond
	// retryInterval is the time after which Start subscribes again to notifications that ended.
	retryInterval = time.Second
	// busTimeout limits the time until the bus has answered the subscription.
	busTimeout = 10 * time.Second
)

// A Watcher watches one host.
type Watcher struct {
	OpenHost   func() (*ns.Handle, error) // opens the host's network namespace
	UsesBridge func(name string) bool     // reports whether an attachment uses the bridge, which may be gone

	reports chan string
}

// Start returns a channel that receives what was deleted or changed, sorted, such as "table inet plumb", "bridge cni0",
// "addresses of kube-ipvs0" or "firewalld", within a second. Events that happen while nothing receives from the channel are delivered together. If
// Start lost notifications, it also reports that, because it may have missed events. Start watches until ctx is done. A
// host without D-Bus is not an error, and Start watches the bus as soon as there is one.
func (w *Watcher) Start(ctx context.Context) (<-chan []string, error) {
	w.reports = make(chan string)
	tablesErr := w.resubscribe(ctx, "nftables", w.followTables)
	linksErr := w.resubscribe(ctx, "links", w.followLinks)
	_ = w.resubscribe(ctx, "D-Bus", followBus)
	if errors.Is(tablesErr, nft.ErrUnavailable) {
		tablesErr = nil // there are no tables
	}
	if err := errors.Join(tablesErr, linksErr); err != nil {
		return nil, err
	}
	events := make(chan []string)
	go w.collect(ctx, events)
	return events, nil
}

// A source subscribes to notifications. follow reports what was deleted or changed until ctx is done or the notifications
// end, and then closes the subscription.
type source func(ctx context.Context) (follow func(report func(string)), err error)

// resubscribe subscribes to the source, and again whenever the notifications end. It returns the error of the first attempt.
func (w *Watcher) resubscribe(ctx context.Context, name string, subscribe source) error {
	report := func(what string) {
		select {
		case w.reports <- what:
		case <-ctx.Done():
		}
	}
	follow, err := subscribe(ctx)
	go func(err error) {
		for {
			if err == nil {
				follow(report)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryInterval):
			}
			if follow, err = subscribe(ctx); err == nil {
				report("lost notifications of " + name)
			}
		}
	}(err)
	return err
}

// collect sends what was reported to events. It waits for settleTime after the first report.
func (w *Watcher) collect(ctx context.Context, events chan<- []string) {
	reported := map[string]bool{}
	var settled <-chan time.Time
	var receiver chan<- []string // events, or nil until settleTime has passed
	for {
		select {
		case <-ctx.Done():
			return
		case what := <-w.reports:
			if len(reported) == 0 {
				settled = time.After(settleTime)
			}
			reported[what] = true
		case <-settled:
			receiver = events
		case receiver <- slices.Sorted(maps.Keys(reported)):
			clear(reported)
			receiver = nil
		}
	}
}

// followEvents passes what describe returns for each event to report, unless it is "". It closes the host when ctx is
// done or the events end.
func followEvents[E any](ctx context.Context, host *ns.Handle, events <-chan E, describe func(E) string) func(func(string)) {
	return func(report func(string)) {
		for open := true; open && ctx.Err() == nil; {
			var e E
			select {
			case <-ctx.Done():
			case e, open = <-events:
			}
			if what := describe(e); open && what != "" {
				report(what)
			}
		}
		_ = host.Close() // closes events
		for range events {
		}
	}
}

// followTables is the source for plumb's tables, and their sets and maps.
func (w *Watcher) followTables(ctx context.Context) (func(func(string)), error) {
	ours := map[nft.Deletion]string{}
	for _, layout := range tables.All() {
		ours[nft.Deletion{Table: layout.Table}] = "table " + layout.Table.String()
		for _, set := range layout.Sets {
			ours[nft.Deletion{Set: set.Name}] = "table " + layout.Table.String()
		}
	}
	host, err := w.OpenHost()
	if err != nil {
		return nil, err
	}
	deletions, err := nft.WatchDeletions(host)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return followEvents(ctx, host, deletions, func(d nft.Deletion) string { return ours[d] }), nil
}

// followLinks is the source for bridges, and for addresses of Services.
func (w *Watcher) followLinks(ctx context.Context) (func(func(string)), error) {
	host, err := w.OpenHost()
	if err != nil {
		return nil, err
	}
	conn, err := nl.Open(host)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	nftConn, err := nft.OpenIfSupported(host)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	changes, err := nl.WatchChanges(host)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return followEvents(ctx, host, changes, func(c nl.Change) string {
		addresses := c.Kind == nl.AddressAdded || c.Kind == nl.AddressDeleted
		if addresses {
			c.Link, _ = conn.LinkByIndex(c.Link.Index) // fails if the link was deleted, which is a change of its own
		}
		switch {
		case addresses && slices.Contains(tables.ServiceLinks(), c.Link.Name) && hasHostPorts(nftConn):
			return "addresses of " + c.Link.Name
		case c.Kind != nl.AddressAdded && c.Link.Kind == "bridge" && w.UsesBridge(c.Link.Name):
			return "bridge " + c.Link.Name
		}
		return ""
	}), nil
}

// hasHostPorts reports whether host ports have been forwarded in nftables. c is nil if the kernel lacks nftables.
func hasHostPorts(c *nft.Conn) bool {
	return c != nil && c.CheckChain(tables.Inet().Table, tables.HostPorts) == nil
}

// firewalldName is the name of firewalld on the system bus, and of its interface (firewalld.dbus(5)).
const firewalldName = "org.fedoraproject.FirewallD1"

// followBus is the source for firewalld, which forgets its runtime configuration when it reloads or starts.
func followBus(ctx context.Context) (follow func(func(string)), err error) {
	ctx, disconnect := context.WithCancel(ctx)
	timer := time.AfterFunc(busTimeout, disconnect)
	defer timer.Stop()
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	signals := make(chan *dbus.Signal, 1)
	if err == nil {
		bus.Signal(signals)
		err = errors.Join(
			bus.AddMatchSignal(dbus.WithMatchInterface(firewalldName), dbus.WithMatchMember("Reloaded")),
			bus.AddMatchSignal(dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, firewalldName)),
		)
	}
	if err != nil {
		disconnect()
		return nil, fmt.Errorf("watch firewalld: %w", err)
	}
	return func(report func(string)) {
		defer disconnect()
		for s := range signals { // the bus connection closes signals
			// The last argument of NameOwnerChanged is the new owner, which is "" if firewalld has ended.
			if len(s.Body) == 0 || s.Body[len(s.Body)-1] != "" {
				report("firewalld")
			}
		}
	}, nil
}
