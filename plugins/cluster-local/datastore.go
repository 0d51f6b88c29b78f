package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/invoke"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// killAfter is how long after the datastore's own time limit the plugin kills it.
const killAfter = 2 * time.Second

// call runs the datastore, and returns its checked answer. An error wraps a *datastore.Error. If its reason is
// datastore.ReasonUnknown, the requested change may have happened, or may happen later. For all other reasons,
// nothing has changed.
func (n *network) call(req datastore.Request, limit time.Duration) (*datastore.Answer, error) {
	machine, err := n.machine()
	if err != nil {
		return nil, n.failure(datastore.ReasonInternal, err)
	}
	req.Segment, req.Node, req.Machine, req.Datastore = n.segment, n.node, machine, n.datastore
	input, err := json.Marshal(req)
	if err != nil {
		return nil, n.failure(datastore.ReasonInternal, err)
	}
	output, err := n.host.run(n.request, n.program, input, limit)
	if errors.Is(err, invoke.ErrNotStarted) {
		return nil, n.failure(datastore.ReasonInternal, err)
	}
	answer, answerErr := decodeAnswer(output, req)
	if answerErr == nil {
		for _, text := range answer.Warnings {
			n.request.Warn("%s: %s", n.program, text)
		}
	}
	switch {
	case answerErr == nil && answer.Error != nil && !errors.Is(err, invoke.ErrKilled):
		return answer, n.failure(answer.Error.Reason, answer.Error)
	case err != nil:
		return nil, n.failure(datastore.ReasonUnknown, err)
	case answerErr != nil:
		return nil, n.failure(datastore.ReasonUnknown, fmt.Errorf("decode answer: %w", answerErr))
	}
	return answer, nil
}

// failure returns an error of the datastore with the code of err, or with types.CodeTryAgain if err has none.
func (n *network) failure(reason string, err error) error {
	e := &datastore.Error{Code: types.CodeTryAgain, Reason: reason, Msg: err.Error()}
	var coded *types.Error
	var own *datastore.Error
	switch {
	case errors.As(err, &own):
		e.Code = own.Code
	case errors.As(err, &coded):
		e.Code = coded.Code
	}
	return types.Errorf(e.Code, "%s: %w", n.program, e)
}

// reasonOf returns the reason of an error of the datastore, or "" for another error.
func reasonOf(err error) string {
	var e *datastore.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// decodeAnswer returns the answer in a datastore's output. It returns an error if the answer cannot belong to the
// request. An answer that contains an error contains no addresses.
func decodeAnswer(output []byte, req datastore.Request) (*datastore.Answer, error) {
	var a datastore.Answer
	if err := json.Unmarshal(output, &a); err != nil {
		return nil, err
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(a.Revision < 0, "revision %d is negative", a.Revision)
	reportIf(a.Store != "" && !datastore.IsClaim(a.Store), "%q is not the ID of a store", a.Store)
	if e := a.Error; e != nil {
		reportIf(e.Code == 0 || e.Reason == "" || e.Msg == "", "the error lacks code, reason or msg")
		reportIf(len(a.Addresses) > 0, "the answer contains an error and addresses")
		return &a, errors.Join(errs...)
	}
	for ip, claim := range a.Addresses {
		reportIf(!datastore.IsAddress(ip), "address %q must have one text form only", ip)
		reportIf(!datastore.IsClaim(claim), "address %s: %q is not a claim", ip, claim)
		reportIf(!mayAnswer(req, ip), "address %s was not requested", ip)
	}
	reportIf(req.Verb == datastore.Claim && len(a.Addresses) == 0, "want an address, got none")
	reportIf(req.Verb == datastore.Claim && len(req.Requested) == 0 && len(a.Addresses) > req.Want, "want at most %d addresses, got %d", req.Want, len(a.Addresses))
	reportIf(len(req.Requested) > 0 && len(a.Addresses) != len(req.Requested), "want %v, got %d addresses", req.Requested, len(a.Addresses))
	return &a, errors.Join(errs...)
}

// mayAnswer reports whether the answer to the request may contain the address.
func mayAnswer(req datastore.Request, ip netip.Addr) bool {
	switch {
	case req.Verb == datastore.Register:
		return true
	case req.Verb != datastore.Claim:
		_, asked := req.Addresses[ip]
		return asked
	case len(req.Requested) > 0:
		return slices.Contains(req.Requested, ip)
	}
	s := pool.Set{Exclude: req.Exclude}
	for _, r := range req.Ranges {
		s.Ranges = append(s.Ranges, pool.Range(r))
	}
	return s.Contains(ip)
}

// newRequest returns a request whose answer counts the free addresses of a set.
func (n *network) newRequest(verb string, set int) datastore.Request {
	req := datastore.Request{Verb: verb}
	if set != noSet {
		req.Exclude = n.sets[set].Exclude
		for _, r := range n.sets[set].Ranges {
			req.Ranges = append(req.Ranges, datastore.Range(r))
		}
	}
	return req
}
