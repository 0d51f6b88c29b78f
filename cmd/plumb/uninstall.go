package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/install"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// An uninstallation restores the former plugins and removes what plumb left on the host.
type uninstallation struct {
	install.Options
	places *places
	out    io.Writer
}

func newUninstall() *cobra.Command {
	u := &uninstallation{Options: install.Options{Timeout: 10 * time.Second}}
	c := &cobra.Command{
		Use:     "uninstall [--to DIR --restore BACKUP]",
		Short:   "Restore the former plugins, and remove what plumb added to this host",
		Example: "  plumb uninstall --to /opt/cni/bin --restore /opt/cni/before-plumb --dry-run",
		Long: `uninstall restores the plugins and configurations of the backup, removes those that plumb install added, sets route_localnet
of the interfaces to 0, and deletes plumb's nftables tables, and the rules of portmap in table raw of iptables. Without --to and
--restore, for example if a package installed plumb, it restores and removes no files. It does nothing if this host holds resources of containers other than
elements of these tables: first delete all containers with the runtime, and then run plumb gc --no-live, which removes what they left.`,
		Args: usage(cobra.NoArgs),
	}
	u.places = addPlaces(c)
	c.Flags().StringVar(&u.To, "to", "", "the `directory` of the plugins, usually /opt/cni/bin")
	c.Flags().StringVar(&u.Backup, "restore", "", "the backup `directory` of plumb install, usually /opt/cni/before-plumb")
	c.Flags().BoolVar(&u.DryRun, "dry-run", false, "show what would be done, and change nothing")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if (u.To == "") != (u.Backup == "") {
			return usageError{errors.New("--to needs --restore, and --restore needs --to")}
		}
		if c.Flags().Changed("conf-dir") {
			u.ConfDir = u.places.ConfDirs[0]
		}
		u.out = c.OutOrStdout()
		inv, err := readHost(c, u.places)
		if err != nil {
			return err
		}
		var held error
		if n := countHeld(inv); n > 0 {
			held = fmt.Errorf("nothing was changed, because this host holds resources of %s; delete the containers with the runtime, "+
				"and then run plumb gc --no-live; %s", count(n, "attachment"), u.whileRunning())
		}
		if held != nil && !u.DryRun {
			return held
		}
		if held != nil {
			printf(c.ErrOrStderr(), "uninstall would do the following if this host held no resources of containers\n")
		}
		return errors.Join(u.run(untilSignal(c.Context())), held)
	}
	return c
}

// whileRunning returns how to go back to the former plugins while containers run.
func (u *uninstallation) whileRunning() string {
	const what = "goes back to the former plugins while the containers run"
	if u.Backup == "" {
		return "if there is a backup, plumb install --restore " + what
	}
	restore := installFlags{Options: u.Options, restore: u.Backup}
	return fmt.Sprintf("or run this, which %s: %s", what, restore.restoreCommand())
}

// countHeld returns the number of attachments that uninstall must not touch. It omits those of dead containers of which only
// elements of plumb's tables are left, because these go with the tables. The former plugins do not delete them, and therefore
// plumb gc does not either after install --restore.
func countHeld(inv *node.Inventory) int {
	inv.WithoutLoopback()
	return len(slices.DeleteFunc(slices.Clone(inv.Attachments), func(a *node.Attachment) bool {
		verdict, _ := inv.Judge(a, life.List{None: true})
		return verdict == life.Dead && a.HasOnlyElements() && !inv.IsPartial()
	}))
}

// do prints a step and, without --dry-run, does it.
func (u *uninstallation) do(step string, f func() error) error {
	if u.DryRun {
		printf(u.out, "would %s\n", step)
		return nil
	}
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	printf(u.out, "done: %s\n", step)
	return nil
}

