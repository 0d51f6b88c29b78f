package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/version"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

const (
	// maxBody is the largest answer of the API server that the datastore reads, in bytes.
	maxBody = 256 << 20
	// retryPause is the pause before a read is tried again, unless the API server sets Retry-After.
	retryPause = 100 * time.Millisecond
)

// A failure is an answer of the API server with an HTTP status of 400 or more. It is a Status object, if the body is one.
type failure struct {
	Code    int `json:"-"` // the HTTP status
	Message string
	Details struct{ Name string }
	after   time.Duration // the value of Retry-After
}

func (f *failure) Error() string {
	return fmt.Sprintf("%s (HTTP status %d)", f.Message, f.Code)
}

// A request is one request to the API server.
type request struct {
	method, path string
	query        url.Values
	in, out      any // the body, and the object into which the answer is decoded
}

// do sends one request. An HTTP status of 400 or more is a *failure.
func (s *session) do(ctx context.Context, r request) error {
	var body []byte
	if r.in != nil {
		var err error
		if body, err = json.Marshal(r.in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, s.client.Server+r.path+"?"+r.query.Encode(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "cluster-local-kubernetes/"+version.String())
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if _, partial := r.out.(*list[metadataOnly]); partial {
		req.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	}
	if s.client.Token != "" {
		req.Header.Set("Authorization", "Bearer "+s.client.Token)
	}
	resp, err := s.client.HTTP.Do(req)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return newFailure(resp, text)
	}
	if r.out == nil {
		return nil
	}
	return json.Unmarshal(text, r.out)
}

func newFailure(resp *http.Response, text []byte) *failure {
	f := &failure{}
	if json.Unmarshal(text, f) != nil || f.Message == "" {
		f.Message = strings.TrimSpace(string(text[:min(len(text), 200)]))
	}
	f.Code = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		f.after = time.Duration(seconds) * time.Second
	}
	return f
}

// read sends a GET. It tries again until ctx ends, unless the API server has refused the request. Its error names the last
// answer of the API server, even if ctx ended during a later request.
func (s *session) read(ctx context.Context, path string, query url.Values, out any) error {
	var f *failure
	for {
		err := s.do(ctx, request{method: http.MethodGet, path: path, query: query, out: out})
		pause := retryPause
		switch {
		case err == nil:
			return nil
		case f != nil && ctx.Err() != nil:
			return s.unreachable(f)
		case errors.As(err, &f):
			if f.Code < http.StatusInternalServerError && f.Code != http.StatusTooManyRequests {
				return f
			}
			pause = max(pause, f.after)
		case isUntrusted(err):
			return s.untrusted(err)
		}
		if !sleep(ctx, pause) {
			return s.unreachable(err)
		}
	}
}

// sleep waits, and reports false if ctx ends before that.
func sleep(ctx context.Context, pause time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < pause {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// change sends a request that writes. It sends the request again only if the API server has refused it because of its
// load (429). conflict is true if the object was changed or created meanwhile, or does not exist any more. After an error
// with datastore.ReasonUnknown, the change may have happened, or may happen later.
func (s *session) change(ctx context.Context, r request) (conflict bool, err error) {
	for {
		err = s.do(ctx, r)
		var f *failure
		if !errors.As(err, &f) || f.Code != http.StatusTooManyRequests {
			break
		}
		if !sleep(ctx, max(retryPause, f.after)) {
			return false, s.unreachable(err)
		}
	}
	var f *failure
	var dial *net.OpError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &f) && f.Code == http.StatusConflict, errors.As(err, &f) && f.Code == http.StatusNotFound && f.Details.Name != "":
		return true, nil
	case errors.As(err, &f) && f.Code < http.StatusInternalServerError:
		return false, s.refusal(f)
	case errors.As(err, &dial) && dial.Op == "dial":
		return false, s.unreachable(err)
	case isUntrusted(err): // before the request was sent
		return false, s.untrusted(err)
	}
	return false, server.Errorf(types.CodeTryAgain, datastore.ReasonUnknown,
		"the API server did not confirm a change, which may happen now or later: %w; register before the next claim", err)
}

// unreachable returns the error for an API server that did not answer in time.
func (s *session) unreachable(err error) error {
	return server.Errorf(types.CodeTryAgain, datastore.ReasonUnreachable, "the API server did not answer within %v: %w", s.config.Deadline(), err)
}

// isUntrusted reports whether the CA of the kubeconfig has not signed the API server's certificate, for example because the
// cluster's CA was rotated.
func isUntrusted(err error) bool {
	var verification *tls.CertificateVerificationError
	return errors.As(err, &verification)
}

// untrusted returns the error for an API server whose certificate is not trusted.
func (s *session) untrusted(err error) error {
	return server.Errorf(types.CodeTryAgain, datastore.ReasonUnreachable,
		"the CA in %s does not fit the API server's certificate: %w; check that plumb's DaemonSet runs on this node, or replace the CA", s.config.Kubeconfig, err)
}

