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

// checkAllowlist returns an error if the allowlist does not allow all configured sysctls. It
// reads the allowlist only if the configuration has sysctls.
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

// A target has the interface and the sysctls of the container that the configuration sets.
type target struct {
	r       *skel.Request
	conf    *config
	store   store
	pod     *nl.Conn // nil if only sysctls are configured
	link    nl.Link  // zero if only sysctls are configured
	netns   uint64   // cookie of the container's namespace; zero: not known
	sysctls []currentSysctl
}

// A currentSysctl is a configured sysctl (Setting) and its present value in the container.
type currentSysctl struct {
	sysctl.Setting
	now        string
	unreadable bool // the sysctl can be written, but has no value to read
}

// newTarget looks up the interface, if link settings are configured. If only sysctls are
// configured, it opens no netlink socket: that would take as long as setting the sysctls.
func newTarget(r *skel.Request, conf *config) (*target, error) {
	t := &target{r: r, conf: conf, store: newStore(r, conf.dataDir)}
	if len(conf.link.present()) == 0 {
		return t, nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return nil, err
	}
	t.pod, t.netns = pod, r.Pod.Cookie()
	if t.link, err = pod.Link(r.IfName); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("no interface %q in container: list tuning after the plugin that makes the interface: %w", r.IfName, err)
	}
	return t, err
}