func (u *uninstallation) run(ctx context.Context) (err error) {
	var report install.Report
	if u.Backup != "" {
		report, err = install.Restore(ctx, u.Options)
	}
	for _, f := range slices.Concat(report.Executables, report.Configurations) {
		if err == nil && f.Action == install.Stays {
			err = u.do("remove "+f.Path, func() error { return os.Remove(f.Path) })
		} else if f.Action == install.Restored {
			_ = u.do("restore "+f.Path, func() error { return nil }) // Restore has done it
		}
	}
	if err != nil {
		return err
	}
	h, err := ns.Self(nil)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	if err := u.closeLocalnet(h); err != nil {
		return err
	}
	if err := u.deleteGuards(h); err != nil {
		return err
	}
	if err := u.deleteTables(h); err != nil {
		return err
	}
	self, _ := os.Executable()
	if self == "/usr/bin/plumb" { // a package's
		self = ""
	}
	if left := existing(self, u.Backup, "/etc/plumb", "/etc/plumb.yaml", filepath.Join(u.places.DataDir, ".plumb"), "/run/cni/tuning",
		"/run/cni/ipvlan", "/run/cni/plumb*"); len(left) > 0 {
		printf(u.out, "These files remain. To remove them: rm -r %s\n", strings.Join(left, " "))
	}
	return nil
}

// closeLocalnet sets route_localnet to 0, because the tables of plumb prevent other hosts from connecting to 127.0.0.1. It keeps
// all and default, which kube-proxy and administrators may have set.
func (u *uninstallation) closeLocalnet(h *ns.Handle) error {
	c, err := nl.Open(h)
	if err != nil {
		return err
	}
	links, err := c.Links()
	for _, l := range links {
		setting := sysctl.Setting{Key: sysctl.IPv4(l.Name, "route_localnet"), Value: "0"}
		if value, _ := sysctl.Get(h, setting.Key); value != "1" {
			continue
		}
		if err := u.do("set "+setting.Key+" to 0", func() error { return sysctl.Set(h, setting) }); err != nil {
			return err
		}
	}
	return err
}

// deleteGuards deletes the rules with tables.GuardComment, which have no use after closeLocalnet. For rules in nftables, it runs no
// program.
func (u *uninstallation) deleteGuards(h *ns.Handle) error {
	const table, chain = "raw", "PREROUTING"
	guards := func(rules []iptables.Rule) []iptables.Rule {
		return iptables.Where(rules, func(r iptables.Rule) bool { return r.Chain == chain && r.Comment == tables.GuardComment })
	}
	step := fmt.Sprintf("delete the rules %q of chain %s in table %s of iptables", tables.GuardComment, chain, table)
	c, err := nft.OpenIfSupported(h)
	if err != nil {
		return err
	}
	raw := nft.Table{Family: nft.IPv4, Name: table}
	rules, legacy, err := iptables.ReadAll(h, c, raw, chain)
	if err != nil || len(guards(rules))+len(guards(legacy)) == 0 {
		return err
	}
	return u.do(step, func() error {
		return iptables.Delete(h, "delete the guards of localhost", []iptables.Cleanup{{Tables: []nft.Table{raw}, Chains: []string{chain},
			Select: func(rules []iptables.Rule) iptables.Selection { return iptables.Selection{Rules: guards(rules)} }}})
	})
}

func (u *uninstallation) deleteTables(h *ns.Handle) error {
	c, err := nft.OpenIfSupported(h)
	if c == nil || err != nil {
		return err
	}
	for _, l := range tables.All() {
		if chains, err := c.Chains(l.Table); len(chains) == 0 {
			if err := types.IgnoreNotExist(err); err != nil {
				return err
			}
			continue
		}
		if err := u.do("delete nftables table "+l.Table.String(), func() error { return c.DeleteTable(l.Table) }); err != nil {
			return err
		}
	}
	return nil
}

// existing returns the paths that match a pattern, quoted for sh.
func existing(patterns ...string) (all []string) {
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(pattern) // a bad pattern matches nothing
		for _, path := range paths {
			all = append(all, types.Command(path))
		}
	}
	return all
}
