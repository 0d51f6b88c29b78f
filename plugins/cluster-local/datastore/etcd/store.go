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

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

const (
	// nextEndpoint is how long the first read waits for an answer before it also tries the next endpoint.
	nextEndpoint = 200 * time.Millisecond
	// retryRead is the pause before a read that a member refused is tried again.
	retryRead = 100 * time.Millisecond
)

// keys builds the keys of a segment. An address is "4/" or "6/" and a fixed number of hexadecimal digits, so
// that keys and addresses have the same order.
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

// rangeOf returns the first key of the owners of a block, and the end for clientv3.WithRange.
func (k keys) rangeOf(b server.Block) (key, end string) {
	return k.owner(b.First()), k.owner(b.Last()) + "\x00"
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
		return a, fmt.Errorf("etcd: key %q does not end with an address", key)
	}
	return a, nil
}

// A session is one call, with its request and the etcd member that serves it.
type session struct {
	*server.Request
	config config
	keys
	client   *clientv3.Client // nil before the first read
	revision int64            // the highest revision seen in this call
	storeID  string           // the last store ID seen in this call
	// registration is the revision of the node's registration that this call first read, or wrote. It is 0 if there was
	// none, and -1 before the first read. Each change of the node compares it, so that a change that arrives after a later
	// register or remove-node does nothing.
	registration int64
}

func (s *session) close() {
	if s.client != nil {
		_ = s.client.Close()
	}
}

// An entry is a key with its value and the revision of its last change. Both are zero if the key does not exist.
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

// unchanged returns the condition that no change has written or removed the entry since it was read.
func (e entry) unchanged() clientv3.Cmp { return unchangedSince(e.key, e.revision) }

func unchangedSince(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// A view is what one read returned.
type view struct {
	node   entry // the registration of the request's node
	frozen entry
	store  entry
	free   uint64                  // the number of free addresses, which is estimated in a large pool, and 0 only if none is free
	extra  []*clientv3.GetResponse // the results of the operations that the caller passed
}

// look reads what each verb needs, and runs the get operations in extra, at one revision. The first call also finds a
// member that answers.
func (s *session) look(ctx context.Context, extra ...clientv3.Op) (view, error) {
	sample, whole := s.Pool.Sample()
	v, err := s.lookAt(ctx, sample, extra)
	if err == nil && v.free == 0 && !whole {
		v, err = s.lookAt(ctx, s.Pool, extra)
	}
	return v, err
}

// lookUncounted reads like look, but does not count. The view's field free is 0.
func (s *session) lookUncounted(ctx context.Context, extra ...clientv3.Op) (view, error) {
	return s.lookAt(ctx, server.Pool{}, extra)
}

// lookAt reads like look, and counts the owners in a sample of the pool.
func (s *session) lookAt(ctx context.Context, sample server.Pool, extra []clientv3.Op) (view, error) {
	ops := []clientv3.Op{clientv3.OpGet(s.frozen()), clientv3.OpGet(s.store()), clientv3.OpGet(s.node(s.Node))}
	fixed := len(ops)
	for _, b := range sample.Counted() {
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
	v.free = s.Pool.Estimate(sample, used)
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

// firstMember reads from the endpoints in random order, and returns the first answer with its client, so that the change
// that follows goes to a member that serves. It also tries the next endpoint when there is no answer for nextEndpoint,
// because a member may accept connections and not serve them if it is stopped, or not connected to the others.
func (s *session) firstMember(ctx context.Context, ops []clientv3.Op) (*clientv3.Client, *clientv3.TxnResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	order := rand.Perm(len(s.config.Endpoints))
	a, err := firstOf(len(order), func(i int) attempt {
		return s.config.try(ctx, s.config.Endpoints[order[i]], time.Duration(i)*nextEndpoint, ops)
	})
	return a.client, a.resp, err
}

// firstOf starts n attempts at the same time, and returns the first that succeeds. It closes the clients of all others.
// If etcd refuses an attempt, or if all attempts fail, it returns an error.
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

// recordError stores the text of each error in last, because at the deadline the client replaces the error
// that contains the cause.
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

// change runs a transaction that writes keys. The caller must not repeat it after an error with datastore.ReasonUnknown.
func (s *session) change(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := s.client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, s.changeError(err)
	}
	s.revision = max(s.revision, resp.Header.Revision)
	return resp, nil
}

// isRefusal reports whether etcd refused a request, so that it neither has run nor will run. After other errors, the
// outcome of a change is unknown.
func isRefusal(err error) bool {
	var e rpctypes.EtcdError
	if !errors.As(err, &e) {
		return false // an error of the client or the connection
	}
	switch e.Code() {
	case codes.InvalidArgument:
		return !errors.Is(e, rpctypes.ErrAuthOldRevision) // a member that does not know of a changed role yet
	case codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return true
	}
	return false
}

// readError returns the error for the answer after a read has failed.
func (s *session) readError(err error) error {
	if isRefusal(err) {
		return s.refusal(err)
	}
	advice := ""
	if s.config.tls != nil {
		advice = "; if etcd refuses the certificate, its log says so"
	}
	return server.Errorf(types.CodeTryAgain, datastore.ReasonUnreachable, "etcd did not answer within %v: %s%s",
		s.config.Deadline(), strings.ReplaceAll(err.Error(), "\n", "; "), advice)
}

// changeError returns the error for the answer after a change has failed.
func (s *session) changeError(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace): // etcd checks the quota twice, so that it can answer this after it has applied the change
		return server.Errorf(types.CodeTryAgain, datastore.ReasonUnknown,
			"etcd's database is full (alarm NOSPACE), and the change may have happened; compact and defragment it, disarm the alarm, and register")
	case isRefusal(err):
		return s.refusal(err)
	}
	return server.Errorf(types.CodeTryAgain, datastore.ReasonUnknown,
		"etcd did not confirm a change, which may happen now or later: %w; register before the next claim", err)
}

// refusal returns the error for the answer after etcd has refused a request.
func (s *session) refusal(err error) error {
	var e rpctypes.EtcdError
	switch errors.As(err, &e); {
	case e.Code() == codes.PermissionDenied || e.Code() == codes.Unauthenticated:
		return server.Errorf(types.CodeConfig, datastore.ReasonDenied, "etcd refuses the certificate %s: %w; grant its user a role with readwrite on the prefix %s",
			s.config.CertFile, e, s.root)
	case e.Code() == codes.ResourceExhausted:
		return server.Errorf(types.CodeTryAgain, datastore.ReasonUnreachable, "etcd is overloaded: %w", e)
	}
	return server.Errorf(types.CodeInternal, datastore.ReasonInternal, "etcd refuses the request: %w", e)
}

// eachValue calls f with the last part of each key, the first word of its value, and the rest of the value.
func eachValue(kvs []*mvccpb.KeyValue, f func(name, first, rest string)) {
	for _, kv := range kvs {
		first, rest, _ := strings.Cut(string(kv.Value), " ")
		f(string(kv.Key[strings.LastIndexByte(string(kv.Key), '/')+1:]), first, rest)
	}
}
