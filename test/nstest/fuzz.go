package nstest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// FuzzConfig fuzzes the configuration that a plugin parses, beginning with the seeds. parse must not panic, and
// FuzzConfig calls check for each configuration that parse accepts.
func FuzzConfig[C any](f *testing.F, parse func(*skel.Request) (C, error), check func(t *testing.T, r *skel.Request, conf C), seeds ...string) {
	f.Helper()
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := &skel.Request{Command: "CHECK", ContainerID: "c", IfName: "eth0", Stdin: []byte(text), Version: types.Newest}
		if types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		if conf, err := parse(r); err == nil {
			check(t, r, conf)
		}
	})
}

// FuzzCheck fuzzes the prevResult of CHECK. Each answer must have the form that the specification requires, and CHECK
// must not panic. For the seeds, FuzzCheck calls ADD with c, and removes or replaces each part of the result in turn.
// It creates a host and a container if c lacks them.
func FuzzCheck(f *testing.F, p skel.Plugin, c Call) {
	f.Helper()
	if c.Host == nil {
		c.Host, c.Container = NewHostAndContainer(f)
	}
	added := Run(p, c.With("ADD"))
	added.OK(f)
	FuzzPrevResult(f, p, c, added.Stdout)
}

// FuzzChainedCheck fuzzes the prevResult of CHECK for a chained plugin, as FuzzCheck does. The chained plugin's ADD
// gets the result of a plugin that created a veth pair with the addresses 10.9.0.2 and fd00::2.
func FuzzChainedCheck(f *testing.F, p skel.Plugin, c Call) {
	f.Helper()
	c.Host, c.Container = NewHostAndContainer(f)
	c.Host.Must(f, "ip", "link", "add", "veth0", "up", "type", "veth", "peer", "name", "eth0", "netns", c.Container.Path())
	c.Container.Batch(f, "link set eth0 up", "addr add 10.9.0.2/24 dev eth0", "addr add fd00::2/64 dev eth0 nodad")
	first := c
	first.Config = WithPrevResult(c.Config, `{"cniVersion":"1.1.0","interfaces":[{"name":"veth0"},{"name":"eth0","sandbox":"`+c.Container.Path()+`"}],`+
		`"ips":[{"interface":1,"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"interface":1,"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"}]}`)
	added := Run(p, first.With("ADD"))
	added.OK(f)
	FuzzPrevResult(f, p, c, added.Stdout)
}

// FuzzPrevResult is FuzzCheck for a plugin whose ADD cannot run. added is a result of ADD.
func FuzzPrevResult(f *testing.F, p skel.Plugin, c Call, added string) {
	f.Helper()
	var result any
	if err := json.Unmarshal([]byte(added), &result); err != nil {
		f.Fatalf("%v\n%s", err, added)
	}
	for _, v := range append(variants(result), result) {
		text, err := json.Marshal(v)
		Must(f, err)
		// The path differs between runs, but a stored corpus does not change.
		f.Add(strings.ReplaceAll(string(text), c.Container.Path(), "SANDBOX"))
	}
	f.Fuzz(func(t *testing.T, prev string) {
		if !json.Valid([]byte(prev)) {
			return // the configuration itself is unreadable
		}
		check := c.With("CHECK")
		check.Config = WithPrevResult(c.Config, strings.ReplaceAll(prev, "SANDBOX", c.Container.Path()))
		reply := Run(p, check)
		if reply.Exit == 0 {
			return
		}
		if failure := reply.Failure(t); strings.HasPrefix(failure.Msg, "panic") {
			t.Errorf("prevResult %s: %s", prev, failure)
		}
	})
}

// variants returns the JSON values that result from v if one of its parts is removed, repeated or replaced.
func variants(v any) []any {
	all := []any{nil, "", -1.0, []any{}, map[string]any{}}
	switch v := v.(type) {
	case map[string]any:
		for key, part := range v {
			without := maps.Clone(v)
			delete(without, key)
			all = append(all, without)
			for _, other := range variants(part) {
				with := maps.Clone(v)
				with[key] = other
				all = append(all, with)
			}
		}
	case []any:
		for i, part := range v {
			all = append(all, slices.Delete(slices.Clone(v), i, i+1), append(slices.Clone(v), part))
			for _, other := range variants(part) {
				with := slices.Clone(v)
				with[i] = other
				all = append(all, with)
			}
		}
	}
	return all
}
