package install

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// daemonUnits are the units of the DHCP daemon in a release and in the packages. The daemon must have the same version
// as the plugin dhcp.
var daemonUnits = []string{"cni-dhcp.service", "plumb-dhcp.service"}

// restartDaemon restarts the DHCP daemon if the installation changed the plugin dhcp and systemd runs the daemon.
func (r *Report) restartDaemon(ctx context.Context) error {
	changed := func(f File) bool { return f.changed() && filepath.Base(f.Path) == "dhcp" }
	if !slices.ContainsFunc(r.Executables, changed) {
		return nil
	}
	if _, err := exec.LookPath("systemctl"); err != nil {
		r.Advice = append(r.Advice, fmt.Sprintf("There is no systemctl here. If %s runs on this host, restart it, "+
			"because its daemon still runs the former version.", strings.Join(daemonUnits, " or ")))
		return nil
	}
	for _, unit := range daemonUnits {
		if exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", unit).Run() != nil {
			continue
		}
		if out, err := exec.CommandContext(ctx, "systemctl", "restart", unit).CombinedOutput(); err != nil {
			return fmt.Errorf("restart %s: %w %s; restart it, because its daemon still runs the former version", unit, err, bytes.TrimSpace(out))
		}
		r.Restarted = append(r.Restarted, unit)
	}
	return nil
}
