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

func (h host) add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	result, err := r.MustPrev()
	if err != nil || conf.idle() {
		return result, err
	}
	if err := h.checkAllowlist(conf); err != nil {
		return nil, err
	}
	t, err := newTarget(r, conf)
	if err == nil {
		err = t.inContainer(func(in sysctl.Inside) error { return t.tune(in, &r.Undo) })
	}
	if err != nil {
		return nil, withCode(err)
	}
	t.updateResult(result)
	return result, nil
}

// checkAllowlist returns an error if the allowlist does not allow all sysctls. It reads
// the file only if there are any.
func (h host) checkAllowlist(conf *config) error {
	if len(conf.sysctls) == 0 {
		return nil
	}
	list, err := readAllowlist(h.allowlist)
	if err != nil {
		return err
	}
	return list.check(conf.sysctls)
}

// A target is the container's interface and sysctls that the configuration is for.
type target struct {
	r       *skel.Request
	conf    *config
	store   store
	pod     *nl.Conn // nil if only sysctls are configured
	link    nl.Link  // zero if only sysctls are configured
	netns   uint64   // cookie of the container's namespace; zero: not known
	sysctls []entry
}

// An entry is a sysctl that was found in the container.
type entry struct {
	sysctl.Setting
	now        string
	unreadable bool // can be written, but has no value to read
}

