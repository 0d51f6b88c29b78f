package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// add saves the present settings and applies the configured ones. The result is prevResult with the new
// MAC and MTU.
func (h machine) add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	result, err := r.RequirePrev()
	if err != nil || conf.idle() {
		return result, err
	}
	if len(conf.sysctls) > 0 {
		if err := checkAllowlist(h.allowlist, conf.sysctls); err != nil {
			return nil, err
		}
	}
	err = r.ContainerNS.Do(func() error {
		t, err := newTarget(r, conf)
		if err == nil {
			err = t.tune(&r.Undo)
		}
		if err == nil {
			t.updateResult(result)
		}
		return err
	})
	if err != nil {
		return nil, withCode(err)
	}
	return result, nil
}

// A target has the interface and the sysctls of the container that the configuration sets, with
// their present values.
type target struct {
	r         *skel.Request
	conf      *config
	file      statefile.File // with the saved state
	container *nl.Conn       // nil if only sysctls are configured
	link      nl.Link        // zero if only sysctls are configured
	sysctls   []currentSysctl
}

// newTarget looks up the interface, if link settings are configured, and reads the configured
// sysctls. If only sysctls are configured, it opens no netlink socket: that would take as long
// as setting the sysctls.
func newTarget(r *skel.Request, conf *config) (*target, error) {
	t := &target{r: r, conf: conf, file: savedFile(r, conf.dataDir)}
	var err error
	if conf.link != (settings{}) {
		if t.container, err = nl.Open(r.ContainerNS); err != nil {
			return nil, err
		}
		if t.link, err = t.container.Link(r.IfName); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("no interface %q in container: list tuning after the plugin that makes the interface: %w", r.IfName, err)
		}
		if err != nil {
			return nil, err
		}
	}
	t.sysctls, err = readSysctls(r.ContainerNS, conf.sysctls)
	return t, err
}

// tune saves the present settings and then applies the configured ones. It saves before the
// first change, so that DEL can restore the settings after an ADD that was killed. It also
// pushes the undo before the first change: a change whose answer was lost may have been made,
// and restoring an unchanged setting does no harm. If the undo fails, the saved state stays
// for DEL.
func (t *target) tune(u *undo.Stack) error {
	before := t.currentState()
	earlier, err := t.loadEarlier()
	if err != nil {
		return err
	}
	if err := t.file.Save(before.withOriginals(earlier)); err != nil {
		return err
	}
	u.Push("restore the settings of "+t.r.IfName, func() error {
		if err := restore(t.r, before); err != nil {
			return err
		}
		if earlier != nil {
			return t.file.Save(earlier)
		}
		return t.file.Remove()
	})
	if err := sysctl.Set(t.r.ContainerNS, t.configuredSysctls()...); err != nil {
		return err
	}
	for _, d := range t.conf.link.differences(t.link) {
		if err := d.set(t.container, t.link); err != nil {
			return err
		}
	}
	return nil
}

// withCode returns err with types.CodeConfig if a sysctl or the interface does not exist in the
// container, or if the kernel refuses a value: for example a MAC that another macvlan of the same
// master has. It returns other errors unchanged.
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
		settings: t.conf.link.currentOf(t.link), Sysctl: map[string]string{},
		Network: t.r.Conf.Name, NetNS: t.r.ContainerNS.Cookie(), IfIndex: t.link.Index,
	}
	for _, current := range t.sysctls {
		if !current.noValue {
			s.Sysctl[current.Key] = current.now
		}
	}
	return s
}

// loadEarlier returns the state that an earlier ADD of this attachment saved in the same namespace, or
// nil if there is none. There is one if the chain lists the plugin twice. The settings that the second
// call finds are then not the original ones.
func (t *target) loadEarlier() (*saved, error) {
	state := &saved{}
	err := t.file.Load(state)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, statefile.ErrUnreadable):
		t.r.Warn("%v; it is replaced", err)
		return nil, nil
	case err != nil:
		return nil, types.Coded(types.CodeIO, err)
	case !t.r.ContainerNS.CanHaveCookie(state.NetNS):
		return nil, nil
	}
	return state, nil
}

// configuredSysctls returns the sysctls with the configured values.
func (t *target) configuredSysctls() []sysctl.Setting {
	all := make([]sysctl.Setting, 0, len(t.sysctls))
	for _, s := range t.sysctls {
		all = append(all, s.Setting)
	}
	return all
}

