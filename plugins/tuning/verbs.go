package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// add saves the current settings and applies the configured ones. The result is prevResult with the new MAC and MTU.
func (h machine) add(r *skel.Request, conf *config) (*types.Result, error) {
	result, err := r.RequirePrev()
	if err != nil || conf.setsNothing() {
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

// A target contains the interface and the sysctls that one call tunes, with their current values.
type target struct {
	r         *skel.Request
	conf      *config
	file      statefile.File // the file of the saved state
	container *nl.Conn       // nil if only sysctls are configured
	link      nl.Link        // zero if only sysctls are configured
	sysctls   []currentSysctl
}

// newTarget looks up the interface, if link settings are configured, and reads the configured sysctls. If
// only sysctls are configured, it opens no netlink socket, which would take as long as setting the sysctls.
func newTarget(r *skel.Request, conf *config) (*target, error) {
	t := &target{r: r, conf: conf, file: savedFile(r, conf.dataDir)}
	var err error
	if conf.link != (settings{}) {
		if t.container, t.link, err = nl.OpenLink(r.ContainerNS, r.IfName); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("no interface %q in container: %w; list tuning after the plugin that creates the interface", r.IfName, err)
		}
		if err != nil {
			return nil, err
		}
	}
	t.sysctls, err = readSysctls(r.ContainerNS, conf.sysctls)
	return t, err
}

// tune saves the current settings and then applies the configured ones. It saves before the first change, so
// that DEL can restore the settings after an ADD that was killed. It also pushes the undo before the first
// change, because the kernel may apply a change whose answer is lost, and restoring an unchanged setting does
// no harm. If the undo fails, the saved state stays for DEL.
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
	return t.apply()
}

// apply applies the configured settings.
func (t *target) apply() error {
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

// withCode returns err with types.CodeConfig if a sysctl or the interface does not exist in the container, or
// if the kernel rejects a value, for example the MAC of another macvlan on the same master. It returns other
// errors unchanged.
func withCode(err error) error {
	for _, cause := range []error{fs.ErrNotExist, syscall.EINVAL, syscall.ERANGE, syscall.EADDRINUSE} {
		if errors.Is(err, cause) {
			return types.Coded(types.CodeConfig, err)
		}
	}
	return err
}

// currentState returns the current values of all configured settings.
func (t *target) currentState() *saved {
	s := &saved{
		settings: t.conf.link.readCurrent(t.link), Sysctl: map[string]string{},
		Network: t.r.Conf.Name, NetNS: t.r.ContainerNS.Cookie(), IfIndex: t.link.Index,
	}
	for _, current := range t.sysctls {
		if !current.noValue {
			s.Sysctl[current.Key] = current.now
		}
	}
	return s
}

// loadEarlier returns the state that an earlier ADD of this attachment saved in the same namespace, or nil if there is
// none. Such a state exists if the chain lists the plugin twice. If the second call ignored it, that call would save
// the first call's values as the original values.
func (t *target) loadEarlier() (*saved, error) {
	state := &saved{}
	err := t.file.Load(state)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, statefile.ErrUnreadable):
		t.r.Warn("replacing the saved state: %v", err)
		return nil, nil
	case err != nil:
		return nil, types.Coded(types.CodeIO, err)
	case !t.r.ContainerNS.CanHaveCookie(state.NetNS):
		return nil, nil
	}
	return state, nil
}

func (t *target) configuredSysctls() []sysctl.Setting {
	all := make([]sysctl.Setting, 0, len(t.sysctls))
	for _, s := range t.sysctls {
		all = append(all, s.Setting)
	}
	return all
}

// updateResult records the configured MAC and MTU in the result of the chain. It changes the interfaces named
// CNI_IFNAME whose sandbox is CNI_NETNS. If there are none, because the earlier plugin wrote another sandbox
// or none, it changes every interface with the name, as the reference plugin does.
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

func (t *target) isInSandbox(in types.Interface) bool {
	return in.Name == t.r.IfName && in.Sandbox == t.r.NetNS
}

// del restores the saved state if the container still exists, and removes its file. It does not use the
// configured settings, because they may have changed since ADD.
func del(r *skel.Request) error {
	file, state := savedFile(r, r.SavedStateDir(defaultDataDir)), &saved{}
	err := file.Load(state)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		warnAboutKeptSysctls(r, file.Path())
	case errors.Is(err, statefile.ErrUnreadable):
		r.Warn("nothing is restored: %v", err)
	case err != nil:
		return types.Coded(types.CodeIO, err)
	case r.ContainerNS != nil:
		if err := restore(r, state); err != nil {
			return err
		}
	}
	return file.Remove()
}

