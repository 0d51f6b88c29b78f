package invoke

import (
	"io/fs"
	"os"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

// Find returns the path of a plugin: the first regular file of that name in the folders of
// path. The folders are separated by colons, as in CNI_PATH. Find follows symbolic links. Its
// errors have types.CodeConfig. If no folder has such a file, the error matches fs.ErrNotExist.
func Find(name, path string) (string, error) {
	switch {
	case name == "":
		return "", types.Errorf(types.CodeConfig, "no plugin name provided")
	case name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00"):
		return "", types.Errorf(types.CodeConfig, "invalid plugin name %q: want the name of a file in CNI_PATH, without a folder", name)
	}
	var folders []string
	for folder := range strings.SplitSeq(path, ":") {
		if folder == "" {
			continue
		}
		// path.Join would shorten "./x" to "x", which exec looks up in PATH.
		file := folder + "/" + name
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
		folders = append(folders, folder)
	}
	return "", types.Errorf(types.CodeConfig, "failed to find plugin %q in path %s: %w", name, folders, fs.ErrNotExist)
}
