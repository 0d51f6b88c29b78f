package daemon

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/statefile"
)

// FuzzConnection checks that the daemon answers every request with one line, or hangs up, and never
// panics. The namespaces in the requests do not exist.
func FuzzConnection(f *testing.F) {
	for _, line := range []string{
		"CONNECT /_goRPC_ HTTP/1.0\n\n", `{"method":"status"}`, `{"method":"gc","network":"n","valid":null}`, "\x00\xff", "", `[]`, `{"method":"add"`,
		`{"method":"add","network":"n","containerID":"c","ifName":"e","netns":"/nonexistent","id":"AA==","options":[{"code":12}],"timeout":1}`,
		`{"method":"del","network":"../n","containerID":"c","ifName":"e"}`,
	} {
		f.Add(line)
	}
	m := &machine{
		store: Store{Dir: f.TempDir()}, clock: &fakeClock{boot: time.Now(), rings: make(chan struct{})},
		open: func(record) (iface, error) { return nil, errGone }, timeout: time.Second, log: func(string, ...any) {},
	}
	m.init()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = m.run(ctx) }()
	f.Cleanup(func() { cancel(); <-m.ended })
	s := &server{machine: m, options: options{addTimeout: time.Second, hostPrefix: "/nonexistent"}}
	f.Fuzz(func(t *testing.T, line string) {
		client, conn := net.Pipe()
		go s.handle(ctx, conn)
		_, _ = io.WriteString(client, strings.ReplaceAll(line, "\n", " ")+"\n")
		answer, err := io.ReadAll(client)
		_ = client.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "CONNECT ") {
			if !strings.HasPrefix(string(answer), "HTTP/1.0 400 ") {
				t.Errorf("%q", answer)
			}
			return
		}
		var a Answer
		if err := json.Unmarshal(answer, &a); err != nil || strings.Count(string(answer), "\n") != 1 || a.Code != 0 && a.Msg == "" {
			t.Errorf("answer %q, %v", answer, err)
		}
	})
}

// FuzzRecord checks that every accepted lease file contains what the machine needs, which is an
// owner, a known state, and times in order.
func FuzzRecord(f *testing.F) {
	f.Add(`{"network":"n","containerID":"c","ifName":"e","state":"bound","netns":"/x","link":2,"lease":{"address":"10.0.0.5/24","duration":3,"renewAfter":1,"rebindAfter":2},"start":1}`)
	f.Add(`{"network":"n","containerID":"c","ifName":"e","state":"bound","netns":"/x","link":2}`)
	f.Add(`{"network":"n","containerID":"c","ifName":"e","state":"selecting","netns":"/x","link":2,"lease":null}`)
	f.Add(`{"start":-9223372036854775808,"lease":{"duration":9223372036854775807}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var r record
		if statefile.Decode([]byte(text), &r) != nil {
			return
		}
		if !states[r.State] || r.Network == "" || r.Lease == nil && r.State != selecting {
			t.Errorf("%+v", r)
		}
		if r.Lease == nil {
			return
		}
		t1, t2, end := (&lease{record: r}).times()
		if t1 < r.Start || t2 < t1 || end < t2 || end == never {
			t.Errorf("%+v: T1 %d, T2 %d, end %d", r, t1, t2, end)
		}
	})
}
