package suite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

// robustCases returns the cases of what the specification does not require, but operators need.
func robustCases() []Case {
	cases := []Case{
		{ID: "LEFT-1", Section: "2, DEL", check: left(detach()),
			Requirement: "ADD and DEL leave no link, address, route, rule, neighbour, qdisc, filter, nftables object, iptables rule or file."},
		{ID: "LEFT-2", Section: "2, DEL", applies: []condition{ownInterface}, check: left(detach(lab.WithoutNetns, lab.WithoutPrevResult), remove),
			Requirement: "ADD, and DEL without CNI_NETNS and prevResult, leave nothing on the host."},
		{ID: "LEFT-3", Section: "2, DEL", applies: []condition{ownInterface}, check: left(remove, detach()),
			Requirement: "ADD, and DEL after the container's namespace was deleted, leave nothing on the host."},
		{ID: "LEFT-4", Section: "2, ADD", check: leftByFailure,
			Requirement: "An ADD that fails leaves nothing, even before DEL: with a namespace that does not exist, or an interface name that is taken."},
		{ID: "LEFT-5", Section: "4, Delegated plugin execution procedure", applies: []condition{delegate}, check: leftByDelegate,
			Requirement: "An ADD that fails because ADD of its IPAM plugin fails leaves nothing, even before DEL."},
		{ID: "KILL-1", Section: "3, Lifecycle & Ordering", check: killed("ADD"),
			Requirement: "After each plugin was killed during ADD, at each of its system calls that change something, DEL succeeds and leaves nothing."},
		{ID: "KILL-2", Section: "2, DEL", check: killed("DEL"),
			Requirement: "After each plugin was killed during DEL, at each of its system calls that change something, another DEL succeeds and leaves nothing."},
		{ID: "PARALLEL-1", Section: "3, Lifecycle & Ordering", applies: []condition{twoAttachments}, check: many,
			Requirement: "32 ADDs at the same time succeed with different addresses, and 32 DELs at the same time leave nothing."},
		{ID: "PARALLEL-2", Section: "3, Lifecycle & Ordering", check: twoDels,
			Requirement: "Two DELs of one attachment at the same time succeed, and leave nothing."},
		{ID: "PARALLEL-3", Section: "3, Lifecycle & Ordering", check: delDuringAdd,
			Requirement: "DEL after an ADD that another DEL overlapped leaves nothing. Runtimes call both if they lose track of an ADD."},
		{ID: "DISK-1", Section: "2, ADD", check: brokenDisk((*lab.Bed).MakeStateReadOnly),
			Requirement: "If the plugins' directories are read-only, ADD succeeds or prints an error. DEL leaves nothing when they are writable again."},
		{ID: "DISK-2", Section: "2, ADD", check: brokenDisk((*lab.Bed).FillState),
			Requirement: "If the plugins' directories are full, ADD succeeds or prints an error. DEL leaves nothing when they have space again."},
		{ID: "REUSE-1", Section: "2, DEL", applies: []condition{interfacePlugin, twoAttachments}, check: reusedPath,
			Requirement: "DEL of a deleted container changes nothing in another container whose namespace now has the same path."},
	}
	for i := range cases {
		cases[i].Profile, cases[i].Level = robust, "ROBUST"
		cases[i].check = warmed(cases[i].check)
	}
	return cases
}

// warm attaches and detaches a container, and attaches another one, so that the state already contains what attachments
// share, for example a bridge or a file that records deletions.
func (b *bench) warm() error {
	c, err := b.AddNew()
	if err == nil {
		err = b.Del(c)
	}
	if err == nil && !b.one {
		_, err = b.AddNew()
	}
	return err
}

func warmed(check func(*bench) error) func(*bench) error {
	return func(b *bench) error {
		if err := b.warm(); err != nil {
			return err
		}
		return check(b)
	}
}

