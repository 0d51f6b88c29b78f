package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// valid is a valid request.
const valid = `{"verb":"claim","segment":"vlan7","node":"n1","machine":"m","boot":"b","want":8,"lastRevision":5,
	"ranges":[{"first":"10.7.0.10","last":"10.7.0.250"},{"first":"fd00::","last":"fd00::ffff:ffff:ffff:ffff"}],"exclude":["10.7.0.64/28"],
	"datastore":{"type":"cluster-local-test","timeout":1}}`

// program answers with datastore.ReasonInternal to each valid request.
var program = Program{Name: "cluster-local-test", Version: "v1", Window: windowSize, Open: func() Session { return &session{} }}

type session struct{ Common }

func (s *session) Config() Config { return &s.Common }

func (s *session) Serve(context.Context, *Request, *datastore.Answer) error {
	return errors.New("this is a test")
}

func (s *session) Seen() (int64, string) { return 0, "" }

func decodeTest(text []byte) (*Request, error) { return decode(text, &Common{}, windowSize) }

func TestDecode(t *testing.T) {
	for _, node := range []string{"n1", "n1:pods"} {
		if _, err := decodeTest([]byte(strings.Replace(valid, "n1", node, 1))); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		old, new string
		code     uint
		texts    []string
	}{
		{`{"verb"`, `{"verb`, types.CodeDecode, []string{"decode request"}},
		{`"want":8`, `"want":"8"`, types.CodeDecode, []string{"want"}},
		{`"want":8`, `"wanted":8`, types.CodeDecode, []string{`"wanted"`}},
		{`"timeout"`, `"time"`, types.CodeDecode, []string{"decode datastore", `"time"`}},
		{`"claim"`, `"grab"`, types.CodeConfig, []string{`verb "grab" is unknown`}},
		{`"vlan7"`, `"../a"`, types.CodeConfig, []string{`segment "../a"`}},
		{`"n1"`, `"a/b"`, types.CodeConfig, []string{`node "a/b"`}},
		{`"n1"`, `""`, types.CodeConfig, []string{`node ""`}},
		{`"n1"`, `"n1:a:b"`, types.CodeConfig, []string{`node "n1:a:b"`}},
		{`"n1"`, `"n1:"`, types.CodeConfig, []string{`node "n1:"`}},
		{`"m"`, `"a b"`, types.CodeConfig, []string{`machine "a b"`}},
		{`"b"`, `""`, types.CodeConfig, []string{`boot ""`}},
		{`8`, `0`, types.CodeConfig, []string{"want 0"}},
		{`8`, `257`, types.CodeConfig, []string{"want 257"}},
		{`"lastRevision":5`, `"lastRevision":-1`, types.CodeConfig, []string{"lastRevision -1"}},
		{`"10.7.0.250"`, `"10.7.0.9"`, types.CodeConfig, []string{"10.7.0.10-10.7.0.9: last is before first"}},
		{`"10.7.0.250"`, `"fd00::1"`, types.CodeConfig, []string{"same family"}},
		{`fd00::ffff`, `fd00::1:ffff`, types.CodeConfig, []string{"/64"}},
		{`{"first":"fd00::","last":"fd00::ffff:ffff:ffff:ffff"}`, `{"first":"10.7.0.250","last":"10.7.1.1"}`, types.CodeConfig, []string{"overlaps with 10.7.0.10-10.7.0.250"}},
		{`"want":8`, `"want":8,"requested":["10.7.0.9"]`, types.CodeConfig, []string{"cannot be combined"}},
		{`"want":8`, `"requested":["10.7.0.9","10.7.0.9"]`, types.CodeConfig, []string{"10.7.0.9 is listed twice"}},
		{`"want":8`, `"requested":["::ffff:10.7.0.9"]`, types.CodeConfig, []string{"must be an address"}},
		{`"timeout":1`, `"timeout":0`, types.CodeConfig, []string{"timeout 0"}},
		{`"timeout":1`, `"timeout":61`, types.CodeConfig, []string{"timeout 61"}},
	}
	for _, test := range tests {
		text := strings.Replace(valid, test.old, test.new, 1)
		_, err := decodeTest([]byte(text))
		e := asError(err)
		if e.Code != test.code || e.Reason != datastore.ReasonRequest {
			t.Errorf("%s: got %+v, want code %d", test.new, e, test.code)
		}
		for _, want := range test.texts {
			if !strings.Contains(e.Msg, want) {
				t.Errorf("%s: %q does not contain %q", test.new, e.Msg, want)
			}
		}
	}
}

