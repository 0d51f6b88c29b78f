package suite

import (
	"reflect"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

func gcCases() []Case {
	return under(since("1.1.0"), []Case{
		{ID: "STATUS-1", Section: "2, STATUS", Level: must, check: statusReady,
			Requirement: "STATUS succeeds if ADD succeeds."},
		{ID: "STATUS-2", Section: "2, STATUS", Level: should, applies: []condition{delegate}, check: statusWithoutDelegate,
			Requirement: "STATUS fails if the IPAM plugin, without which ADD fails, is not in CNI_PATH."},
		{ID: "STATUS-3", Section: "2, STATUS", Level: must, applies: []condition{delegate}, check: statusOfDelegate,
			Requirement: "STATUS calls STATUS of the IPAM plugin, and fails if that call fails."},
		{ID: "STATUS-4", Section: "2, STATUS", Level: should, applies: []condition{delegate}, check: statusCode,
			Requirement: "If the IPAM plugin reports code 50, the error of STATUS has the code 50 or 51."},
		{ID: "GC-1", Section: "2, GC", Level: must, check: attached(gcAllValid),
			Requirement: "GC that lists every attachment succeeds, prints nothing on stdout and removes nothing."},
		{ID: "GC-2", Section: "2, GC", Level: should, applies: []condition{twoAttachments}, check: warmed(gcOneValid),
			Requirement: "GC removes what a deleted container left that it does not list, and nothing of the container that it lists."},
		{ID: "GC-3", Section: "2, GC", Level: should, applies: []condition{ownInterface}, check: warmed(gcNoneValid),
			Requirement: "GC with an empty list removes what a deleted container left."},
	})
}

// status calls STATUS of all plugins, and returns the first call that fails.
func (b *bench) status() (failed *lab.Call) {
	for i := range b.Plugins {
		if call := b.Run(b.Prepare("STATUS", i, nil)); !call.OK() && failed == nil {
			failed = call
		}
	}
	return failed
}

func statusReady(b *bench) error {
	if failed := b.status(); failed != nil {
		return asFailure("ADD succeeds", failed.Err())
	}
	return nil
}

func statusWithoutDelegate(b *bench) error {
	b.Path = []string{lab.Scratch}
	if b.status() == nil {
		return failf("STATUS succeeds, although CNI_PATH contains no IPAM plugin")
	}
	return nil
}

func statusOfDelegate(b *bench) error {
	if err := b.spy(b.delegating(), spyFails("STATUS", 123)); err != nil {
		return err
	}
	if b.status() == nil {
		return failf("STATUS succeeds, although STATUS of the IPAM plugin fails; the IPAM plugin got these calls: %q", spied("order"))
	}
	return nil
}

func statusCode(b *bench) error {
	if err := b.spy(b.delegating(), spyFails("STATUS", 50)); err != nil {
		return err
	}
	failed := b.status()
	if failed == nil {
		return notApplicable("STATUS succeeds, see STATUS-3")
	}
	if f, err := failed.Failure(); err != nil || *f.Code != 50 && *f.Code != 51 {
		return failf("code: want 50 or 51, got %.200q", failed.Stdout)
	}
	return nil
}

func gcAllValid(b *bench, c *lab.Container) error {
	before, err := b.State(c)
	if err != nil {
		return err
	}
	if err := b.GC(c); err != nil {
		return asFailure("GC", err)
	}
	for _, call := range b.Calls {
		if call.Get("CNI_COMMAND") == "GC" && strings.TrimSpace(call.Stdout) != "" {
			return failf("GC prints %.200q", call.Stdout)
		}
	}
	after, err := b.State(c)
	for _, line := range before {
		if err == nil && !slices.Contains(after, line) {
			return failf("GC removed: %s", line)
		}
	}
	return err
}

func gcOneValid(b *bench) error {
	valid := b.Containers[1]
	return b.collected(func() error { return b.GC(valid) }, valid)
}

func gcNoneValid(b *bench) error {
	if !b.one {
		if err := b.Del(b.Containers[1]); err != nil {
			return err
		}
	}
	return b.collected(func() error { return b.GC() })
}

// collected attaches a container, deletes its namespace, and checks that gc restores the state.
func (b *bench) collected(gc func() error, valid ...*lab.Container) error {
	before, err := b.State(valid...)
	if err != nil {
		return err
	}
	c, err := b.AddNew()
	if err != nil {
		return err
	}
	if err := c.Remove(); err != nil {
		return err
	}
	if err := gc(); err != nil {
		return asFailure("GC", err)
	}
	return b.restored("after GC", before, valid...)
}

func delegationCases() []Case {
	return under(delegate, []Case{
		{ID: "DELEGATE-1", Section: "4, Delegated plugin execution procedure", Level: must, check: delegateEnvironment,
			Requirement: "ADD finds the IPAM plugin in any directory of CNI_PATH, and passes the variables to it that the plugin got."},
		{ID: "DELEGATE-2", Section: "4, Delegated Plugin protocol", Level: must, check: delegateConfig,
			Requirement: "The IPAM plugin gets the complete configuration that the plugin got."},
		{ID: "DELEGATE-3", Section: "4, Delegated plugin execution procedure", Level: should, check: delegateRollback,
			Requirement: "If ADD of the IPAM plugin fails, ADD calls its DEL and fails."},
		{ID: "DELEGATE-4", Section: "4, Delegated plugin execution procedure", Level: must, check: delegateError("DEL", func(b *bench, c *lab.Container) error { return b.Del(c) }),
			Requirement: "DEL calls DEL of the IPAM plugin, and fails if that call fails."},
		{ID: "DELEGATE-5", Section: "4, Delegated plugin execution procedure", Level: must, applies: []condition{since("0.4.0")},
			check:       delegateError("CHECK", func(b *bench, c *lab.Container) error { return b.Check(c) }),
			Requirement: "CHECK calls CHECK of the IPAM plugin, and fails if that call fails."},
		{ID: "DELEGATE-6", Section: "4, Delegated plugin execution procedure", Level: must, applies: []condition{since("1.1.0")},
			check:       delegateError("GC", func(b *bench, c *lab.Container) error { return b.GC(c) }),
			Requirement: "GC calls GC of the IPAM plugin, and fails if that call fails."},
		{ID: "DELEGATE-7", Section: "4, Delegated plugin execution procedure", Level: should, check: delegateStderr,
			Requirement: "ADD prints on stderr what the IPAM plugin prints on stderr."},
	})
}

// spiedAdd attaches a container with a script in place of the IPAM plugin. It returns the call of the plugin that calls the
// IPAM plugin.
func (b *bench) spiedAdd(lines string) (*lab.Container, *lab.Call, error) {
	i := b.delegating()
	if err := b.spy(i, lines); err != nil {
		return nil, nil, err
	}
	c, err := b.AddBefore(i)
	if err != nil {
		return nil, nil, err
	}
	err = b.AddOne(i, c)
	call := b.Calls[len(b.Calls)-1]
	for j := i + 1; err == nil && j < len(b.Plugins); j++ {
		err = b.AddOne(j, c)
	}
	return c, call, err
}

func delegateEnvironment(b *bench) error {
	_, call, err := b.spiedAdd("")
	if err != nil {
		return asFailure("with an IPAM plugin in the second directory of CNI_PATH", err)
	}
	lines := strings.Split(spied("env.ADD"), "\n")
	for _, v := range call.Env {
		if !slices.Contains(lines, v) {
			return failf("the IPAM plugin did not get the variable %s", v)
		}
	}
	return nil
}

func delegateConfig(b *bench) error {
	_, call, err := b.spiedAdd("")
	if err != nil {
		return err
	}
	want, _ := lab.Object(call.Stdin)
	if got, err := lab.Object(spied("stdin.ADD")); err != nil || !reflect.DeepEqual(got, want) {
		return failf("the IPAM plugin got another configuration: %s", spied("stdin.ADD"))
	}
	return nil
}

func delegateRollback(b *bench) error {
	_, _, err := b.spiedAdd(spyFails("ADD", 123))
	if err == nil {
		return failf("ADD succeeds, although ADD of the IPAM plugin fails")
	}
	if order := spied("order"); !strings.Contains(order, "ADD\nDEL") {
		return failf("the IPAM plugin got these calls, want DEL after ADD: %q", order)
	}
	return nil
}

func delegateError(command string, call func(*bench, *lab.Container) error) func(*bench) error {
	return func(b *bench) error {
		c, _, err := b.spiedAdd(spyFails(command, 123))
		if err != nil {
			return err
		}
		err = call(b, c)
		if !strings.Contains(spied("order"), command) {
			return failf("the IPAM plugin did not get %s", command)
		}
		if err == nil {
			return failf("%s succeeds, although %s of the IPAM plugin fails", command, command)
		}
		return nil
	}
}

func delegateStderr(b *bench) error {
	const text = "a message of the IPAM plugin"
	_, call, err := b.spiedAdd("echo '" + text + "' >&2")
	if err != nil {
		return err
	}
	if !strings.Contains(call.Stderr, text) {
		return failf("stderr: want %q, got %.200q", text, call.Stderr)
	}
	return nil
}