// fresh returns a container that is not attached, and the state with it.
func (b *bench) fresh() (c *lab.Container, before []string, err error) {
	if c, err = b.NewContainer(); err == nil {
		before, err = b.State(c)
	}
	return c, before, err
}

// freshAttached is fresh for a container that is attached then.
func (b *bench) freshAttached() (c *lab.Container, before []string, err error) {
	if c, before, err = b.fresh(); err == nil {
		err = b.Add(c)
	}
	return c, before, err
}

// restored returns a failure unless the state is as before.
func (b *bench) restored(when string, before []string, containers ...*lab.Container) error {
	diff, err := b.Left(before, containers...)
	if err != nil || diff == "" {
		return err
	}
	return failf("%s, the state differs:\n%s", when, diff)
}

// left runs the steps with an attached container. If one of them removes the container, only the host matters.
func left(steps ...step) func(*bench) error {
	return func(b *bench) error {
		c, before, err := b.freshAttached()
		if err != nil {
			return err
		}
		for _, step := range steps {
			if err := step(b, c); err != nil {
				return err
			}
		}
		if len(steps) == 1 {
			return b.restored("after DEL", before, c)
		}
		return b.restored("after DEL", withoutContainer(before))
	}
}

// detach calls DEL. Other cases judge whether it succeeds.
func detach(change ...func(*lab.Call)) step {
	return func(b *bench, c *lab.Container) error { _ = b.Del(c, change...); return nil }
}

