package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// codeChanged is the code of a CHECK that found a difference.
const codeChanged = 100

func (h host) add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	result, err := r.MustPrev()
	if err != nil || conf.idle() {
		return result, err
	}
	if err := h.allows(conf); err != nil {
		return nil, err
	}
	t, err := aim(r, conf)
	if err == nil {
		err = t.visit(func(in sysctl.Visit) error { return t.tune(in, &r.Undo) })
	}
	if err != nil {
		return nil, refused(err)
	}
	t.updateResult(result)
	return result, nil
}

// allows reads the allowlist only where it has something to say.
func (h host) allows(conf *config) error {
	if len(conf.sysctls) == 0 {
		return nil
	}
	list, err := readAllowlist(h.allowlist)
	if err != nil {
		return err
	}
	return list.check(conf.sysctls)
}

// A target is a container's interface that is to be as the configuration says.
type target struct {
	r       *skel.Request
	conf    *config
	store   store
	pod     *nl.Conn // nil: only sysctls are asked for, as with the link
	link    nl.Link
	netns   uint64 // cookie of the container's namespace; zero: not known
	sysctls []entry
}

// An entry is a sysctl that was found in the container.
type entry struct {
	sysctl.Setting
	now    string
	opaque bool // it can be written but has no value to read
}

// aim finds the interface, if something is asked of it. Where only sysctls are, there
// is no netlink socket, which would take as long as all that is done with them.
func aim(r *skel.Request, conf *config) (*target, error) {
	t := &target{r: r, conf: conf, store: newStore(r, conf.dataDir)}
	if len(conf.link.knobs()) == 0 {
		return t, nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return nil, err
	}
	t.pod, t.netns = pod, pod.Cookie()
	if t.link, err = pod.Link(r.IfName); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("no interface %q in container: tuning has to come after the plugin that makes it: %w", r.IfName, err)
	}
	return t, err
}

// visit runs f in the container, where it finds and can set the sysctls that are
// asked for; where none is, f has no need to be there.
func (t *target) visit(f func(sysctl.Visit) error) error {
	if len(t.conf.sysctls) == 0 {
		return f(sysctl.Visit{})
	}
	return sysctl.Within(t.r.Pod, func(in sysctl.Visit) error {
		var errs []error
		for _, a := range t.conf.sysctls {
			e, err := find(in, a)
			t.sysctls, errs = append(t.sysctls, e), append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if t.netns == 0 {
			t.netns = ns.Cookie()
		}
		return f(in)
	})
}

// find reads the first of the paths that there is in the container.
func find(in sysctl.Visit, a assignment) (entry, error) {
	var err error
	for _, path := range a.paths {
		e := entry{Setting: sysctl.Setting{Key: path, Value: a.value}}
		e.now, err = in.Get(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		e.opaque = isOpaque(err)
		if e.opaque {
			err = nil
		}
		return e, err
	}
	return entry{}, fmt.Errorf("sysctl %q is not there in the container (is it spelled right, its module loaded, and is it per namespace?): %w", a.written, err)
}

// isOpaque tells what the kernel says of settings that have no value: a trigger
// (net.ipv4.route.flush), or one that was never set (stable_secret).
func isOpaque(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrPermission)
}

// tune saves what there is before it changes the first thing, so that DEL can put
// back what a killed ADD did. The undo is pushed before the changes as well: one whose
// answer was lost may have been made, and to put back what was not changed does
// nothing. Should it fail, the saved state stays, for DEL to try.
func (t *target) tune(in sysctl.Visit, u *undo.Stack) error {
	before := t.before()
	older, err := t.older()
	if err != nil {
		return err
	}
	original := t.before()
	if older != nil {
		original.override(older)
	}
	if err := t.store.save(original); err != nil {
		return err
	}
	u.Push("put back the settings of "+t.r.IfName, func() error {
		if err := putBack(t.r, before); err != nil {
			return err
		}
		if older != nil {
			return t.store.save(older)
		}
		return t.store.remove()
	})
	if err := in.Set(t.assignments()...); err != nil || t.pod == nil {
		return err
	}
	return t.pod.Apply(t.conf.link.changes(t.link)...)
}

// refused gives what is not there in the container, and what the kernel does not take
// for a value (a MAC that another macvlan of the master has, say), the code of a configuration that cannot work.
func refused(err error) error {
	for _, cause := range []error{fs.ErrNotExist, syscall.EINVAL, syscall.ERANGE, syscall.EADDRINUSE} {
		if errors.Is(err, cause) {
			return types.Coded(types.CodeConfig, err)
		}
	}
	return err
}

// before is the state now of all that is to be changed.
func (t *target) before() *saved {
	s := &saved{
		settings: t.conf.link.of(t.link), Sysctl: map[string]string{},
		Network: t.r.Conf.Name, NetNS: t.netns, IfIndex: t.link.Index,
	}
	for _, e := range t.sysctls {
		if !e.opaque {
			s.Sysctl[e.Key] = e.now
		}
	}
	return s
}

// older is what an earlier ADD of this attachment saved; nil: there was none. Twice
// in a chain, say: what the second finds is not the original.
func (t *target) older() (*saved, error) {
	state, err := t.store.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errUnreadable):
		t.r.Warn("%v; it is written anew", err)
		return nil, nil
	case err != nil:
		return nil, types.Coded(types.CodeIO, err)
	case !state.isOf(t.netns):
		return nil, nil
	}
	return state, nil
}