// newTarget looks up the interface, if link settings are configured. With sysctls alone it
// opens no netlink socket, which takes as long as the sysctls.
func newTarget(r *skel.Request, conf *config) (*target, error) {
	t := &target{r: r, conf: conf, store: newStore(r, conf.dataDir)}
	if len(conf.link.present()) == 0 {
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

// inContainer reads the configured sysctls and runs f, in the container's namespace.
// Without sysctls it runs f where it is.
func (t *target) inContainer(f func(sysctl.Inside) error) error {
	if len(t.conf.sysctls) == 0 {
		return f(sysctl.Inside{})
	}
	return sysctl.Within(t.r.Pod, func(in sysctl.Inside) error {
		var errs []error
		for _, a := range t.conf.sysctls {
			e, err := readFirst(in, a)
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

// readFirst reads the first of the paths that exists in the container.
func readFirst(in sysctl.Inside, a assignment) (entry, error) {
	var err error
	for _, path := range a.paths {
		e := entry{Setting: sysctl.Setting{Key: path, Value: a.value}}
		e.now, err = in.Get(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		e.unreadable = isUnreadable(err)
		if e.unreadable {
			err = nil
		}
		return e, err
	}
	return entry{}, fmt.Errorf("sysctl %q is not there in the container (is it spelled right, its module loaded, and is it per namespace?): %w", a.written, err)
}

// isUnreadable reports whether the error is that of reading a sysctl without a value:
// net.ipv4.route.flush can only be written, stable_secret may never have been set.
func isUnreadable(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrPermission)
}

// tune saves the state and then changes it. The state is saved before the first change,
// so that DEL can put back what a killed ADD has changed. The undo is pushed before the
// first change, too: a change whose answer was lost may have been made, and putting back
// what was not changed does nothing. If the undo fails, the saved state stays for DEL.
func (t *target) tune(in sysctl.Inside, u *undo.Stack) error {
	before := t.before()
	earlier, err := t.loadEarlier()
	if err != nil {
		return err
	}
	original := t.before()
	if earlier != nil {
		original.override(earlier)
	}
	if err := t.store.save(original); err != nil {
		return err
	}
	u.Push("put back the settings of "+t.r.IfName, func() error {
		if err := putBack(t.r, before); err != nil {
			return err
		}
		if earlier != nil {
			return t.store.save(earlier)
		}
		return t.store.remove()
	})
	if err := in.Set(t.assignments()...); err != nil || t.pod == nil {
		return err
	}
	return t.pod.Apply(t.conf.link.changes(t.link)...)
}

// withCode gives the error code 7 (invalid configuration) if a sysctl or the interface
// does not exist in the container, or if the kernel does not accept a value: for example
// a MAC that another macvlan of the same master has.
func withCode(err error) error {
	for _, cause := range []error{fs.ErrNotExist, syscall.EINVAL, syscall.ERANGE, syscall.EADDRINUSE} {
		if errors.Is(err, cause) {
			return types.Coded(types.CodeConfig, err)
		}
	}
	return err
}

// before returns the present state of all that is to be changed.
func (t *target) before() *saved {
	s := &saved{
		settings: t.conf.link.readFrom(t.link), Sysctl: map[string]string{},
		Network: t.r.Conf.Name, NetNS: t.netns, IfIndex: t.link.Index,
	}
	for _, e := range t.sysctls {
		if !e.unreadable {
			s.Sysctl[e.Key] = e.now
		}
	}
	return s
}

// loadEarlier returns what an earlier ADD of this attachment saved, or nil. There is one
// if the plugin occurs twice in a chain: what the second finds is not the original state.
func (t *target) loadEarlier() (*saved, error) {
	state, err := t.store.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errUnreadable):
		t.r.Warn("%v; it is replaced", err)
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

// del puts the saved state back, if the container still exists, and removes the file. It
// does not rely on the configuration, which may have changed since ADD.
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
	if err := t.inContainer(func(sysctl.Inside) error { return nil }); err != nil {
		return
	}
	var kept []string
	for _, e := range t.sysctls {
		if !e.unreadable && e.diff() == nil {
			kept = append(kept, e.Key)
		}
	}
	if len(kept) > 0 {
		r.Warn("saved state %s does not exist; these sysctls are not put back: %s", st.path(), strings.Join(kept, ", "))
	}
}

// putBack puts back all settings, if the namespace is the one that the state was saved
// in, and joins the errors. The sysctls come last, as in ADD: some exist only with the
// original MTU.
func putBack(r *skel.Request, state *saved) error {
	return errors.Join(putBackLink(r, state), putBackSysctls(r, state))
}

// putBackLink leaves an interface alone that has the same name but is another one than
// the one that was saved.
func putBackLink(r *skel.Request, state *saved) error {
	if len(state.present()) == 0 {
		return nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil || !state.isOf(pod.Cookie()) {
		return err
	}
	link, err := pod.Link(r.IfName)
	if err != nil || !state.isOfLink(link.Index) {
		return ignoreUnrestorable(r, err)
	}
	var errs []error
	for _, ch := range state.changes(link) {
		errs = append(errs, ignoreUnrestorable(r, pod.Apply(ch)))
	}
	return errors.Join(errs...)
}

func putBackSysctls(r *skel.Request, state *saved) error {
	if len(state.Sysctl) == 0 {
		return nil
	}
	return sysctl.Within(r.Pod, func(in sysctl.Inside) error {
		if !state.isOf(ns.Cookie()) {
			return nil
		}
		var errs []error
		for _, key := range slices.Sorted(maps.Keys(state.Sysctl)) {
			errs = append(errs, ignoreUnrestorable(r, in.Ensure(sysctl.Setting{Key: key, Value: state.Sysctl[key]})))
		}
		return errors.Join(errs...)
	})
}

// ignoreUnrestorable drops errors that a retry cannot fix, so that DEL can succeed. A
// missing interface or sysctl needs nothing. A value that the kernel will never accept,
// because the container has changed its interface since, is a warning.
func ignoreUnrestorable(r *skel.Request, err error) error {
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

// check compares the configured settings, and no others, with the present state.
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
	t, err := newTarget(r, conf)
	if err == nil {
		err = t.inContainer(func(sysctl.Inside) error { return nil })
	}
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	errs := []error{conf.link.diff(t.link)}
	for _, e := range t.sysctls {
		errs = append(errs, e.diff())
	}
	return types.Coded(types.CodeChanged, errors.Join(append(errs, t.checkSaved())...))
}

// diff returns an error if the sysctl has another value. It ignores differences in white
// space: the kernel prints lists with tabs.
func (e entry) diff() error {
	if e.unreadable || slices.Equal(strings.Fields(e.now), strings.Fields(e.Value)) {
		return nil
	}
	return fmt.Errorf("sysctl %s is %q, not %q", e.Key, e.now, e.Value)
}

// checkSaved fails where the saved state is missing, without which DEL cannot put
// anything back. The reference plugin saves nothing for sysctls alone: a container that
// it has served passes, and DEL warns.
func (t *target) checkSaved() error {
	_, err := t.store.load()
	if errors.Is(err, fs.ErrNotExist) && len(t.conf.link.present()) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("saved state, from which DEL puts back: %w", err)
	}
	return nil
}

// status returns an error if the allowlist does not allow the configuration, or if the
// state could not be saved.
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
	return types.NotAvailable(checkWritable(conf.dataDir))
}

// checkWritable returns an error if nothing can be saved in dir. If dir does not exist,
// it looks at the folder in which it would be made.
func checkWritable(dir string) error {
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
			err = checkSpace(dir)
		}
	}
	if err != nil {
		return &fs.PathError{Op: "save state in", Path: dir, Err: err}
	}
	return nil
}

// checkSpace returns ENOSPC if the file system is full.
func checkSpace(dir string) error {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) == nil && (st.Blocks > 0 && st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
		return syscall.ENOSPC
	}
	return nil
}
