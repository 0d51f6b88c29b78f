package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/plumb-cni/plumb/pkg/datastore"
	"github.com/plumb-cni/plumb/pkg/types"
)

const (
	// nextEndpoint is how long the first read waits for an answer before it also tries the next endpoint.
	nextEndpoint = 200 * time.Millisecond
	// retryRead is the pause before a read that a member refused is tried again.
	retryRead = 100 * time.Millisecond
)

// keys are the keys of a segment. Addresses are "4/" or "6/" and a fixed number of hexadecimal digits, so
// that the order of keys is that of addresses.
//
//	<root>a/4/0a070029         "<node> <claim>"    the owner of an address
//	<root>n/<node>/4/0a070029  "<claim> <time>"    the same, by node
//	<root>node/<node>          "<machine> <boot>"  the registration of a node
//	<root>last/<node>          "<time>"            its last claim or register
//	<root>frozen               "<time> <node>"     exists if the segment is frozen
//	<root>store                "<random>"          the ID of this store; thaw writes it again
type keys struct{ root string }

func (k keys) owner(a netip.Addr) string            { return k.root + "a/" + digits(a) }
func (k keys) owned(node string) string             { return k.root + "n/" + node + "/" }
func (k keys) own(node string, a netip.Addr) string { return k.owned(node) + digits(a) }
func (k keys) node(node string) string              { return k.root + "node/" + node }
func (k keys) last(node string) string              { return k.root + "last/" + node }
func (k keys) frozen() string                       { return k.root + "frozen" }
func (k keys) store() string                        { return k.root + "store" }

// rangeOf are the keys of the owners of a block, for clientv3.WithRange.
func (k keys) rangeOf(b block) (key, end string) {
	return k.owner(b.addr(b.first)), k.owner(b.addr(b.last)) + "\x00"
}

func digits(a netip.Addr) string {
	family := "6/"
	if a.Is4() {
		family = "4/"
	}
	return family + hex.EncodeToString(a.AsSlice())
}

// addrOf returns the address at the end of a key.
func addrOf(key []byte) (netip.Addr, error) {
	text := string(key[strings.LastIndexByte(string(key), '/')+1:])
	b, err := hex.DecodeString(text)
	a, ok := netip.AddrFromSlice(b)
	if err != nil || !ok {
		return a, fmt.Errorf("etcd has key %q, which does not end with an address", key)
	}
	return a, nil
}

// A session is one call: a request, and the member of etcd that serves it.
type session struct {
	*request
	keys
	client   *clientv3.Client // nil before the first read
	revision int64            // the highest one seen in this call
	storeID  string           // the last one seen in this call
	// registration is the revision of the node's registration that this call read first, or wrote; 0: there was
	// none, and -1: not read yet. Each change of the node compares it, so that one that arrives after a later
	// register or remove-node does nothing.
	registration int64
}

func (s *session) close() {
	if s.client != nil {
		_ = s.client.Close()
	}
}

// An entry is a key with its value, and the revision of its last change. Both are zero if it does not exist.
type entry struct {
	key, value string
	revision   int64
}

func entryOf(key string, r *clientv3.GetResponse) entry {
	if len(r.Kvs) == 0 {
		return entry{key: key}
	}
	return entry{key, string(r.Kvs[0].Value), r.Kvs[0].ModRevision}
}

// unchanged is the condition that nothing has written or removed the entry since it was read.
func (e entry) unchanged() clientv3.Cmp { return unchangedSince(e.key, e.revision) }

