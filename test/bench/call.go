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

	"github.com/plumb-cni/plumb/test/nstest"
)

// A sample is what one call took. A sample of a chain is the sum over its plugins.
type sample struct{ wall, cpu time.Duration }

func (s sample) plus(t sample) sample { return sample{s.wall + t.wall, s.cpu + t.cpu} }

// conf is a plugin's configuration.
type conf map[string]any

// cniVersion is one that both sides know.
const (
	cniVersion = "1.0.0"
	network    = "bench"
	ifName     = "eth0"
)

// stdin is the configuration as a runtime passes it.
func (c conf) stdin(prev json.RawMessage) []byte {
	all := maps.Clone(c)
	all["cniVersion"], all["name"] = cniVersion, network
	if len(prev) > 0 {
		all["prevResult"] = prev
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // of maps, strings and numbers
	}
	return b
}

// An attachment is one container at a side, with the chain of plugins that serve it.
type attachment struct {
	*side
	chain     []conf
	id        string
	container string // CNI_NETNS
	ifn       string
	base      json.RawMessage // what the first plugin of the chain gets as prevResult
	prev      json.RawMessage // the chain's result
}

// A call is one start of one plugin.
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

// do runs a verb over the chain, as a runtime does, by way of f.
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

// execute starts a plugin from a thread on the host, as a runtime does: the time is
// from the fork to the exit, what is written and read included; the processor time is
// that of the process and of all that it waited for.
func execute(s *side, c call) (took sample, out []byte, err error) {
	took, out, _, err = runPlugin(s, c)
	return took, out, err
}

// runPlugin is execute, and returns what the plugin wrote to stderr, too.
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

// explain gives the error what the plugin said.
func (c call) explain(err error, stdout []byte, stderr string) error {
	var said struct{ Msg, Details string }
	if json.Unmarshal(stdout, &said) != nil || said.Msg == "" {
		said.Msg = strings.TrimSpace(string(stdout) + stderr)
	}
	return fmt.Errorf("%s %s: %w: %s", c.plugin, c.command, err, strings.TrimSpace(said.Msg+" "+said.Details))
}

// peak gives the most memory that the plugin's process had resident, in KiB.
func peak(s *side, c call) (kib int, out []byte, err error) {
	err = s.host.Do(func() (err error) {
		kib, out, err = nstest.PeakMemory(c.environ, c.stdin, filepath.Join(s.bin, c.plugin))
		return err
	})
	if err != nil {
		err = c.explain(err, out, "")
	}
	return kib, out, err
}
