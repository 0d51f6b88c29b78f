package suite

import (
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

func errorCases() []Case {
	return []Case{
		{ID: "ERROR-1", Section: "2, Errors", Level: must, check: eachMistake(nil, wantExit),
			Requirement: "After a call that cannot succeed, the exit status is not 0."},
		{ID: "ERROR-2", Section: "5, Error", Level: should, check: eachMistake(nil, wantObject),
			Requirement: "An error prints one JSON object with code and msg on stdout, and nothing else, whose cniVersion is the protocol version in use."},
		{ID: "ERROR-3", Section: "5, Error", Level: should, check: eachMistake([]string{"4"}, wantCode),
			Requirement: "The code for a variable that is missing or malformed is 4."},
		{ID: "ERROR-4", Section: "5, Error", Level: must, check: eachMistake([]string{"4"}, wantName),
			Requirement: "The message with code 4 contains the name of the variable."},
		{ID: "ERROR-5", Section: "5, Error", Level: should, check: eachMistake([]string{"1"}, wantCode),
			Requirement: "The code for a cniVersion that the plugin does not support is 1."},
		{ID: "ERROR-6", Section: "5, Error", Level: should, check: eachMistake([]string{"5", "6"}, wantCode),
			Requirement: "The code for a configuration that is empty or not JSON is 6, or 5."},
		{ID: "ERROR-7", Section: "5, Error", Level: should, check: eachMistake([]string{"7"}, wantCode),
			Requirement: "The code for a network without a name, or with a malformed name, is 7."},
	}
}

// A mistake is a call that must fail.
type mistake struct {
	name     string
	command  string
	codes    []string // the codes that the specification defines for it, if any
	variable string   // the variable that is wrong
	change   func(*lab.Call)
}

func variable(command, name, value string) mistake {
	what := name + "=" + value
	if value == lab.Unset {
		what = "without " + name
	}
	return mistake{command + " " + what, command, []string{"4"}, name, func(c *lab.Call) { c.Set(name, value) }}
}

func config(name string, codes []string, f func(map[string]any)) mistake {
	return mistake{name, "ADD", codes, "", func(c *lab.Call) { c.EditConfig(f) }}
}

func mistakes() []mistake {
	return []mistake{
		variable("ADD", "CNI_CONTAINERID", lab.Unset),
		variable("ADD", "CNI_CONTAINERID", "../escape"),
		variable("ADD", "CNI_NETNS", lab.Unset),
		variable("ADD", "CNI_IFNAME", lab.Unset),
		variable("ADD", "CNI_IFNAME", "eth0/1"),
		variable("ADD", "CNI_IFNAME", strings.Repeat("e", 16)),
		variable("ADD", "CNI_COMMAND", "CREATE"),
		variable("DEL", "CNI_CONTAINERID", lab.Unset),
		variable("DEL", "CNI_IFNAME", lab.Unset),
		config("ADD with cniVersion 99.0.0", []string{"1"}, func(conf map[string]any) { conf["cniVersion"] = "99.0.0" }),
		{"ADD with a configuration that is not JSON", "ADD", []string{"5", "6"}, "", func(c *lab.Call) { c.Stdin = c.Stdin[:len(c.Stdin)/2] }},
		{"ADD with an empty configuration", "ADD", []string{"5", "6"}, "", func(c *lab.Call) { c.Stdin = "" }},
		config("ADD without a network name", []string{"7"}, func(conf map[string]any) { delete(conf, "name") }),
		config("ADD with the network name ../escape", []string{"7"}, func(conf map[string]any) { conf["name"] = "../escape" }),
	}
}

// eachMistake calls every plugin with every mistake whose codes are the given ones, or with all mistakes, and passes the
// answer to judge.
func eachMistake(codes []string, judge func(*lab.Call, mistake, *bench) error) func(*bench) error {
	return func(b *bench) error {
		for i := range b.Plugins {
			c, err := b.AddBefore(i)
			if err != nil {
				return err
			}
			for _, m := range mistakes() {
				if codes != nil && !slices.Equal(codes, m.codes) {
					continue
				}
				call := b.Prepare(m.command, i, c)
				m.change(&call)
				if err := judge(b.Run(call), m, b); err != nil {
					return failf("%s: %s: %w", b.Plugins[i].Type, m.name, err)
				}
			}
		}
		return nil
	}
}

func wantExit(call *lab.Call, _ mistake, _ *bench) error {
	if call.OK() {
		return failf("want an exit status other than 0, got 0 and %.200q", call.Stdout)
	}
	if call.Problem != "" {
		return failf("%s", call.Problem)
	}
	return nil
}

func wantObject(call *lab.Call, m mistake, b *bench) error {
	if _, err := lab.Object(call.Stdout); err != nil {
		return failure{err}
	}
	f, err := call.Failure()
	if err != nil {
		return failure{err}
	}
	if slices.Contains(m.codes, "7") && (f.CNIVersion == nil || *f.CNIVersion != b.Version) { // the version is known
		return failf("cniVersion: want %q, got %.200q", b.Version, call.Stdout)
	}
	return nil
}

func wantCode(call *lab.Call, m mistake, _ *bench) error {
	f, err := call.Failure()
	if err != nil {
		return failure{err}
	}
	if !slices.Contains(m.codes, strconv.Itoa(*f.Code)) {
		return failf("code: want %s, got %d, %q", strings.Join(m.codes, " or "), *f.Code, f.Msg)
	}
	return nil
}

func wantName(call *lab.Call, m mistake, _ *bench) error {
	f, err := call.Failure()
	if err != nil || *f.Code != 4 {
		return nil // ERROR-2 and ERROR-3 judge it
	}
	if text := f.Msg + " " + f.Details; !strings.Contains(text, m.variable) {
		return failf("want the name %s in the message, got %q", m.variable, text)
	}
	return nil
}