// leftByFailure lets ADD of each plugin fail, after ADD of the plugins before it.
func leftByFailure(b *bench) error {
	for i := range b.Plugins {
		err := b.leftByMistake(i, "after ADD with a namespace that does not exist failed", func(_ *lab.Container, call *lab.Call) error {
			call.Set("CNI_NETNS", lab.Scratch+"/no-such-namespace")
			return nil
		})
		if err == nil && i == b.creator {
			err = b.leftByMistake(i, "after ADD with an interface name that is taken failed", func(c *lab.Container, _ *lab.Call) error { return takeName(c) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) leftByMistake(i int, when string, mistake func(*lab.Container, *lab.Call) error) error {
	c, err := b.AddBefore(i)
	if err != nil {
		return err
	}
	call := b.Prepare("ADD", i, c)
	if err := mistake(c, &call); err != nil {
		return err
	}
	before, err := b.State(c)
	if err == nil && !b.Run(call).OK() {
		err = b.restored(when, before, c)
	}
	_ = b.Del(c)
	return err
}

func leftByDelegate(b *bench) error {
	i := b.delegating()
	c, err := b.AddBefore(i)
	if err == nil {
		err = b.spy(i, spyFails("ADD", 123))
	}
	if err != nil {
		return err
	}
	before, err := b.State(c)
	if err != nil {
		return err
	}
	if b.AddOne(i, c) == nil {
		return notApplicable("ADD succeeds, see DELEGATE-3")
	}
	return b.restored("after ADD failed", before, c)
}

// killed kills each plugin at each system call of a command in turn, or at Kills of them.
func killed(command string) func(*bench) error {
	return func(b *bench) error {
		for i := range b.Plugins {
			_, total, err := b.kill(command, i, 0)
			if err != nil {
				return err
			}
			step := 1
			if b.Kills > 0 {
				step = (total + b.Kills - 1) / b.Kills
			}
			for n := 1; n <= total; n += max(step, 1) {
				if _, _, err := b.kill(command, i, n); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// kill kills plugin i at its nth system call, or never with 0, and then calls DEL. It returns where the plugin was killed, and
// how many system calls it ran.
func (b *bench) kill(command string, i, n int) (at string, total int, err error) {
	c, before, err := b.fresh()
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	if command == "ADD" {
		err = b.AddFirst(i, c)
	} else {
		err = b.Add(c)
	}
	if err != nil {
		return "", 0, err
	}
	if at, total, err = b.RunKilled(b.Prepare(command, i, c), n); errors.Is(err, lab.ErrNoInjection) {
		return "", 0, notApplicable(err.Error())
	} else if err != nil {
		return "", 0, err
	}
	what := fmt.Sprintf("%s of %s that was not killed", command, b.Plugins[i].Type)
	if at != "" {
		what = fmt.Sprintf("%s of %s, killed at system call %d (%s)", command, b.Plugins[i].Type, n, at)
	}
	if command == "ADD" {
		c.Results = nil // the runtime got no result
	}
	if err := b.Del(c); err != nil {
		return "", 0, asFailure("DEL after "+what, err)
	}
	if err := b.restored("after "+what+" and DEL", before, c); err != nil {
		return "", 0, err
	}
	return at, total, c.Unmount()
}

func many(b *bench) error {
	before, err := b.State()
	if err == nil {
		err = addConcurrent(32)(b)
	}
	if err != nil {
		return err
	}
	return b.restored("after 32 DELs", before)
}

func twoDels(b *bench) error {
	for range 5 {
		c, before, err := b.freshAttached()
		if err != nil {
			return err
		}
		if err := together([]*lab.Container{c, c}, func(c *lab.Container) error { return b.Del(c) }); err != nil {
			return asFailure("one of two DELs", err)
		}
		if err := b.restored("after two DELs", before, c); err != nil {
			return err
		}
	}
	return nil
}

func delDuringAdd(b *bench) error {
	for range 5 {
		c, before, err := b.fresh()
		if err != nil {
			return err
		}
		other := *c
		_ = together([]*lab.Container{c, &other}, func(each *lab.Container) error {
			if each == c {
				return b.Add(c)
			}
			return b.Del(&other)
		})
		if err := b.Del(c); err != nil {
			return asFailure("DEL after ADD and DEL at the same time", err)
		}
		if err := b.restored("after DEL", before, c); err != nil {
			return err
		}
	}
	return nil
}

// brokenDisk attaches a container while the plugins' directories are broken.
func brokenDisk(damage func(*lab.Bed) error) func(*bench) error {
	return func(b *bench) error {
		c, before, err := b.fresh()
		if err == nil {
			err = damage(b.Bed)
		}
		if err != nil {
			return err
		}
		failed := b.Add(c) != nil
		last := b.Calls[len(b.Calls)-1]
		_ = b.Del(c) // it may fail now
		if err := b.RestoreState(); err != nil {
			return err
		}
		if failed {
			if _, err := last.Failure(); err != nil {
				return asFailure("ADD failed", err)
			}
			c.Results = nil
		}
		if err := b.Del(c); err != nil {
			return asFailure("DEL when the directories are writable again", err)
		}
		return b.restored("after DEL", before, c)
	}
}

func reusedPath(b *bench) error {
	dead, err := b.AddNew()
	if err != nil {
		return err
	}
	if err := dead.Remove(); err != nil {
		return err
	}
	live, err := b.NewContainer()
	if err == nil {
		err = live.Unmount()
	}
	if err != nil {
		return err
	}
	live.Path = dead.Path
	if err := live.MountAt(live.Path); err != nil {
		return err
	}
	if err := b.Add(live); err != nil {
		return err
	}
	before, err := b.State(live)
	if err != nil {
		return err
	}
	_ = b.Del(dead) // it may report that the namespace is another one
	after, err := b.State(live)
	if err != nil {
		return err
	}
	for _, line := range before {
		if strings.HasPrefix(line, lab.ContainerPrefix) && !slices.Contains(after, line) {
			return failf("DEL of the deleted container removed in the other one: %s", line)
		}
	}
	return nil
}

// withoutContainer returns a state without the lines of containers.
func withoutContainer(state []string) []string {
	return slices.DeleteFunc(slices.Clone(state), func(line string) bool { return strings.HasPrefix(line, lab.ContainerPrefix) })
}
