// Package install installs plugins and configurations into directories of a host in use, and restores what was there
// before. It replaces each file by a rename, so that the file is complete at any time. It does not change containers.
package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"
)

// Options are the parameters of Install and Restore.
type Options struct {
	To      string   // the directory of the plugins
	From    string   // the directory of the new plugins; empty selects the directory of plumb's own executable
	Only    []string // the names of the executables; empty selects all in From except plumb itself
	Backup  string   // the directory for the replaced files; empty for no backup
	Create  bool     // create To and ConfDir if they do not exist
	Confs   []string // the configuration files
	ConfDir string   // the directory of the configurations
	DryRun  bool     // check everything, and change nothing
	// Timeout limits the time in which a new plugin must print its version.
	Timeout time.Duration
}

// confBackup is the directory in Backup that contains the configurations.
const confBackup = "net.d"

// A Report says what was done.
type Report struct {
	Executables    []File   `json:"executables"` // this list and the others are never null
	Configurations []File   `json:"configurations"`
	Restarted      []string `json:"restarted"` // the restarted systemd units
	Advice         []string `json:"advice"`    // what the operator must do, in whole sentences
}

// A File is a file that was installed or restored.
type File struct {
	Path   string `json:"path"`
	Action Action `json:"action"`
}

// An Action is what was done with a file.
type Action string

// These are the actions.
const (
	Added     Action = "added"     // no file with this name existed
	Replaced  Action = "replaced"  // another file with this name existed
	Unchanged Action = "unchanged" // an equal file existed
	Restored  Action = "restored"  // the file in the backup replaced this file
	Stays     Action = "stays"     // an installation added the file, and a restore does not remove it
)

func (f File) changed() bool {
	return f.Action == Added || f.Action == Replaced || f.Action == Restored
}

// Install installs the plugins, and then the configurations, because a runtime reads a configuration as soon as it exists. It
// checks all of them before it replaces a file. If it fails, the report contains what was done.
func Install(ctx context.Context, o Options) (Report, error) {
	report := newReport()
	err := o.setFrom()
	if err != nil {
		return report, err
	}
	plugins, err := o.plugins(ctx)
	if err != nil {
		return report, err
	}
	report.Advice = o.skipped()
	confs, err := o.configurations()
	if err != nil {
		return report, err
	}
	if err := o.checkDirectories(); err != nil {
		return report, err
	}
	if report.Executables, err = o.pluginDirectory().install(ctx, plugins); err != nil {
		return report, err
	}
	if report.Configurations, err = o.confDirectory().install(ctx, confs); err != nil {
		return report, err
	}
	if o.DryRun {
		return report, nil
	}
	return report, report.restartDaemon(ctx)
}

// Restore restores the configurations, if ConfDir is set, and then the plugins from Backup, after it has tried all of them. Files that were added stay, because
// a container may need an added plugin for its DEL.
func Restore(ctx context.Context, o Options) (Report, error) {
	report := newReport()
	if err := o.checkDirectories(); err != nil {
		return report, err
	}
	if err := requireBackup(o); err != nil {
		return report, err
	}
	if err := o.tryBackup(ctx); err != nil {
		return report, err
	}
	var err error
	if o.ConfDir != "" {
		if report.Configurations, err = o.confDirectory().restore(ctx); err != nil {
			return report, err
		}
	}
	if report.Executables, err = o.pluginDirectory().restore(ctx); err != nil {
		return report, err
	}
	report.Advice = append(report.Advice, closeLocalnet)
	if o.DryRun {
		return report, nil
	}
	return report, report.restartDaemon(ctx)
}

// closeLocalnet is the advice for the removal of plumb's nftables tables, which guard 127/8.
const closeLocalnet = "Before you delete the nftables tables of plumb, run this, so that no other host can connect to 127.0.0.1. " +
	"Host ports of containers that the restored plugins attached then no longer answer there, until you set the value of their bridge to 1: " +
	"for f in /proc/sys/net/ipv4/conf/*/route_localnet; do case $f in */all/*|*/default/*) ;; *) echo 0 >$f;; esac; done"

func newReport() Report {
	return Report{Executables: []File{}, Configurations: []File{}, Restarted: []string{}, Advice: []string{}}
}

func (o Options) pluginDirectory() directory { return directory{o.To, o.Backup, o.DryRun} }

func (o Options) confDirectory() directory {
	if o.Backup == "" {
		return directory{o.ConfDir, "", o.DryRun}
	}
	return directory{o.ConfDir, filepath.Join(o.Backup, confBackup), o.DryRun}
}

// requireBackup returns an error if the backup is empty or does not exist.
func requireBackup(o Options) error {
	if _, err := os.Stat(o.Backup); errors.Is(err, os.ErrNotExist) {
		return argumentError("no directory %s; name the directory of the backup with --restore", o.Backup)
	}
	for _, f := range []directory{o.pluginDirectory(), o.confDirectory()} {
		files, added, err := f.backedUp()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if len(files)+len(added) > 0 {
			return nil
		}
	}
	return errors.New("no executables to restore in " + o.Backup)
}