// FuzzDecode checks that the names in an accepted request cannot leave the segment's prefix in a store, and that the
// windows of its ranges can be read.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(valid))
	f.Add([]byte(`{"verb":"release","segment":"s","node":"n","machine":"m","boot":"b","addresses":{"10.0.0.1":"c"}}`))
	f.Add([]byte(`{"verb":"claim","requested":["1.2.3.4%x"],"addresses":{"":""},"exclude":["::/0","1.2.3.4/33"],"ranges":[{}],"datastore":null}`))
	f.Add([]byte(`{"verb":"claim","segment":"s","node":"n","machine":"m","boot":"b","want":1,"exclude":["0.0.0.0/1","0.0.0.0/9"],"ranges":[{"first":"0.0.0.0","last":"255.255.255.255"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decodeTest(text)
		if err != nil {
			if e := asError(err); e.Code != types.CodeDecode && e.Code != types.CodeConfig || e.Msg == "" {
				t.Errorf("%+v", e)
			}
			return
		}
		if strings.ContainsAny(r.Segment+r.Node+r.Target, "/ ") {
			t.Errorf("names %q, %q, %q", r.Segment, r.Node, r.Target)
		}
		n := 0
		for w := range r.Pool.Windows(0) {
			free := r.Pool.Candidates(w, nil)
			if len(free) > windowSize || slices.ContainsFunc(free, func(a netip.Addr) bool { _, in := w.part(a, a); return !in }) {
				t.Errorf("window %+v has candidates %v", w, free)
			}
			if n++; n == 3 {
				break
			}
		}
		if free := r.Pool.Size(); free > maxFree {
			t.Errorf("%d addresses are free", free)
		}
	})
}

func TestPool(t *testing.T) {
	at := netip.MustParseAddr
	p, err := newPool([]datastore.Range{{First: at("10.0.0.250"), Last: at("10.0.3.5")}, {First: at("fd00::fe"), Last: at("fd00::101")}},
		[]netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("10.0.1.64/26"), netip.MustParsePrefix("fd00::/127"), netip.MustParsePrefix("10.0.3.4/30")}, windowSize)
	if err != nil {
		t.Fatal(err)
	}
	all := map[netip.Addr]int{}
	windows := 0
	for w := range p.Windows(0) {
		windows++
		for _, a := range p.Candidates(w, nil) {
			all[a]++
		}
	}
	want := 6 + 256 + 4 + 4 // 10.0.0.250-, 10.0.2.0/24, 10.0.3.0-3, fd00::fe-101
	if len(all) != want || windows != 4+2 || p.Size() != uint64(want) {
		t.Errorf("got %d addresses, %d free, %d windows, want %d, %d, 6", len(all), p.Size(), windows, want, want)
	}
	for a, n := range all {
		if n != 1 || p.Count(map[netip.Addr]string{a: ""}) != 1 {
			t.Errorf("got %v %d times, want once", a, n)
		}
	}
	if n := p.Count(map[netip.Addr]string{at("10.0.1.1"): "", at("10.0.9.1"): "", at("fd00::100"): ""}); n != 1 {
		t.Errorf("count: got %d, want 1", n)
	}
	wide, err := newPool([]datastore.Range{{First: at("fd00:0:0:1::"), Last: at("fd00:0:0:1:ffff:ffff:ffff:ffff")}}, []netip.Prefix{netip.MustParsePrefix("fd00::/56")}, windowSize)
	if err != nil || wide.free([]int64{0, 0}) != 0 {
		t.Errorf("%v: %d addresses are free in an excluded range", err, wide.free([]int64{0, 0}))
	}
}

// TestAnswers checks that each call prints one answer, whatever it reads.
func TestAnswers(t *testing.T) {
	for _, request := range []string{" ", "{}", "null", valid[:40], valid, "[]"} {
		var out bytes.Buffer
		exit := program.Run(strings.NewReader(request), &out)
		var answer datastore.Answer
		dec := json.NewDecoder(&out)
		if err := dec.Decode(&answer); err != nil || dec.More() || exit != 1 || answer.Error == nil || answer.Error.Code == 0 || answer.Error.Msg == "" {
			t.Errorf("%q: exit status %d, %+v (%v)", request, exit, answer, err)
		}
		if request == valid && answer.Error.Reason != datastore.ReasonInternal {
			t.Errorf("a valid request: %+v", answer.Error)
		}
	}
	var out bytes.Buffer
	if exit := program.Run(strings.NewReader(""), &out); exit != 0 || out.String() != "cluster-local-test v1: reads a request as JSON from stdin\n" {
		t.Errorf("without a request: exit status %d, %q", exit, &out)
	}
}