// warnAboutKeptSysctls prints a warning that lists the sysctls that keep the configured values because no
// state was saved. The reference plugin's ADD saves no sysctls.
func warnAboutKeptSysctls(r *skel.Request, missingFile string) {
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

// restore restores all saved settings, and joins the errors. It does nothing if the state was saved in
// another namespace. It restores the sysctls last, because an interface with an MTU below 1280 has no IPv6
// sysctls until restore raises the MTU.
func restore(r *skel.Request, state *saved) error {
	return r.ContainerNS.Do(func() error {
		if !r.ContainerNS.CanHaveCookie(state.NetNS) {
			return nil
		}
		if other, err := belongsToOther(r, state); other || err != nil {
			return err
		}
		errs := []error{restoreLink(r, state)}
		for _, key := range slices.Sorted(maps.Keys(state.Sysctl)) {
			errs = append(errs, ignoreUnrestorable(r, sysctl.Ensure(r.ContainerNS, sysctl.Setting{Key: key, Value: state.Sysctl[key]})))
		}
		return errors.Join(errs...)
	})
}

// belongsToOther reports whether the container's interface belongs to another attachment. It asks only if the state
// contains no cookie, because the reference plugin saved it, or the kernel does not support cookies.
func belongsToOther(r *skel.Request, state *saved) (bool, error) {
	if state.NetNS != 0 {
		return false, nil
	}
	container, link, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err != nil {
		return false, types.IgnoreNotExist(err)
	}
	return attach.BelongsToOther(r, container, link)
}

// restoreLink restores the saved link settings. It does nothing if they were saved for another interface with the name.
func restoreLink(r *skel.Request, state *saved) error {
	if state.settings == (settings{}) {
		return nil
	}
	container, link, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err != nil || !state.isOfLink(link.Index) {
		return ignoreUnrestorable(r, err)
	}
	var errs []error
	for _, d := range state.differences(link) {
		errs = append(errs, ignoreUnrestorable(r, d.set(container, link)))
	}
	return errors.Join(errs...)
}

// ignoreUnrestorable drops errors that a retry cannot fix, so that DEL can succeed. If the interface or the
// sysctl does not exist, there is nothing to restore. If the kernel rejects the saved value, because the
// container has changed its interface since ADD, ignoreUnrestorable prints a warning.
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

// check compares only the configured settings with the current ones.
func check(r *skel.Request, conf *config) error {
	if _, err := r.RequirePrev(); err != nil {
		return err
	}
	if conf.setsNothing() {
		return nil
	}
	t, err := newTarget(r, conf)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	var errs []error
	for _, d := range conf.link.differences(t.link) {
		errs = append(errs, fmt.Errorf("%s of interface %s is %v, want %v", d.name, r.IfName, d.current, d.want))
	}
	for _, s := range t.sysctls {
		errs = append(errs, s.diff(r.ContainerNS))
	}
	changed := types.WithRepair(types.RepairContainerSide, errors.Join(errs...))
	return types.Coded(types.CodeChanged, errors.Join(changed, types.WithRepair(types.RepairNever, t.checkSaved())))
}

// repair applies the configured settings again, with --container-side. It changes nothing if ADD saved no settings of this
// namespace and interface, because these may belong to another attachment.
func (h machine) repair(r *skel.Request, conf *config) error {
	if !r.RepairsContainer() {
		return nil
	}
	if err := checkAllowlist(h.allowlist, conf.sysctls); err != nil {
		return err
	}
	return withCode(r.ContainerNS.Do(func() error {
		t, err := newTarget(r, conf)
		state := &saved{}
		if err != nil || t.file.Load(state) != nil || !r.ContainerNS.CanHaveCookie(state.NetNS) || !state.isOfLink(t.link.Index) {
			return err // CHECK reports an unreadable file
		}
		return t.apply()
	}))
}

// checkSaved returns an error if the saved state cannot be read, because DEL could not restore anything. If
// only sysctls are configured, the state may be missing, because the reference plugin saves no sysctls. It is missing as
// well if there is no directory to save it in.
func (t *target) checkSaved() error {
	err := t.file.Load(&saved{})
	if errors.Is(err, fs.ErrNotExist) && (t.conf.link == (settings{}) || t.file.Dir == "") {
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