func unchangedSince(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// A view is what one read returned.
type view struct {
	node   entry // the registration of the request's node
	frozen entry
	store  entry
	free   uint64 // an estimate in a large pool, and 0 only if none is free
	extra  []*clientv3.GetResponse
}

// look reads, at one revision, what each verb needs, and the results of extra, which are get operations.
// The first call also finds a member that answers.
func (s *session) look(ctx context.Context, extra ...clientv3.Op) (view, error) {
	sample, whole := s.pool.sample()
	v, err := s.lookAt(ctx, sample, extra)
	if err == nil && v.free == 0 && !whole {
		v, err = s.lookAt(ctx, s.pool, extra)
	}
	return v, err
}

// lookUncounted is look without counting: free is 0.
func (s *session) lookUncounted(ctx context.Context, extra ...clientv3.Op) (view, error) {
	return s.lookAt(ctx, pool{}, extra)
}

// lookAt is look with a sample of the pool.
func (s *session) lookAt(ctx context.Context, sample pool, extra []clientv3.Op) (view, error) {
	ops := []clientv3.Op{clientv3.OpGet(s.frozen()), clientv3.OpGet(s.store()), clientv3.OpGet(s.node(s.Node))}
	fixed := len(ops)
	for _, b := range sample.counted() {
		key, end := s.rangeOf(b)
		ops = append(ops, clientv3.OpGet(key, clientv3.WithRange(end), clientv3.WithCountOnly()))
	}
	counts := len(ops)
	resp, err := s.read(ctx, append(ops, extra...))
	if err != nil {
		return view{}, err
	}
	var all []*clientv3.GetResponse
	for _, r := range resp.Responses {
		all = append(all, (*clientv3.GetResponse)(r.GetResponseRange()))
	}
	v := view{frozen: entryOf(s.frozen(), all[0]), store: entryOf(s.store(), all[1]), node: entryOf(s.node(s.Node), all[2]), extra: all[counts:]}
	s.storeID = v.store.value
	if s.registration < 0 {
		s.registration = v.node.revision
	}
	var used []int64
	for _, r := range all[fixed:counts] {
		used = append(used, r.Count)
	}
	v.free = s.pool.estimate(sample, used)
	return v, nil
}

// valueOf returns the value of a single key, or "".
func valueOf(r *clientv3.GetResponse) string {
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// read runs get operations. The member that answers first serves the rest of the call.
func (s *session) read(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	var resp *clientv3.TxnResponse
	var err error
	if s.client == nil {
		s.client, resp, err = s.firstMember(ctx, ops)
	} else {
		resp, err = readFrom(ctx, s.client, ops)
	}
	if err != nil {
		return nil, s.readError(err)
	}
	s.revision = max(s.revision, resp.Header.Revision)
	return resp, nil
}

// firstMember reads from the endpoints, in random order, and returns the first answer with its client. It
// turns to the next endpoint when there is no answer for some time, because a member may accept
// connections and not serve: it has stopped, or has no connection to the others. So the change that
// follows goes to a member that serves.
func (s *session) firstMember(ctx context.Context, ops []clientv3.Op) (*clientv3.Client, *clientv3.TxnResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	order := rand.Perm(len(s.config.Endpoints))
	a, err := firstOf(len(order), func(i int) attempt {
		return s.config.try(ctx, s.config.Endpoints[order[i]], time.Duration(i)*nextEndpoint, ops)
	})
	return a.client, a.resp, err
}

// firstOf makes n attempts at the same time, and returns the first that succeeds. It closes the clients of all
// others. If an attempt is refused, or if all fail, it returns an error.
func firstOf(n int, try func(i int) attempt) (attempt, error) {
	results := make(chan attempt, n)
	for i := range n {
		go func() { results <- try(i) }()
	}
	var errs []error
	for left := n - 1; left >= 0; left-- {
		a := <-results
		if a.err == nil {
			go closeAll(results, left)
			return a, nil
		}
		a.close()
		if isRefusal(a.err) {
			go closeAll(results, left)
			return attempt{}, a.err
		}
		errs = append(errs, a.err)
	}
	return attempt{}, errors.Join(errs...)
}

// closeAll closes the clients of so many attempts that are still to come.
func closeAll(results <-chan attempt, n int) {
	for range n {
		(<-results).close()
	}
}

// An attempt is the first read from one endpoint.
type attempt struct {
	client *clientv3.Client
	resp   *clientv3.TxnResponse
	err    error
}

// close closes the client, if there is one.
func (a attempt) close() {
	if a.client != nil {
		_ = a.client.Close()
	}
}

// try waits for delay, and reads from one endpoint.
func (c config) try(ctx context.Context, endpoint string, delay time.Duration, ops []clientv3.Op) (a attempt) {
	var cause atomic.Pointer[string]
	select {
	case <-time.After(delay):
		a.client, a.err = clientv3.New(clientv3.Config{
			Endpoints: []string{endpoint}, TLS: c.tls, Logger: zap.NewNop(),
			DialOptions: []grpc.DialOption{grpc.WithNoProxy(), grpc.WithChainUnaryInterceptor(recordError(&cause))},
		})
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	if a.err == nil {
		a.resp, a.err = readFrom(ctx, a.client, ops)
	}
	if text := cause.Load(); a.err != nil && text != nil && !isRefusal(a.err) {
		a.err = errors.New(*text)
	}
	if a.err != nil {
		a.err = fmt.Errorf("%s: %w", endpoint, a.err)
	}
	return a
}

// recordError stores the text of each error in last. The client replaces errors at the deadline, and says
// no longer why it could not connect.
func recordError(last *atomic.Pointer[string]) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err != nil {
			text := rpctypes.ErrorDesc(err)
			last.Store(&text)
		}
		return err
	}
}

// readFrom runs get operations in one transaction. It tries again until ctx ends or etcd refuses the client.
func readFrom(ctx context.Context, client *clientv3.Client, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	for {
		resp, err := client.Txn(ctx).Then(ops...).Commit()
		if err == nil || isRefusal(err) || ctx.Err() != nil {
			return resp, err
		}
		select {
		case <-time.After(retryRead):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// change runs a transaction that changes something. The caller must report an error with ReasonUnknown,
// and must not repeat the transaction.
func (s *session) change(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := s.client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, s.changeError(err)
	}
	s.revision = max(s.revision, resp.Header.Revision)
	return resp, nil
}

// isRefusal reports whether etcd refused a request for good: it did nothing, and will not do it later.
// Other errors say nothing about the outcome of a change.
func isRefusal(err error) bool {
	var e rpctypes.EtcdError
	if !errors.As(err, &e) {
		return false // of the client or the connection
	}
	switch e.Code() {
	case codes.InvalidArgument:
		return !errors.Is(e, rpctypes.ErrAuthOldRevision) // a member that is about to learn of a changed role
	case codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return true
	}
	return false
}

// readError returns the error of an answer for an error of a read.
func (s *session) readError(err error) error {
	if isRefusal(err) {
		return s.refusal(err)
	}
	hint := ""
	if s.config.tls != nil {
		hint = " (the log of etcd names a certificate that it refuses)"
	}
	return failf(types.CodeTryAgain, datastore.ReasonUnreachable, "etcd did not answer within %v: %s%s",
		s.config.timeout, strings.ReplaceAll(err.Error(), "\n", "; "), hint)
}

// changeError returns the error of an answer for an error of a change.
func (s *session) changeError(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace): // even for a change that etcd has applied, because it checks the quota twice
		return failf(types.CodeTryAgain, datastore.ReasonUnknown,
			"etcd's database is full (alarm NOSPACE), and the change may have happened: compact and defragment it, and disarm the alarm; then register")
	case isRefusal(err):
		return s.refusal(err)
	}
	return failf(types.CodeTryAgain, datastore.ReasonUnknown,
		"etcd did not confirm a change, which may happen now or later: register before the next claim: %w", err)
}

// refusal returns the error of an answer for a request that etcd refused.
func (s *session) refusal(err error) error {
	var e rpctypes.EtcdError
	switch errors.As(err, &e); {
	case e.Code() == codes.PermissionDenied || e.Code() == codes.Unauthenticated:
		return failf(types.CodeConfig, datastore.ReasonDenied, "etcd refuses the certificate %s: grant its user a role with readwrite on the prefix %s: %w",
			s.config.CertFile, s.root, e)
	case e.Code() == codes.ResourceExhausted:
		return failf(types.CodeTryAgain, datastore.ReasonUnreachable, "etcd is overloaded: %w", e)
	}
	return failf(types.CodeInternal, datastore.ReasonInternal, "etcd refuses the request: %w", e)
}

// eachValue calls f with the last part of each key and the words of its value: the first, and the rest.
func eachValue(kvs []*mvccpb.KeyValue, f func(name, first, rest string)) {
	for _, kv := range kvs {
		first, rest, _ := strings.Cut(string(kv.Value), " ")
		f(string(kv.Key[strings.LastIndexByte(string(kv.Key), '/')+1:]), first, rest)
	}
}
