// Package daemon is the daemon of the IPAM plugin dhcp. It requests DHCP leases for the interfaces of containers, and
// renews them. Its parts are:
//
//   - protocol.go: the messages between plugin and daemon, and the plugin's call
//   - machine.go and exchange.go: the leases in the states of RFC 2131, all in one loop
//   - store.go: the lease files, from which the daemon reads its leases after a restart
//   - link.go: the interface of a container
//   - server.go: the socket
//   - daemon.go: the command line
package daemon

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// DefaultSocket is the path of the daemon's socket, which is the same as in the reference plugin.
const DefaultSocket = "/run/cni/dhcp.sock"

// SocketPath returns path or, if it is empty, the default path of the daemon's socket for this process (see hostfile.InRun).
func SocketPath(path string) string {
	return cmp.Or(path, hostfile.InRun(DefaultSocket), DefaultSocket)
}

// The methods of a Request.
const (
	MethodAdd    = "add"    // answers with a lease, which it requests from a server if there is none
	MethodCheck  = "check"  // answers with the existing lease of the attachment
	MethodDel    = "del"    // releases the lease of the attachment
	MethodGC     = "gc"     // releases the leases of the network whose attachments are not in Valid
	MethodStatus = "status" // answers without changing anything
)

// codeInUse is the error code of an ADD if all addresses that servers offered are in use on the segment (RFC 5227).
const codeInUse = 101

// Settings describes how to request and use a lease.
type Settings struct {
	ID       []byte         `json:"id,omitempty"`      // content of option 61; if it is empty, the MAC of the interface
	Options  []dhcp4.Option `json:"options,omitempty"` // further options to send
	Ask      []byte         `json:"ask,omitempty"`     // codes of the options to request
	Priority int            `json:"priority,omitempty"`
	SetMTU   bool           `json:"setMTU,omitempty"` // set the lease's MTU on the interface
	Probe    bool           `json:"probe,omitempty"`  // probe an address by ARP before it is used
}

// A Request is one line of JSON that the plugin writes to the socket. The daemon ignores unknown fields.
type Request struct {
	Method string `json:"method"`
	types.Attachment
	NetNS   string        `json:"netns,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"` // limit of MethodAdd; if it is zero, the daemon's limit
	Settings
	Valid []types.Attachment `json:"valid,omitempty"`
}

// An Answer is one line of JSON that the daemon writes to the socket. Code is zero if the
// request succeeded.
type Answer struct {
	Lease   *dhcp4.Lease `json:"lease,omitempty"`
	Warning string       `json:"warning,omitempty"`
	Code    uint         `json:"code,omitempty"`
	Msg     string       `json:"msg,omitempty"`
}

// Err returns the error of the answer, or nil.
func (a Answer) Err() error {
	if a.Code == 0 {
		return nil
	}
	return &types.Error{Code: a.Code, Msg: a.Msg}
}

// failure returns the answer for an error.
func failure(err error) Answer {
	coded := types.AsError(err)
	return Answer{Code: coded.Code, Msg: coded.Error()}
}

// StoreOf returns the store of the daemon with that socket, which for /run/cni/dhcp.sock is the directory
// /run/cni/dhcp.
func StoreOf(socket string) Store {
	dir, isSock := strings.CutSuffix(filepath.Clean(socket), ".sock")
	if !isSock {
		dir += ".leases"
	}
	return Store{Dir: dir}
}

// Call sends a request to the daemon and returns its answer. If no answer comes before ctx ends, Call returns an error
// with types.CodeIO, and the daemon ends the ADD.
func Call(ctx context.Context, socket string, req Request) (Answer, error) {
	answer, err := roundTrip(ctx, socket, req)
	if ended := ctx.Err(); err != nil && ended != nil {
		err = fmt.Errorf("the DHCP daemon at %s does not answer: %w", socket, ended)
	}
	return answer, types.Coded(types.CodeIO, err)
}

func roundTrip(ctx context.Context, socket string, req Request) (Answer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		p := types.Problem{Object: "DHCP daemon", Kind: types.ProblemMissing, Advice: "start the unit cni-dhcp.service or plumb-dhcp.service, or run \"dhcp daemon\""}
		return Answer{}, p.Errorf("the DHCP daemon cannot be reached (is \"dhcp daemon\" running?): %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	line, err := json.Marshal(req)
	if err != nil {
		return Answer{}, fmt.Errorf("encode request for the DHCP daemon: %w", err)
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return Answer{}, fmt.Errorf("send request to the DHCP daemon: %w", err)
	}
	text, err := readLine(conn)
	if err != nil {
		return Answer{}, fmt.Errorf("read answer of the DHCP daemon at %s: %w", socket, err)
	}
	var answer Answer
	if bytes.HasPrefix(text, []byte("HTTP/")) {
		return Answer{}, fmt.Errorf("the daemon of the reference plugin listens at %s; stop it, and start the daemon of this plugin", socket)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return Answer{}, fmt.Errorf("decode answer of the DHCP daemon: %w", err)
	}
	return answer, nil
}

// maxLine limits a request and an answer. GC of a large host sends some hundred KiB.
const maxLine = 8 << 20

// readLine reads until the end of a line or of the stream.
func readLine(r io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: r, N: maxLine}
	line, err := bufio.NewReader(limited).ReadBytes('\n')
	switch {
	case errors.Is(err, io.EOF) && limited.N <= 0:
		return nil, fmt.Errorf("the line is longer than %d bytes", maxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, nil
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	}
	return line, err
}

// parseRequest decodes a request. It checks the path of the namespace, because a relative path would refer to the
// daemon's working directory. The plugin has checked the other values. Errors have a code of the specification.
func parseRequest(line []byte) (req Request, err error) {
	if bytes.HasPrefix(line, []byte("CONNECT ")) {
		return req, errReferenceClient
	}
	if err := json.Unmarshal(line, &req); err != nil {
		return req, types.Errorf(types.CodeDecode, "decode request: %w", err)
	}
	if req.Method == MethodAdd && !filepath.IsAbs(req.NetNS) {
		return req, types.Errorf(types.CodeNamespace, "netns %q is not an absolute path", req.NetNS)
	}
	switch req.Method {
	case MethodAdd, MethodCheck, MethodDel, MethodGC, MethodStatus:
		return req, nil
	}
	return req, types.Errorf(types.CodeDecode, "unknown method %q; install the same version of plugin and daemon", req.Method)
}

// errReferenceClient is the error for requests of the reference plugin, which uses HTTP.
var errReferenceClient = errors.New("this is the DHCP daemon of plumb, which the reference plugin dhcp cannot call; install plumb's plugin")
