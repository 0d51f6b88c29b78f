package ipam

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

const lease = `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":4},
	{"address":"fd00::3/64","gateway":"fd00::1"}],"routes":[{"dst":"0.0.0.0/0","mtu":1400}],"dns":{"domain":"x"}}`

// A stand is a folder with the stand-in IPAM plugin "stand", which keeps a log of
// its calls there.
type stand struct {
	dir    string
	stderr bytes.Buffer
	stdout bytes.Buffer
}

// newStand writes the plugin: a shell script, after whose first line, which logs the
// verb, body runs.
func newStand(t *testing.T, body string) *stand {
	t.Helper()
	s := &stand{dir: t.TempDir()}
	script := "#!/bin/sh\necho $CNI_COMMAND >> " + s.dir + "/log\n" + body + "\n"
	if err := os.WriteFile(s.dir+"/stand", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stand) log(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(s.dir + "/log")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

// call runs f as the ADD of a plugin whose ipam.type is kind.
func (s *stand) call(kind string, f func(r *skel.Request) error) int {
	add := func(r *skel.Request) (*types.Result, error) { return &types.Result{}, f(r) }
	return skel.Run(skel.Plugin{Name: "test", IPAM: true, Add: add}, skel.Env{
		Environ: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0", "CNI_PATH=" + s.dir},
		Stdin:   strings.NewReader(`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"` + kind + `"}}`),
		Stdout:  &s.stdout,
		Stderr:  &s.stderr,
	})
}

func TestAddSucceeds(t *testing.T) {
	s := newStand(t, "cat <<EOF\n"+lease+"\nEOF")
	code := s.call("stand", func(r *skel.Request) error {
		l, err := Add(r)
		if err != nil {
			return err
		}
		if len(l.IPs) != 2 || l.IPs[0].Interface != types.NoInterface || l.Routes[0].MTU != 1400 || l.DNS.Domain != "x" {
			t.Errorf("lease %+v", l)
		}
		return nil
	})
	if log := s.log(t); code != 0 || log != "ADD" {
		t.Errorf("exit %d, calls %q, stdout %s", code, log, s.stdout.String())
	}
}
