package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/daemon"
)

// Timeouts for a daemon that does not answer. The daemon itself limits the time of an ADD.
const (
	addLimit    = 220 * time.Second
	delLimit    = 15 * time.Second
	statusLimit = 5 * time.Second
)

// call sends a request to the daemon, as one step, and returns the answer, or the error in it.
func call(r *skel.Request, socket string, req daemon.Request, limit time.Duration) (answer daemon.Answer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err = r.Trace.Do(req.Method+" by the DHCP daemon at "+socket, func() error {
		answer, err = daemon.Call(ctx, socket, req)
		return err
	})
	return answer, cmp.Or(err, answer.Err())
}

// add returns the lease that the daemon obtains.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	if conf.ignoresRequest {
		r.Warn("a requested address (IP in CNI_ARGS, or ips in runtimeConfig or args.cni) has no effect, because the DHCP server chooses the address")
	}
	answer, err := call(r, conf.socket, daemon.Request{
		Method: daemon.MethodAdd, Attachment: r.Attachment(), NetNS: r.NetNS, Timeout: conf.timeout, Settings: conf.settings,
	}, addLimit)
	if err != nil {
		return nil, err
	}
	r.Undo.Push("release the lease", func() error { return releaseLease(r, conf.socket) })
	if answer.Warning != "" {
		r.Warn("%s", answer.Warning)
	}
	l := answer.Lease
	result := &types.Result{
		IPs:    []types.IP{{Interface: types.NoInterface, Address: l.Address, Gateway: l.Router}},
		Routes: l.Routes, DNS: l.DNS,
	}
	for i := range result.Routes {
		result.Routes[i].Priority = cmp.Or(conf.settings.Priority, result.Routes[i].Priority)
	}
	return result, nil
}

// check asks the daemon for the lease, and compares it with prevResult.
func check(r *skel.Request, conf *config) error {
	prev, err := r.Prev()
	if err != nil {
		return err
	}
	answer, err := call(r, conf.socket, daemon.Request{Method: daemon.MethodCheck, Attachment: r.Attachment()}, delLimit)
	if err != nil || prev == nil {
		return err
	}
	for _, ip := range prev.IPs {
		if ip.Address == answer.Lease.Address {
			return nil
		}
	}
	return types.Errorf(types.CodeChanged, "prevResult lacks the lease's address %s: the DHCP server has changed the address; delete the attachment and add it again", answer.Lease.Address)
}

func del(r *skel.Request) error {
	socket, err := parseSocket(r)
	if err != nil {
		return err
	}
	return releaseLease(r, socket)
}

// releaseLease releases the lease of the attachment. If that is not possible, it only warns.
func releaseLease(r *skel.Request, socket string) error {
	err := release(r, socket, daemon.Request{Method: daemon.MethodDel, Attachment: r.Attachment()}, func(daemon.Store) ([]types.Attachment, error) {
		return []types.Attachment{r.Attachment()}, nil
	})
	if err != nil {
		r.Warn("%v", err)
	}
	return nil
}

// release asks the daemon to release leases. If the daemon does not answer, or returns an error, release itself sends
// DHCPRELEASE for the attachments that list returns, or marks their leases for the daemon, and warns.
func release(r *skel.Request, socket string, req daemon.Request, list func(daemon.Store) ([]types.Attachment, error)) error {
	_, failure := call(r, socket, req, delLimit)
	if failure == nil {
		return nil
	}
	s := daemon.StoreOf(socket)
	s.Trace = r.Trace
	attachments, listErr := list(s)
	done, err := s.Release(attachments...)
	if err = errors.Join(listErr, err); err != nil {
		return fmt.Errorf("%v; the lease cannot be marked for release, and stays until it expires: %w", failure, err)
	}
	if done.Sent+done.Marked == 0 {
		r.Warn("%v; there is no lease file in %s to release", failure, s.Dir)
	}
	if done.Sent > 0 {
		r.Warn("%v; leases that the plugin has released itself: %d", failure, done.Sent)
	}
	if done.Marked > 0 {
		r.Warn("%v; leases marked for release by the daemon: %d; if an interface is gone by then, its lease stays until it expires (%v)", failure, done.Marked, done.Why)
	}
	return nil
}

// gc releases the network's leases whose attachments are not valid.
func gc(r *skel.Request) error {
	socket, err := parseSocket(r)
	if err != nil {
		return err
	}
	req := daemon.Request{Method: daemon.MethodGC, Attachment: types.Attachment{Network: r.Conf.Name}}
	valid := r.ValidAttachments()
	for a := range valid {
		req.Valid = append(req.Valid, a)
	}
	return release(r, socket, req, func(s daemon.Store) ([]types.Attachment, error) {
		all, err := s.Attachments()
		return slices.DeleteFunc(all, func(a types.Attachment) bool { return a.Network != r.Conf.Name || valid[a] }), err
	})
}

// status returns an error if the configuration is invalid, or if the daemon does not answer.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		_, err = call(r, conf.socket, daemon.Request{Method: daemon.MethodStatus}, statusLimit)
	}
	return types.NotAvailable(err)
}