// inContainer enters the container's namespace, reads the configured sysctls and runs f.
// Without configured sysctls it runs f and does not enter the namespace.
func (t *target) inContainer(f func(sysctl.Inside) error) error {
	if len(t.conf.sysctls) == 0 {
		return f(sysctl.Inside{})
	}
	return sysctl.Within(t.r.Pod, func(in sysctl.Inside) error {
		var errs []error
		for _, a := range t.conf.sysctls {
			s, err := readFirst(in, a)
			t.sysctls, errs = append(t.sysctls, s), append(errs, err)
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

// readFirst reads the sysctl of an assignment: the first of its paths that exists in the
// container.
func readFirst(in sysctl.Inside, a assignment) (currentSysctl, error) {
	var err error
	for _, path := range a.paths {
		s := currentSysctl{Setting: sysctl.Setting{Key: path, Value: a.value}}
		s.now, err = in.Get(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		s.unreadable = isUnreadable(err)
		if s.unreadable {
			err = nil
		}
		return s, err
	}
	return currentSysctl{}, fmt.Errorf("sysctl %q does not exist in the container; check the spelling, load its kernel module, or remove it if it is not per namespace: %w", a.written, err)
}

// isUnreadable reports whether err is the error of reading a sysctl that has no value:
// net.ipv4.route.flush can only be written, and stable_secret may never have been set.
func isUnreadable(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrPermission)
}

// tune saves the present settings and then applies the configured ones. It saves before the
// first change, so that DEL can restore the settings after an ADD that was killed. It also
// pushes the undo before the first change: a change whose answer was lost may have been made,
// and restoring an unchanged setting does no harm. If the undo fails, the saved state stays
// for DEL.
func (t *target) tune(in sysctl.Inside, u *undo.Stack) error {
	before := t.currentState()
	earlier, err := t.loadEarlier()
	if err != nil {
		return err
	}
	original := t.currentState()
	if earlier != nil {
		original.override(earlier)
	}
	if err := t.store.save(original); err != nil {
		return err
	}
	u.Push("put back the settings of "+t.r.IfName, func() error {
		if err := restore(t.r, before); err != nil {
			return err
		}
		if earlier != nil {
			return t.store.save(earlier)
		}
		return t.store.remove()
	})
	if err := in.Set(t.settings()...); err != nil || t.pod == nil {
		return err
	}
	for _, k := range t.conf.link.differing(t.link) {
		if err := k.set(t.pod, t.link, &t.conf.link); err != nil {
			return err
		}
	}
	return nil
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

// currentState returns the present values of all configured settings.
func (t *target) currentState() *saved {
	s := &saved{
		settings: t.conf.link.readFrom(t.link), Sysctl: map[string]string{},
		Network: t.r.Conf.Name, NetNS: t.netns, IfIndex: t.link.Index,
	}
	for _, current := range t.sysctls {
		if !current.unreadable {
			s.Sysctl[current.Key] = current.now
		}
	}
	return s
}

// loadEarlier returns the state that an earlier ADD of this attachment saved, or nil if there
// is none. There is one if the chain lists the plugin twice. The settings that the second call
// finds are then not the original ones.
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

// settings returns the configured sysctls.
func (t *target) settings() []sysctl.Setting {
	all := make([]sysctl.Setting, 0, len(t.sysctls))
	for _, s := range t.sysctls {
		all = append(all, s.Setting)
	}
	return all
}

// updateResult records the configured MAC and MTU in the result of the chain. It changes the
// interfaces named CNI_IFNAME whose sandbox is CNI_NETNS. If the result has none, because the
// earlier plugin wrote another sandbox or no sandbox, it changes every interface of that name,
// as the reference plugin does.
func (t *target) updateResult(result *types.Result) {
	hasSandbox := slices.ContainsFunc(result.Interfaces, t.isInSandbox)
	for i := range result.Interfaces {
		in := &result.Interfaces[i]
		if in.Name != t.r.IfName || hasSandbox && !t.isInSandbox(*in) {
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

// isInSandbox reports whether in has the name CNI_IFNAME and the sandbox CNI_NETNS.
func (t *target) isInSandbox(in types.Interface) bool {
	return in.Name == t.r.IfName && in.Sandbox == t.r.NetNS
}

// del restores the saved state, if the container still exists, and removes the file with the
// state. It does not use the configured settings, because they may have changed since ADD.
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
		if err := restore(r, state); err != nil {
			return err
		}
	}
	return st.remove()
}

// warnOfSysctls warns of the sysctls that DEL leaves at the configured values, because no state
// was saved. That happens after an ADD of the reference plugin, which saves no sysctls.
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
	for _, s := range t.sysctls {
		if !s.unreadable && s.diff() == nil {
			kept = append(kept, s.Key)
		}
	}
	if len(kept) > 0 {
		r.Warn("saved state %s does not exist; these sysctls are not put back: %s", st.path(), strings.Join(kept, ", "))
	}
}

// restore restores all saved settings and joins the errors. It does nothing if the namespace is
// not the one in which the state was saved. It restores the sysctls last, because some sysctls
// exist only with the original MTU.
func restore(r *skel.Request, state *saved) error {
	return errors.Join(restoreLink(r, state), restoreSysctls(r, state))
}

// restoreLink restores the saved link settings. It does nothing if the interface of that name
// is not the one whose settings were saved.
func restoreLink(r *skel.Request, state *saved) error {
	if len(state.present()) == 0 {
		return nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil || !state.isOf(r.Pod.Cookie()) {
		return err
	}
	link, err := pod.Link(r.IfName)
	if err != nil || !state.isOfLink(link.Index) {
		return ignoreUnrestorable(r, err)
	}
	var errs []error
	for _, k := range state.differing(link) {
		errs = append(errs, ignoreUnrestorable(r, k.set(pod, link, &state.settings)))
	}
	return errors.Join(errs...)
}

// restoreSysctls restores the saved sysctls.
func restoreSysctls(r *skel.Request, state *saved) error {
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

// ignoreUnrestorable drops errors that a retry cannot fix, so that DEL can succeed. If the
// interface or the sysctl does not exist, there is nothing to restore. If the kernel rejects the
// saved value, because the container has changed its interface since, ignoreUnrestorable warns.
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
	for _, s := range t.sysctls {
		errs = append(errs, s.diff())
	}
	return types.Coded(types.CodeChanged, errors.Join(append(errs, t.checkSaved())...))
}

// diff returns an error if the present value is not the configured one. It ignores differences
// in white space: the kernel prints lists with tabs.
func (s currentSysctl) diff() error {
	if s.unreadable || slices.Equal(strings.Fields(s.now), strings.Fields(s.Value)) {
		return nil
	}
	return fmt.Errorf("sysctl %s is %q, not %q", s.Key, s.now, s.Value)
}

// checkSaved returns an error if the saved state cannot be read: DEL could not restore
// anything. If only sysctls are configured, a missing state is no error, because the reference
// plugin saves no sysctls. DEL then warns.
func (t *target) checkSaved() error {
	_, err := t.store.load()
	if errors.Is(err, fs.ErrNotExist) && len(t.conf.link.present()) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the saved state, which DEL needs: %w", err)
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

// checkWritable returns an error if the process cannot make files in dir. If dir does not
// exist, checkWritable tests the nearest parent folder that exists.
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

// checkSpace returns ENOSPC if the file system of dir has no free block or no free inode.
func checkSpace(dir string) error {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) == nil && (st.Blocks > 0 && st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
		return syscall.ENOSPC
	}
	return nil
}
