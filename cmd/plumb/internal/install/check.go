package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// tool is the name of the operator's tool. A release contains it in the directory of the plugins.
const tool = "plumb"

// If From is empty, setFrom sets it to the directory of plumb's own executable. It returns an error if that directory,
// for example /usr/local/bin, does not contain the plugins.
func (o *Options) setFrom() error {
	if o.From != "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the plugins: %w", err)
	}
	o.From = filepath.Dir(self)
	if _, err := os.Stat(filepath.Join(o.From, "loopback")); err != nil {
		return fmt.Errorf("no plugins in %s, the directory of plumb; name their directory with --from", o.From)
	}
	return nil
}

// plugins returns the executables to install, after it has run each of them.
func (o Options) plugins(ctx context.Context) ([]source, error) {
	names, err := o.names()
	if err != nil {
		return nil, err
	}
	var all []source
	for _, name := range names {
		path := filepath.Join(o.From, name)
		err := o.run(ctx, path)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w; nothing was replaced", context.Cause(ctx))
		}
		if err != nil {
			return nil, fmt.Errorf("%s does not run on this machine (%s): %w; nothing was replaced", path, runtime.GOARCH, err)
		}
		all = append(all, source{path: path, name: name, mode: 0o755})
	}
	return all, nil
}

func (o Options) names() ([]string, error) {
	names, err := executables(o.From)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, argumentError("no directory %s; name the directory of the new plugins with --from", o.From)
	case err != nil:
		return nil, err
	}
	plugins := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == tool })
	for _, name := range o.Only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--only %[2]s: no such executable in %[1]s, which contains %[3]s", o.From, name, strings.Join(plugins, ", "))
		}
	}
	if len(o.Only) > 0 {
		return slices.Compact(slices.Sorted(slices.Values(o.Only))), nil
	}
	if len(plugins) == 0 {
		return nil, fmt.Errorf("no executables in %s", o.From)
	}
	return plugins, nil
}

// executables returns the sorted names of the executables in a directory, including symbolic links to executables. A release
// also contains text files.
func executables(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o100 != 0 && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// skipped returns an advice for each plugin in From that is not installed, because its file is not executable.
func (o Options) skipped() []string {
	advice := []string{}
	for _, name := range schema.Names() {
		path := filepath.Join(o.From, name)
		if info, err := os.Stat(path); len(o.Only) == 0 && err == nil && info.Mode().IsRegular() && info.Mode()&0o100 == 0 {
			advice = append(advice, fmt.Sprintf("%s was skipped, because it is not executable. To install it, run this and install again: %s",
				path, types.Command("chmod", "0755", path)))
		}
	}
	return advice
}

// run runs the executable without CNI variables, which makes a plugin print its version. It fails if the executable is
// for another architecture.
func (o Options) run(ctx context.Context, path string) error {
	stdout, stderr, err := plugins.NewCaller(nil, o.Timeout).Run(ctx, path, nil, []string{})
	if text := bytes.TrimSpace(append(stdout, stderr...)); err != nil && len(text) > 0 {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// tryBackup returns an error if the backup contains a file that is not an executable for this machine, or a configuration that
// libcni cannot parse. It does not try symbolic links, because their targets are not in the backup.
func (o Options) tryBackup(ctx context.Context) error {
	try := func(f directory, check func(path string) error) error {
		names, _, err := f.backedUp()
		if err != nil {
			return types.IgnoreNotExist(err)
		}
		for _, name := range names {
			path := filepath.Join(f.backup, name)
			if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSymlink {
				continue
			}
			if err := check(path); err != nil {
				return fmt.Errorf("%s: %w; nothing was restored; remove the file from the backup to restore the others", path, err)
			}
		}
		return nil
	}
	err := try(o.pluginDirectory(), func(path string) error {
		// Plugins of other projects need not print their version, and may fail without CNI variables. ErrNotExist means
		// that the interpreter of a script or of a dynamically linked program is missing, for example in a container.
		var exit *exec.ExitError
		err := o.run(ctx, path)
		if err != nil && !(errors.As(err, &exit) && exit.Exited()) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("does not run on this machine (%s): %w", runtime.GOARCH, err)
		}
		return nil
	})
	if err != nil || o.ConfDir == "" {
		return err
	}
	return try(o.confDirectory(), func(path string) error {
		content, err := node.ReadFile(path)
		if err != nil {
			return err
		}
		return checkConf(path, content)
	})
}

// configurations returns the configurations to install, after it has parsed each of them like a runtime.
func (o Options) configurations() ([]source, error) {
	var all []source
	for _, path := range o.Confs {
		content, err := node.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := checkConf(path, content); err != nil {
			return nil, fmt.Errorf("configuration %s: %w; nothing was replaced", path, err)
		}
		real, err := filepath.EvalSymlinks(path) // the files of a ConfigMap are symbolic links
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(real)
		if err != nil {
			return nil, err
		}
		all = append(all, source{path: real, name: filepath.Base(path), mode: info.Mode().Perm()})
	}
	return all, nil
}

// checkConf returns an error if libcni cannot parse the configuration, or ignores files with this extension.
func checkConf(path string, content []byte) (err error) {
	switch filepath.Ext(path) {
	case ".conflist":
		_, err = libcni.NetworkConfFromBytes(content)
	case ".conf", ".json":
		_, err = libcni.NetworkPluginConfFromBytes(content)
	default:
		err = errors.New("runtimes read only files *.conflist, *.conf and *.json")
	}
	return err
}

// An ArgumentError is the error for a directory that an argument names.
type ArgumentError struct{ error }

func argumentError(format string, args ...any) error {
	return ArgumentError{fmt.Errorf(format, args...)}
}

// checkDirectories returns an error if a target directory does not exist, or if the backup is one of the other directories.
// With Create, it creates the target directories.
func (o Options) checkDirectories() error {
	dirs := []string{o.To}
	if o.ConfDir != "" {
		dirs = append(dirs, o.ConfDir)
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && o.Create && o.DryRun:
			err = nil
		case errors.Is(err, fs.ErrNotExist) && o.Create:
			err = os.MkdirAll(dir, 0o755)
		case errors.Is(err, fs.ErrNotExist):
			err = argumentError("no directory %s; --create creates it", dir)
		case err == nil && !info.IsDir():
			err = argumentError("%s is not a directory", dir)
		}
		if err != nil {
			return err
		}
	}
	backup, err := os.Stat(o.Backup)
	if err != nil {
		return nil // install will create it, or there is no backup
	}
	for _, dir := range append(dirs, o.From) {
		if info, err := os.Stat(dir); err == nil && os.SameFile(info, backup) {
			return argumentError("--backup must not be %s; name another directory", dir)
		}
	}
	return nil
}