// refusal returns the error for the answer after the API server has refused a request.
func (s *session) refusal(f *failure) error {
	switch {
	case f.Code == http.StatusUnauthorized:
		return server.Errorf(types.CodeTryAgain, datastore.ReasonUnreachable,
			"the API server does not accept the credentials in %s, which may have expired: %w; check that plumb's DaemonSet runs on this node", s.config.Kubeconfig, f)
	case f.Code == http.StatusForbidden:
		return server.Errorf(types.CodeConfig, datastore.ReasonDenied, "%w; apply plugins/cluster-local/deploy/rbac.yaml", f)
	case f.Code == http.StatusUnprocessableEntity && strings.Contains(f.Message, "ValidatingAdmissionPolicy"):
		return server.Errorf(types.CodeConfig, datastore.ReasonDenied, "%w", f)
	case f.Code == http.StatusNotFound:
		return server.Errorf(types.CodeConfig, datastore.ReasonDenied,
			"the API server does not know the resources of %s: %w; apply plugins/cluster-local/deploy/crds.yaml", group, f)
	}
	return server.Errorf(types.CodeInternal, datastore.ReasonInternal, "the API server refuses the request: %w", f)
}

// object is a custom resource.
type object[S any] struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       S        `json:"spec"`
}

// metadata contains what the datastore uses and, in the last fields, what an update must preserve.
type metadata struct {
	Name            string            `json:"name"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     json.RawMessage   `json:"annotations,omitempty"`
	Finalizers      json.RawMessage   `json:"finalizers,omitempty"`
	OwnerReferences json.RawMessage   `json:"ownerReferences,omitempty"`
}

// revision returns the resource version as a number. The API server takes it from the revision of etcd. It is 0 if it is not a
// number.
func (m *metadata) revision() int64 {
	n, _ := strconv.ParseInt(m.ResourceVersion, 10, 64)
	return n
}

// metadataOnly is an object without its spec.
type metadataOnly = object[struct{}]

type list[O any] struct {
	Metadata struct {
		ResourceVersion    string
		Continue           string
		RemainingItemCount int64
	}
	Items []O
}

// kind is a kind of custom resource with its spec.
type kind[S any] struct{ kind, plural string }

func (k kind[S]) path() string { return "/apis/" + group + "/" + apiVersion + "/" + k.plural }

// get returns the object, or nil if it does not exist. A GET without resourceVersion is a consistent read
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list). A LIST, whose answer would
// contain the revision of the store, takes up to 100 ms if other objects have changed.
func (k kind[S]) get(ctx context.Context, s *session, name string) (*object[S], error) {
	o := &object[S]{}
	err := s.read(ctx, k.path()+"/"+name, nil, o)
	var f *failure
	if errors.As(err, &f) {
		if f.Code == http.StatusNotFound && f.Details.Name != "" {
			return nil, nil
		}
		return nil, s.refusal(f)
	}
	if err != nil {
		return nil, err
	}
	s.revision = max(s.revision, o.Metadata.revision())
	return o, nil
}

// update writes the object, and replaces it with the answer. It reports false if the object has changed since it was
// read.
func (k kind[S]) update(ctx context.Context, s *session, o *object[S]) (bool, error) {
	return k.write(ctx, s, o, request{method: http.MethodPut, path: k.path() + "/" + o.Metadata.Name})
}

// create creates the object, and replaces it with the answer. It reports false if the object exists.
func (k kind[S]) create(ctx context.Context, s *session, o *object[S]) (bool, error) {
	return k.write(ctx, s, o, request{method: http.MethodPost, path: k.path()})
}

func (k kind[S]) write(ctx context.Context, s *session, o *object[S], r request) (bool, error) {
	o.APIVersion, o.Kind = group+"/"+apiVersion, k.kind
	answer := object[S]{}
	r.in, r.out = o, &answer
	conflict, err := s.change(ctx, r)
	if err != nil || conflict {
		return false, err
	}
	*o = answer
	s.revision = max(s.revision, o.Metadata.revision())
	return true, nil
}

// pageSize is how many objects one LIST returns, at most.
const pageSize = 500

// each calls f with the items of each page of a LIST of the segment's objects.
func each[O any](ctx context.Context, s *session, path string, f func([]O) error) error {
	query := s.selector()
	for token := ""; ; {
		query.Set("limit", strconv.Itoa(pageSize))
		if query.Del("continue"); token != "" {
			query.Set("continue", token)
		}
		page, err := readList[O](ctx, s, path, query)
		if err != nil {
			return err
		}
		if err := f(page.Items); err != nil {
			return err
		}
		if token = page.Metadata.Continue; token == "" {
			return nil
		}
	}
}

// readList returns one page of a LIST. The API server promises that a LIST without resourceVersion is not older than what this
// call has already read or written. If the first page is older nevertheless, readList sends the LIST again.
func readList[O any](ctx context.Context, s *session, path string, query url.Values) (*list[O], error) {
	for {
		page := &list[O]{}
		err := s.read(ctx, path, query, page)
		var f *failure
		if errors.As(err, &f) {
			return nil, s.refusal(f)
		}
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(page.Metadata.ResourceVersion, 10, 64)
		if err != nil || n >= s.revision || query.Has("continue") { // all pages of a LIST have the version of the first page
			s.revision = max(s.revision, n)
			return page, nil
		}
		if !sleep(ctx, retryPause) {
			return nil, s.unreachable(fmt.Errorf("a LIST has the resource version %d, which is older than %d", n, s.revision))
		}
	}
}
