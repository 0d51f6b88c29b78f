package install

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// daemonUnit is the unit of the daemon of dhcp. Plugin and daemon must be of the same version.
const daemonUnit = "cni-dhcp.service"

// restartDaemon restarts the daemon of dhcp if systemd runs it and the plugin dhcp is another one than before.
func (r *Report) restartDaemon(ctx context.Context) error {
	changed := func(f File) bool { return f.changed() && filepath.Base(f.Path) == "dhcp" }
	if !slices.ContainsFunc(r.Executables, changed) {
		return nil
	}
	if _, err := exec.LookPath("systemctl"); err != nil {
		r.Advice = append(r.Advice, fmt.Sprintf("There is no systemctl here. If %s runs on this node, restart it: its daemon is that of before.", daemonUnit))
		return nil
	}
	if exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", daemonUnit).Run() != nil {
		return nil
	}
	out, err := exec.CommandContext(ctx, "systemctl", "restart", daemonUnit).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s could not be restarted; restart it, because its daemon is that of before: %w %s", daemonUnit, err, strings.TrimSpace(string(out)))
	}
	r.Restarted = append(r.Restarted, daemonUnit)
	return nil
}
