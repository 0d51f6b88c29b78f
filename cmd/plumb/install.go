package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/credentials"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/install"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// installFlags holds the flags of plumb install.
type installFlags struct {
	install.Options
	restore string
	wait    bool
	writer  credentials.Writer
	format  *format
}

func newInstall() *cobra.Command {
	var f installFlags
	c := &cobra.Command{
		Use: "install --to DIR [--backup DIR]",
		Example: `  plumb install --to /opt/cni/bin --create --backup /opt/cni/before-plumb
  plumb install --to /opt/cni/bin --restore /opt/cni/before-plumb`,
		Short: "Install the plugins into a directory in use, or restore what was there before",
		Long: `install copies the plugins into a directory of a host in use. It replaces each executable in one step, so that a
runtime never finds an incomplete one. It keeps files with other names, and does not change containers. It replaces
nothing if one of the new plugins does not run on this machine. If it replaces dhcp and systemd runs the daemon,
cni-dhcp.service or plumb-dhcp.service, install restarts the daemon.

--restore replaces the plugins with the files in the backup. It keeps plugins that were added, because a container
may need them for its DEL, and prints the command that removes them.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	flags := c.Flags()
	flags.StringVar(&f.To, "to", "", "the `directory` of the plugins, usually /opt/cni/bin")
	flags.StringVar(&f.From, "from", "", "the `directory` of the new plugins (default: the directory of plumb)")
	flags.StringSliceVar(&f.Only, "only", nil, "the `names` of the executables to install (default: all plugins and datastores)")
	flags.StringVar(&f.Backup, "backup", "", "copy each file to this `directory` before it is replaced; files that the directory already contains are kept")
	flags.StringVar(&f.restore, "restore", "", "restore the files in this backup `directory`")
	flags.BoolVar(&f.DryRun, "dry-run", false, "check everything, show what would be installed or restored, and change nothing")
	flags.BoolVar(&f.Create, "create", false, "create the directories if they do not exist")
	flags.StringArrayVar(&f.Confs, "conf", nil, "a `file` to install into --conf-dir after the plugins; may be repeated")
	flags.StringVar(&f.ConfDir, "conf-dir", "", "the `directory` of the configurations, usually /etc/cni/net.d")
	flags.DurationVar(&f.Timeout, "timeout", 10*time.Second, "how long one of the new plugins may take to print its version")
	flags.BoolVar(&f.wait, "wait", false, "wait for SIGTERM first; without other flags, do nothing else")
	flags.StringVar(&f.writer.File, "kubeconfig", "", "while waiting, keep this `file` up to date with the credentials of the pod, for cluster-local-kubernetes; needs --wait")
	flags.StringVar(&f.writer.From, "credentials", "/var/run/secrets/plumb", "the `directory` of the pod's projected volume, with token and ca.crt")
	flags.StringVar(&f.writer.Server, "server", credentials.ServerFromEnvironment(), "the `URL` of the API server for --kubeconfig")
	f.format = addOutput(flags)
	return c
}

// check returns an error if the flags contradict each other.
func (f *installFlags) check() error {
	switch {
	case f.To == "" && !f.wait:
		return usageError{errors.New("--to is required; usually it is /opt/cni/bin")}
	case f.writer.File != "" && (!f.wait || f.To != ""):
		return usageError{errors.New("--kubeconfig needs --wait, and cannot be combined with --to")}
	case f.writer.File != "" && f.writer.Server == "":
		return usageError{errors.New("--kubeconfig needs --server outside of a pod")}
	case f.restore != "" && (f.From != "" || f.Backup != "" || len(f.Only)+len(f.Confs) > 0):
		return usageError{errors.New("--restore restores all files of the backup; leave out --from, --only, --backup and --conf")}
	case len(f.Confs) > 0 && f.ConfDir == "":
		return usageError{errors.New("--conf needs --conf-dir, usually /etc/cni/net.d")}
	}
	return nil
}

// run installs or restores, and prints the report even if only a part was done.
func (f *installFlags) run(c *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	ctx, out := untilSignal(c.Context()), c.OutOrStdout()
	if f.writer.File != "" {
		f.writer.Every = time.Minute
		return f.writer.Follow(ctx, func() { c.PrintErrln("plumb: wrote", f.writer.File) })
	}
	if f.wait {
		c.PrintErrln("plumb: waiting for SIGTERM")
		<-ctx.Done()
		ctx = context.WithoutCancel(ctx)
		if f.To == "" {
			return nil
		}
	}
	do := install.Install
	if f.restore != "" {
		f.Backup, do = f.restore, install.Restore
	}
	report, err := do(ctx, f.Options)
	if err == nil && f.restore == "" {
		report.Advice = append(report.Advice, f.advice(ctx)...)
	}
	if errors.As(err, new(install.ArgumentError)) {
		err = usageError{err}
	}
	text := func(out io.Writer) error { return f.print(out, report, err == nil) }
	return errors.Join(err, f.format.print(out, report, text))
}

// advice returns advice about runtimes that do not execute plugins from --to, and about rules of iptables that exempt from the
// reference plugins' masquerade, but not from plumb's.
func (f *installFlags) advice(ctx context.Context) (advice []string) {
	p := newPlaces(pflag.NewFlagSet("", pflag.ContinueOnError))
	if err := p.find(ctx); err != nil {
		advice = append(advice, fmt.Sprintf("The runtimes were not looked for: %v.", err))
	}
	for _, r := range p.runtimes {
		if !slices.ContainsFunc(r.PluginDirs, func(dir string) bool { return node.SameFile(dir, f.To) }) {
			advice = append(advice, fmt.Sprintf("%s executes plugins from %s, and not from %s. Install them there, or change its configuration, and restart it.",
				r, strings.Join(r.PluginDirs, ", "), f.To))
		}
	}
	if f.ConfDir != "" {
		p.ConfDirs = []string{f.ConfDir}
	}
	found, err := doctor.MasqueradeExemptions(p.ConfDirs)
	for _, e := range found {
		advice = append(advice, fmt.Sprintf("%s: %s. Edit %s. %s", e.Where, e.What, e.Edit, e.Advice))
	}
	if err != nil {
		advice = append(advice, fmt.Sprintf("Rules of iptables that exempt from masquerading were not looked for: %v.", err))
	}
	return advice
}

func (f *installFlags) print(out io.Writer, report install.Report, complete bool) error {
	var b strings.Builder
	participle := "installed"
	if f.restore != "" {
		participle = "restored"
	}
	if f.DryRun {
		participle = "that would be " + participle
	}
	var stays []string
	for _, list := range []struct {
		what, dir string
		files     []install.File
	}{{"Executables", f.To, report.Executables}, {"Configurations", f.ConfDir, report.Configurations}} {
		for _, file := range list.files {
			printf(&b, "  %-24s %s\n", filepath.Base(file.Path), file.Action)
			if file.Action == install.Stays {
				stays = append(stays, types.Command(file.Path))
			}
		}
		if complete && list.dir != "" {
			unchanged := countFiles(list.files, install.Unchanged)
			printf(&b, "%s %s in %s: %d", list.what, participle, list.dir, len(list.files)-unchanged-countFiles(list.files, install.Stays))
			if unchanged > 0 {
				printf(&b, ", unchanged: %d", unchanged)
			}
			printf(&b, "\n")
		}
	}
	for _, unit := range report.Restarted {
		printf(&b, "Restarted: %s\n", unit)
	}
	for _, advice := range report.Advice {
		printf(&b, "%s\n", advice)
	}
	if len(stays) > 0 {
		printf(&b, "Files that were added stay, because a container may need them for its DEL. To remove them later: rm %s\n", strings.Join(stays, " "))
	}
	if complete && !f.DryRun && f.Backup != "" && countFiles(report.Executables, install.Replaced)+countFiles(report.Configurations, install.Replaced) > 0 {
		printf(&b, "To restore what was replaced: %s\n", f.restoreCommand())
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (f *installFlags) restoreCommand() string {
	words := []string{"plumb", "install", "--to", f.To, "--restore", f.Backup}
	if f.ConfDir != "" {
		words = append(words, "--conf-dir", f.ConfDir)
	}
	return types.Command(words...)
}

func countFiles(files []install.File, action install.Action) (n int) {
	for _, file := range files {
		if file.Action == action {
			n++
		}
	}
	return n
}
