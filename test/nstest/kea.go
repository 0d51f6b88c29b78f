package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// StartKea starts Debian's kea-dhcp4 for DHCP on an interface, with the addresses of pool, such as
// "10.0.0.2-10.0.0.9". Leases last an hour, and clients renew them after renew seconds. Kea recognizes a
// client by the identifier alone if a lease with that identifier exists. Kea ends with the test.
func StartKea(tb TB, e End, pool string, renew int) *LoggingDaemon {
	tb.Helper()
	dir := tb.TempDir()
	config := filepath.Join(dir, "kea.json")
	Must(tb, os.WriteFile(config, fmt.Appendf(nil, `{"Dhcp4":{"interfaces-config":{"interfaces":[%q]},"match-client-id":true,"authoritative":true,
"lease-database":{"type":"memfile","persist":false},"valid-lifetime":3600,"renew-timer":%d,"rebind-timer":3000,
"subnet4":[{"subnet":%q,"pools":[{"pool":%q}]}],
"loggers":[{"name":"kea-dhcp4","severity":"DEBUG","debuglevel":50,"output_options":[{"output":"stdout","flush":true}]}]}}`,
		e.Name, renew, e.Addrs[0], pool), 0o600))
	program, err := exec.LookPath("kea-dhcp4")
	Must(tb, err)
	text, err := os.ReadFile(program)
	Must(tb, err)
	// AppArmor limits the file access of Debian's executable, but not of a copy.
	program = filepath.Join(dir, "kea-dhcp4")
	Must(tb, os.WriteFile(program, text, 0o700))
	k := &LoggingDaemon{}
	cmd := exec.Command(program, "-c", config)
	cmd.Env = append(os.Environ(), "KEA_PIDFILE_DIR="+dir, "KEA_LOCKFILE_DIR=none")
	cmd.Stdout, cmd.Stderr = &k.log, &k.log
	k.Daemon = startDaemon(tb, cmd, e.In.Start)
	k.AwaitLog(tb, "DHCP4_STARTED")
	return k
}
