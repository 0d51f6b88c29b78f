package invoke

import (
	"io/fs"
	"os"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Find returns the path of a plugin, which is the first regular file with its name in the directories of path. The
// directories are separated by colons, as in CNI_PATH. Find follows symbolic links. Its errors have types.CodeConfig.
// If no directory contains such a file, the error matches fs.ErrNotExist.
func Find(name, path string) (string, error) {
	switch {
	case name == "":
		return "", types.Errorf(types.CodeConfig, "no plugin name provided")
	case name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00"):
		return "", types.Errorf(types.CodeConfig, "invalid plugin name %q: want the name of a file in CNI_PATH, without a directory", name)
	}
	var directories []string
	for directory := range strings.SplitSeq(path, ":") {
		if directory == "" {
			continue
		}
		// path.Join would shorten "./x" to "x", which exec looks up in PATH.
		file := directory + "/" + name
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
		directories = append(directories, directory)
	}
	return "", types.Errorf(types.CodeConfig, "failed to find plugin %q in path %s: %w", name, directories, fs.ErrNotExist)
}
