package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A server answers the requests on the daemon's socket.
type server struct {
	machine *machine
	options options
}

// requestTimeout limits how long a caller may take to send its request.
const requestTimeout = 10 * time.Second

// serve handles connections until ctx is done. It returns after the last connection is closed.
func (s *server) serve(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // for example if too many files are open
			s.machine.log("accept a connection: %v", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		wg.Go(func() { s.handle(ctx, conn) })
	}
}

// handle reads one request and writes the answer. It cancels the request if the client closes the connection or ctx is done.
func (s *server) handle(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	line, err := readLine(conn)
	if err != nil {
		return
	}
	if ctx.Err() == nil {
		_ = conn.SetReadDeadline(time.Time{})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn) // ends when the client or handle closes conn
		cancel(errors.New("the caller has hung up"))
	}()
	req, err := parseRequest(line)
	if errors.Is(err, errReferenceClient) {
		_, _ = fmt.Fprintf(conn, "HTTP/1.0 400 %v\r\n\r\n", err)
	} else if err != nil {
		s.write(conn, failure(err))
	} else if !s.write(conn, s.answer(ctx, req)) && req.Method == MethodAdd {
		s.del(context.WithoutCancel(ctx), req.Attachment) // the client did not receive the lease
	}
	_ = conn.Close()
	<-ended
}

// write writes an answer, and reports whether it succeeded.
func (s *server) write(conn net.Conn, a Answer) bool {
	text, err := json.Marshal(a)
	if err == nil {
		_, err = conn.Write(append(text, '\n'))
	}
	return err == nil
}

func (s *server) answer(ctx context.Context, req Request) Answer {
	m := s.machine
	switch req.Method {
	case MethodAdd:
		answer := s.add(ctx, req)
		if answer.Code != 0 {
			s.machine.log("%s: ADD failed: %s", req.Attachment, answer.Msg)
		}
		return answer
	case MethodCheck:
		return m.submit(ctx, func(c *call) { m.check(req.Attachment, c) })
	case MethodDel:
		return s.del(ctx, req.Attachment)
	case MethodGC:
		valid := types.Set{}
		for _, o := range req.Valid {
			valid[o] = true
		}
		return m.submit(ctx, func(c *call) {
			m.del(func(o types.Attachment) bool { return o.Network == req.Network && !valid[o] }, c)
		})
	}
	return Answer{}
}

func (s *server) del(ctx context.Context, owner types.Attachment) Answer {
	return s.machine.submit(ctx, func(c *call) { s.machine.del(func(o types.Attachment) bool { return o == owner }, c) })
}

func (s *server) add(ctx context.Context, req Request) Answer {
	limit := s.options.addTimeout
	if req.Timeout > 0 {
		limit = req.Timeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("none within %s", limit))
	defer cancel()
	if s.options.hostPrefix != "" {
		req.NetNS = filepath.Join(s.options.hostPrefix, req.NetNS)
	}
	r, wasDown, err := findLink(req, s.options.broadcast)
	if err != nil {
		return failure(types.Coded(types.CodeInternal, err))
	}
	r.Boot = s.machine.boot
	answer := s.machine.submit(ctx, func(c *call) { s.machine.add(r, c) })
	if wasDown && answer.Code != 0 && s.machine.submit(context.WithoutCancel(ctx), func(c *call) { s.machine.awaitForgotten(r.Attachment, c) }).Code == 0 {
		if err := setDown(r); err != nil && !errors.Is(err, errGone) {
			s.machine.log("%s: the interface stays up after a failed ADD: %v", r.Attachment, err)
		}
	}
	return answer
}
