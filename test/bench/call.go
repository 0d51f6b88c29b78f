package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A sample is the time and the processor time of a call. The sample of a chain is the sum of its plugins' samples.
type sample struct{ wall, cpu time.Duration }

func (s sample) plus(t sample) sample { return sample{s.wall + t.wall, s.cpu + t.cpu} }

// conf is a plugin's configuration.
type conf map[string]any

// cniVersion is the latest version of the specification that both sides support.
const (
	cniVersion = "1.0.0"
	network    = "bench"
	ifName     = "eth0"
)

// stdin returns the configuration as a runtime passes it.
func (c conf) stdin(prev json.RawMessage) []byte {
	all := maps.Clone(c)
	all["cniVersion"], all["name"] = cniVersion, network
	if len(prev) > 0 {
		all["prevResult"] = prev
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // cannot happen, because c contains only maps, lists, strings and numbers
	}
	return b
}

// An attachment is a container of a side, with the chain of plugins that the side calls for it.
type attachment struct {
	*side
	chain     []conf
	id        string
	container string // the value of CNI_NETNS
	ifn       string
	base      json.RawMessage // prevResult for the first plugin of the chain
	prev      json.RawMessage // the chain's result
}

// A call is one execution of a plugin.
type call struct {
	plugin, command string
	environ         []string
	stdin           []byte
}

func (a *attachment) call(c conf, command string) call {
	plugin, _ := c["type"].(string)
	if plugin == "" {
		plugin, _ = c["ipam"].(conf)["type"].(string)
	}
	prev := a.prev
	if command == "ADD" && prev == nil {
		prev = a.base
	}
	return call{plugin, command, []string{
		"PATH=" + os.Getenv("PATH"), "CNI_PATH=" + a.bin, "CNI_COMMAND=" + command,
		"CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.container, "CNI_IFNAME=" + a.ifn,
	}, c.stdin(prev)}
}

// do calls f for each plugin of the chain, in the order in which a runtime calls them.
func (a *attachment) do(command string, f func(*side, call) (sample, []byte, error)) (total sample, err error) {
	chain := slices.Clone(a.chain)
	switch command {
	case "ADD":
		a.prev = nil
	case "DEL":
		slices.Reverse(chain)
	}
	var errs []error
	for _, c := range chain {
		took, out, err := f(a.side, a.call(c, command))
		total = total.plus(took)
		errs = append(errs, err)
		if command != "DEL" && err != nil {
			break
		}
		if command == "ADD" && len(out) > 0 {
			a.prev = out
		}
	}
	return total, errors.Join(errs...)
}

// execute runs a plugin in the host's namespace, as a runtime does. The sample's time is from fork to exit, including
// input and output. Its processor time includes the child processes for which the plugin waited.
func execute(s *side, c call) (took sample, out []byte, err error) {
	took, out, _, err = runPlugin(s, c)
	return took, out, err
}

// runPlugin is execute, but also returns what the plugin wrote to stderr.
func runPlugin(s *side, c call) (took sample, out []byte, log string, err error) {
	var stdout, stderr bytes.Buffer
	path := filepath.Join(s.bin, c.plugin)
	err = s.host.Do(func() error {
		cmd := exec.Command(path)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.environ, bytes.NewReader(c.stdin), &stdout, &stderr
		begin := time.Now()
		err := cmd.Run()
		took.wall = time.Since(begin)
		if cmd.ProcessState != nil {
			took.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
		return err
	})
	if err != nil {
		err = c.explain(err, stdout.Bytes(), stderr.String())
	}
	return took, stdout.Bytes(), stderr.String(), err
}

func (c call) explain(err error, stdout []byte, stderr string) error {
	var said struct{ Msg, Details string }
	if json.Unmarshal(stdout, &said) != nil || said.Msg == "" {
		said.Msg = strings.TrimSpace(string(stdout) + stderr)
	}
	return fmt.Errorf("%s %s: %w: %s", c.plugin, c.command, err, strings.TrimSpace(said.Msg+" "+said.Details))
}

// peak runs a plugin and returns the peak resident memory of its process in KiB.
func peak(s *side, c call) (kib int, out []byte, err error) {
	err = s.host.Do(func() (err error) {
		kib, out, err = nstest.PeakMemory(c.environ, c.stdin, filepath.Join(s.bin, c.plugin))
		return err
	})
	if err != nil {
		err = c.explain(err, out, "")
	}
	return kib, firstJSON(out), err
}

// firstJSON returns the first JSON object in the output of a plugin. The reference plugin sbr also writes log lines, which
// nstest.PeakMemory returns together with stdout.
func firstJSON(out []byte) (object json.RawMessage) {
	if begin := bytes.IndexByte(out, '{'); begin < 0 || json.NewDecoder(bytes.NewReader(out[begin:])).Decode(&object) != nil {
		return nil
	}
	return object
}