func (t *target) assignments() []sysctl.Setting {
	all := make([]sysctl.Setting, 0, len(t.sysctls))
	for _, e := range t.sysctls {
		all = append(all, e.Setting)
	}
	return all
}

// updateResult records the MAC and the MTU that were set in the result of the chain so
// far. The container's interface is the one of that name whose sandbox is CNI_NETNS;
// where the plugin before wrote another sandbox, or none, every interface of that name
// is taken for it, as by the reference plugin.
func (t *target) updateResult(result *types.Result) {
	exact := slices.ContainsFunc(result.Interfaces, t.isInSandbox)
	for i := range result.Interfaces {
		in := &result.Interfaces[i]
		if in.Name != t.r.IfName || exact && !t.isInSandbox(*in) {
			continue
		}
		if mac := t.conf.link.MAC; mac != nil {
			in.MAC = *mac
		}
		if mtu := t.conf.link.MTU; mtu != nil {
			in.MTU = *mtu
		}
	}
}

func (t *target) isInSandbox(in types.Interface) bool {
	return in.Name == t.r.IfName && in.Sandbox == t.r.NetNS
}

// del puts back what was saved, if the container is still there, and removes the
// file. The configuration may say anything by now.
func del(r *skel.Request) error {
	st := newStore(r, dataDir(r))
	state, err := st.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		warnOfSysctls(r, st)
	case errors.Is(err, errUnreadable):
		r.Warn("%v; nothing is put back", err)
	case err != nil:
		return types.Coded(types.CodeIO, err)
	case r.Pod != nil:
		if err := putBack(r, state); err != nil {
			return err
		}
	}
	return st.remove()
}

// warnOfSysctls names the sysctls that keep the values of the configuration because
// nothing was saved: the reference plugin saves no sysctls.
func warnOfSysctls(r *skel.Request, st store) {
	conf, err := parse(r)
	if err != nil || r.Pod == nil {
		return
	}
	t := &target{r: r, conf: conf, store: st}
	if err := t.visit(func(sysctl.Visit) error { return nil }); err != nil {
		return
	}
	var kept []string
	for _, e := range t.sysctls {
		if !e.opaque && e.diff() == nil {
			kept = append(kept, e.Key)
		}
	}
	if len(kept) > 0 {
		r.Warn("saved state %s is not there: not put back are %s", st.path(), strings.Join(kept, ", "))
	}
}

// putBack tries everything, if the namespace is the one that it was saved in. The
// sysctls come last, in the order of ADD: some are there only under the MTU of before.
func putBack(r *skel.Request, state *saved) error {
	return errors.Join(putBackLink(r, state), putBackSysctls(r, state))
}

