// Package firewalld binds addresses to firewalld zones over the D-Bus system bus.
//
// A source is an address range that is bound to a zone. The zone's rules apply to the packets from that
// range. For example, the zone trusted accepts all packets. A source belongs to at most one zone. All
// calls change only firewalld's runtime configuration. Therefore firewalld forgets the sources when it
// reloads (firewall-cmd --reload) or restarts.
package firewalld

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// callLimit is the timeout for connecting to the bus and for each call.
const callLimit = 10 * time.Second

// busName is the name of firewalld on the bus (firewalld.dbus(5)).
const busName = "org.fedoraproject.FirewallD1"

// A Conn is a connection to firewalld. Its methods may be called concurrently.
type Conn struct {
	host  *ns.Handle // runs the steps
	bus   *dbus.Conn
	limit time.Duration // timeout of one call
}

// Open connects to the system bus and checks that firewalld is on it. It does not start
// firewalld (D-Bus activation). The caller closes the connection.
//
// The environment variable DBUS_SYSTEM_BUS_ADDRESS contains the address of the bus. The default is the
// socket /run/dbus/system_bus_socket, which belongs to the mount namespace of the process. Open uses h
// only for its tracer.
//
// The error matches ErrNotRunning if there is no bus, or if firewalld is not on it, and ErrNotAuthorized
// if the bus refuses this user. Its code is types.CodeTryAgain if the bus does not answer in time.
func Open(h *ns.Handle) (*Conn, error) { return open(h, callLimit) }

func open(h *ns.Handle, limit time.Duration) (*Conn, error) {
	const step = "connect to firewalld"
	c := &Conn{host: h, limit: limit}
	if err := h.Step(step, c.connect); err != nil {
		_ = c.Close()
		return nil, explain(step, err)
	}
	return c, nil
}

// connect connects to the bus and checks that firewalld is on it.
func (c *Conn) connect() error {
	ctx, cancel := context.WithCancelCause(context.Background())
	timer := time.AfterFunc(c.limit, func() { cancel(context.DeadlineExceeded) }) // cancel closes the connection
	defer timer.Stop()
	var err error
	c.bus, err = dbus.SystemBusPrivate(dbus.WithContext(ctx))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", ErrNotAuthorized, err)
	case errors.Is(err, syscall.EAGAIN): // the queue of connections to the bus is full
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	if err = c.bus.Auth(nil); err != nil && err.Error() == "dbus: authentication failed" { // package dbus exports no such error
		return fmt.Errorf("%w: %w", ErrNotAuthorized, err)
	}
	var running bool
	if err == nil {
		err = c.bus.Hello()
	}
	if err == nil {
		err = c.bus.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, busName).Store(&running)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && !running:
		return ErrNotRunning
	}
	return err
}

// Close closes the connection. firewalld keeps the added sources.
func (c *Conn) Close() error {
	if c.bus == nil {
		return nil
	}
	if err := c.bus.Close(); err != nil {
		return fmt.Errorf("close the connection to firewalld: %w", err)
	}
	return nil
}

// AddSource binds a source to a zone. It does nothing if the source is in that zone already. If
// the source is in another zone, the error names that zone.
//
// added reports whether this call has added the source. In that case the caller must remove the source if
// a later step fails. added is also true if firewalld did not answer the request in time
// (types.CodeTryAgain), because it may have added the source.
//
// The error matches ErrInvalidZone if there is no such zone, ErrNotAuthorized if firewalld
// refuses this user, and ErrNotRunning if firewalld has ended.
func (c *Conn) AddSource(zone string, p netip.Prefix) (added bool, err error) {
	source := p.Masked().String()
	current, err := c.zoneOf(source)
	if err == nil && current == "" {
		_, err = ask[string](c, "add source "+source+" to zone "+zone, "addSource", zone, source)
		if !isAny(err, zoneAlreadySet, zoneConflict) {
			return err == nil || types.AsError(err).Code == types.CodeTryAgain, err
		}
		// Another process has added the source in the meantime.
		if zone, zoneErr := c.zoneOf(source); zoneErr == nil && zone != "" {
			current, err = zone, nil
		}
	}
	if err == nil && current != zone {
		err = conflict(source, current)
	}
	return false, err
}

// RemoveSource removes a source from a zone. It does nothing if the source is not in that zone, or if
// the zone does not exist. It returns the same errors as AddSource.
func (c *Conn) RemoveSource(zone string, p netip.Prefix) error {
	source := p.Masked().String()
	_, err := ask[string](c, "remove source "+source+" from zone "+zone, "removeSource", zone, source)
	if isAny(err, unknownSource, zoneConflict, invalidZone) {
		return nil
	}
	return err
}

// HasSource reports whether a source is in a zone. It returns the same errors as AddSource.
func (c *Conn) HasSource(zone string, p netip.Prefix) (bool, error) {
	source := p.Masked().String()
	return ask[bool](c, "look for source "+source+" in zone "+zone, "querySource", zone, source)
}

// zoneOf returns the zone of a source, or "" if the source is in no zone.
func (c *Conn) zoneOf(source string) (string, error) {
	return ask[string](c, "find the zone of source "+source, "getZoneOfSource", source)
}

// ask calls a method of firewalld's zone interface and returns the answer. It rejects an empty zone name,
// because addSource and querySource would use the default zone, and removeSource any zone.
func ask[T string | bool](c *Conn, step, method string, args ...any) (answer T, err error) {
	step = "firewalld: " + step
	if slices.Contains(args, any("")) {
		return answer, explain(step, fmt.Errorf("%w: its name is empty", ErrInvalidZone))
	}
	err = c.host.Step(step, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), c.limit)
		defer cancel()
		return c.bus.Object(busName, "/org/fedoraproject/FirewallD1").
			CallWithContext(ctx, busName+".zone."+method, dbus.FlagNoAutoStart, args...).Store(&answer)
	})
	return answer, explain(step, err)
}
