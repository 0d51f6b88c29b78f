package nstest

import "golang.org/x/sys/unix"

// ReadOnlySysctls makes /proc/sys read-only in the test's mount namespace until the returned
// function is called or the test ends. Tests that call it must run in their own mount namespace
// (scripts/sandbox.sh).
func ReadOnlySysctls(tb TB) (restore func()) {
	tb.Helper()
	const procSys = "/proc/sys"
	if err := unix.Mount(procSys, procSys, "", unix.MS_BIND, ""); err != nil {
		tb.Fatalf("bind %s: %v", procSys, err)
	}
	mounted := true
	restore = func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(procSys, unix.MNT_DETACH); err != nil {
				tb.Errorf("unmount %s: %v", procSys, err)
			}
		}
	}
	tb.Cleanup(restore)
	if err := unix.Mount("", procSys, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		tb.Fatalf("remount %s read-only: %v", procSys, err)
	}
	return restore
}