// updateResult records the configured MAC and MTU in the result of the chain. It changes the
// interfaces named CNI_IFNAME whose sandbox is CNI_NETNS. If the result has no such interface,
// because the earlier plugin wrote another sandbox or no sandbox, it changes every interface of that
// name, as the reference plugin does.
func (t *target) updateResult(result *types.Result) {
	hasSandbox := slices.ContainsFunc(result.Interfaces, t.isInSandbox)
	for i := range result.Interfaces {
		in := &result.Interfaces[i]
		if in.Name != t.r.IfName || hasSandbox && !t.isInSandbox(*in) {
			continue
		}
		if mac := t.conf.link.MAC; mac != nil {
			in.MAC = mac.String()
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
	file, state := savedFile(r, dataDir(r)), &saved{}
	err := file.Load(state)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		warnOfSysctls(r, file.Path())
	case errors.Is(err, statefile.ErrUnreadable):
		r.Warn("%v; nothing is restored", err)
	case err != nil:
		return types.Coded(types.CodeIO, err)
	case r.ContainerNS != nil:
		if err := restore(r, state); err != nil {
			return err
		}
	}
	return file.Remove()
}

// warnOfSysctls warns of the sysctls that DEL leaves at the configured values, because no state
// was saved. That happens after an ADD of the reference plugin, which saves no sysctls.
func warnOfSysctls(r *skel.Request, missingFile string) {
	conf, err := parse(r)
	if err != nil || r.ContainerNS == nil {
		return
	}
	sysctls, err := readSysctls(r.ContainerNS, conf.sysctls)
	if err != nil {
		return
	}
	var kept []string
	for _, s := range sysctls {
		if !s.noValue && s.diff(r.ContainerNS) == nil {
			kept = append(kept, s.Key)
		}
	}
	if len(kept) > 0 {
		r.Warn("saved state %s does not exist; these sysctls are not restored: %s", missingFile, strings.Join(kept, ", "))
	}
}

// restore restores all saved settings and joins the errors. It does nothing if the namespace is
// not the one in which the state was saved. It restores the sysctls last, because the kernel removes
// IPv6 and its sysctls from an interface with an MTU below 1280.
func restore(r *skel.Request, state *saved) error {
	return r.ContainerNS.Do(func() error {
		if !r.ContainerNS.CanHaveCookie(state.NetNS) {
			return nil
		}
		errs := []error{restoreLink(r, state)}
		for _, key := range slices.Sorted(maps.Keys(state.Sysctl)) {
			errs = append(errs, ignoreUnrestorable(r, sysctl.Ensure(r.ContainerNS, sysctl.Setting{Key: key, Value: state.Sysctl[key]})))
		}
		return errors.Join(errs...)
	})
}

// restoreLink restores the saved link settings. It does nothing if the interface of that name
// is not the one whose settings were saved.
func restoreLink(r *skel.Request, state *saved) error {
	if state.settings == (settings{}) {
		return nil
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return err
	}
	link, err := container.Link(r.IfName)
	if err != nil || !state.isOfLink(link.Index) {
		return ignoreUnrestorable(r, err)
	}
	var errs []error
	for _, d := range state.differences(link) {
		errs = append(errs, ignoreUnrestorable(r, d.set(container, link)))
	}
	return errors.Join(errs...)
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
			r.Warn("restore: %v", err)
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
	if _, err := r.RequirePrev(); err != nil {
		return err
	}
	if conf.idle() {
		return nil
	}
	t, err := newTarget(r, conf)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	var errs []error
	for _, d := range conf.link.differences(t.link) {
		errs = append(errs, fmt.Errorf("%s of interface %s is %v, not %v", d.name, r.IfName, d.have, d.want))
	}
	for _, s := range t.sysctls {
		errs = append(errs, s.diff(r.ContainerNS))
	}
	return types.Coded(types.CodeChanged, errors.Join(append(errs, t.checkSaved())...))
}

// checkSaved returns an error if the saved state cannot be read: DEL could not restore
// anything. If only sysctls are configured, a missing state is no error, because the reference
// plugin saves no sysctls. DEL then warns.
func (t *target) checkSaved() error {
	err := t.file.Load(&saved{})
	if errors.Is(err, fs.ErrNotExist) && t.conf.link == (settings{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the saved state, which DEL needs: %w", err)
	}
	return nil
}

// status returns an error if the configuration is invalid, if the allowlist does not allow it, or if
// the state could not be saved.
func (h machine) status(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return types.NotAvailable(err)
	}
	if err := checkAllowlist(h.allowlist, conf.sysctls); err != nil {
		return types.NotAvailable(err)
	}
	return types.NotAvailable(statefile.CheckWritable(conf.dataDir))
}