// putBackLink passes over an interface that has only the name of the one that was
// saved.
func putBackLink(r *skel.Request, state *saved) error {
	if len(state.knobs()) == 0 {
		return nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil || !state.isOf(pod.Cookie()) {
		return err
	}
	link, err := pod.Link(r.IfName)
	if err != nil || !state.isOfLink(link.Index) {
		return settled(r, err)
	}
	var errs []error
	for _, ch := range state.changes(link) {
		errs = append(errs, settled(r, pod.Apply(ch)))
	}
	return errors.Join(errs...)
}

func putBackSysctls(r *skel.Request, state *saved) error {
	if len(state.Sysctl) == 0 {
		return nil
	}
	return sysctl.Within(r.Pod, func(in sysctl.Visit) error {
		if !state.isOf(ns.Cookie()) {
			return nil
		}
		var errs []error
		for _, key := range slices.Sorted(maps.Keys(state.Sysctl)) {
			errs = append(errs, settled(r, in.Ensure(sysctl.Setting{Key: key, Value: state.Sysctl[key]})))
		}
		return errors.Join(errs...)
	})
}

// settled is what is left to report of an interface or a sysctl. One that is gone needs
// nothing. What the kernel will not take the next time either, because the container
// has made something else of its interface, must not keep DEL from ending.
func settled(r *skel.Request, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, errno := range []error{syscall.EINVAL, syscall.ERANGE, syscall.EOPNOTSUPP, syscall.EADDRINUSE} {
		if errors.Is(err, errno) {
			r.Warn("put back: %v", err)
			return nil
		}
	}
	return err
}

// check compares what is configured, and nothing else, with what is there.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	if _, err := r.MustPrev(); err != nil {
		return err
	}
	if conf.idle() {
		return nil
	}
	t, err := aim(r, conf)
	if err == nil {
		err = t.visit(func(sysctl.Visit) error { return nil })
	}
	if err != nil {
		return types.Coded(codeChanged, err)
	}
	errs := []error{conf.link.diff(t.link)}
	for _, e := range t.sysctls {
		errs = append(errs, e.diff())
	}
	return types.Coded(codeChanged, errors.Join(append(errs, t.checkSaved())...))
}

// diff compares without regard to white space: the kernel prints lists with tabs.
func (e entry) diff() error {
	if e.opaque || slices.Equal(strings.Fields(e.now), strings.Fields(e.Value)) {
		return nil
	}
	return fmt.Errorf("sysctl %s is %q, not %q", e.Key, e.now, e.Value)
}

// checkSaved fails where the saved state is missing, without which DEL cannot put
// anything back. The reference plugin saves nothing for sysctls alone: a container that
// it has served passes, and DEL warns.
func (t *target) checkSaved() error {
	_, err := t.store.load()
	if errors.Is(err, fs.ErrNotExist) && len(t.conf.link.knobs()) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("saved state, from which DEL puts back: %w", err)
	}
	return nil
}

// status says whether an ADD could be allowed what is configured, and could save what
// was before.
func (h host) status(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return types.NotAvailable(err)
	}
	list, err := readAllowlist(h.allowlist)
	if err != nil {
		return types.NotAvailable(err)
	}
	if err := list.check(conf.sysctls); err != nil {
		return types.NotAvailable(err)
	}
	return types.NotAvailable(writable(conf.dataDir))
}

// writable reports why nothing can be saved in dir, which need not be there yet.
func writable(dir string) error {
	info, err := os.Stat(dir)
	for ; errors.Is(err, fs.ErrNotExist); info, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	const writeAndSearch = 2 | 1 // W_OK|X_OK
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		err = syscall.ENOTDIR
	default:
		if err = syscall.Access(dir, writeAndSearch); err == nil {
			err = room(dir)
		}
	}
	if err != nil {
		return &fs.PathError{Op: "save state in", Path: dir, Err: err}
	}
	return nil
}

// room is ENOSPC on a disk that is full. One that cannot be asked is taken for well.
func room(dir string) error {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) == nil && (st.Blocks > 0 && st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
		return syscall.ENOSPC
	}
	return nil
}
