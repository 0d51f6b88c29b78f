package skel_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// FuzzCall checks that each call succeeds or prints one error result, and that handlers get only
// names that are valid file names.
func FuzzCall(f *testing.F) {
	conf := `{"cniVersion":"1.1.0","name":"net","type":"test","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.1/8"}]}}`
	f.Add("ADD", "c1", "eth0", "IgnoreUnknown=1;K=V", []byte(conf))
	f.Add("CHECK", "..", "e/h", "IP", []byte(`{"cniVersion":"0.4.0","name":"../n","prevResult":{"ip4":5}}`))
	f.Add("GC", "", "", "", []byte(`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[{"containerID":"../x","ifname":"y"}]}`))
	f.Add("DEL", "c", "all", ";=;", []byte(`{"cniVersion":"0.1.0","name":"n","prevResult":[]}`))
	f.Fuzz(func(t *testing.T, verb, id, ifName, args string, stdin []byte) {
		look := func(r *skel.Request) error {
			for _, name := range []string{r.Conf.Name, r.ContainerID, r.IfName} {
				if name != "" && filepath.Join("/d", name) != "/d/"+name {
					t.Errorf("%s: the handler got the name %q", r.Command, name)
				}
			}
			_, argsErr := r.Args()
			_, prevErr := r.RequirePrev()
			_ = r.ValidAttachments()
			if argsErr != nil {
				return argsErr
			}
			return prevErr
		}
		p := skel.Plugin{Name: "test", IPAM: true, Del: look, Check: look, Status: look, GC: look,
			Add: func(r *skel.Request) (*types.Result, error) { return &types.Result{}, look(r) }}
		var stdout, stderr bytes.Buffer
		code := skel.Run(p, skel.Env{
			Environ: []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=" + ifName, "CNI_ARGS=" + args, "CNI_NETNS=" + gone, "CNI_PATH=/bin"},
			Stdin:   bytes.NewReader(stdin), Stdout: &stdout, Stderr: &stderr,
		})
		if code == 0 {
			return
		}
		var e failure
		dec := json.NewDecoder(bytes.NewReader(stdout.Bytes()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil || dec.More() || e.Code == 0 || e.Msg == "" || strings.HasPrefix(e.Msg, "panic") {
			t.Errorf("%v: %q", err, stdout.String())
		}
	})
}
