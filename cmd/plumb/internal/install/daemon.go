package install

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// daemonUnit is the unit of the DHCP daemon, which must have the same version as the plugin dhcp.
const daemonUnit = "cni-dhcp.service"

// restartDaemon restarts the DHCP daemon if the installation changed the plugin dhcp and systemd runs the daemon.
func (r *Report) restartDaemon(ctx context.Context) error {
	changed := func(f File) bool { return f.changed() && filepath.Base(f.Path) == "dhcp" }
	if !slices.ContainsFunc(r.Executables, changed) {
		return nil
	}
	if _, err := exec.LookPath("systemctl"); err != nil {
		r.Advice = append(r.Advice, fmt.Sprintf("There is no systemctl here. If %s runs on this host, restart it, because its daemon still has the former version.", daemonUnit))
		return nil
	}
	if exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", daemonUnit).Run() != nil {
		return nil
	}
	out, err := exec.CommandContext(ctx, "systemctl", "restart", daemonUnit).CombinedOutput()
	if err != nil {
		return fmt.Errorf("restart %s: %w %s; restart it, because its daemon still has the former version", daemonUnit, err, strings.TrimSpace(string(out)))
	}
	r.Restarted = append(r.Restarted, daemonUnit)
	return nil
}
