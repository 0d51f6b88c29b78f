package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	runDir  = "/run"
	userRun = "/run/user"
)

// InRun returns where this process keeps the file or directory that root keeps at path, which is below /run: at path if this
// process can write there, or else at the same place below /run/user/UID. UID is the user ID outside of the user namespace,
// because root of a rootless container engine is another user outside. If neither can be written, InRun returns "". A path
// that is not below /run stays the same.
//
// A directory that the process owns but cannot write counts as if it could be written, so that the error is reported.
func InRun(path string) string {
	if canWrite(path) || !isBelow(path, runDir) || isBelow(path, userRun) {
		return path
	}
	uid, ok := outerUID()
	if _, err := os.Stat(userRun); err != nil || !ok {
		return ""
	}
	path = filepath.Join(userRun, strconv.FormatUint(uid, 10), strings.TrimPrefix(path, runDir))
	if !canWrite(path) {
		return ""
	}
	return path
}

// NotWritable returns a text for a warning about a path for which InRun returned "".
func NotWritable(path string) string {
	return fmt.Sprintf("neither %s nor the same place below /run/user/UID can be written", path)
}

// canWrite reports whether the process can write the file or directory at path or, if it does not exist, its nearest parent
// directory. It reports true if this cannot be known, because the error of the write says more.
func canWrite(path string) bool {
	err := unix.Access(path, unix.W_OK)
	for errors.Is(err, fs.ErrNotExist) && path != "/" {
		path = filepath.Dir(path)
		err = unix.Access(path, unix.W_OK|unix.X_OK)
	}
	switch {
	case errors.Is(err, unix.EACCES):
		return isOwn(path)
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EPERM):
		return false
	}
	return true
}

// isOwn reports whether the process owns the file at path, or its nearest parent directory that it can see.
func isOwn(path string) bool {
	var st unix.Stat_t
	for unix.Stat(path, &st) != nil && path != "/" {
		path = filepath.Dir(path)
	}
	return int(st.Uid) == os.Geteuid()
}

// outerUID returns the user ID of the process in the parent of its user namespace (user_namespaces(7)).
func outerUID() (uid uint64, ok bool) {
	text, err := Read("/proc/self/uid_map", 0)
	if err != nil {
		return 0, false
	}
	own := uint64(os.Geteuid())
	for line := range strings.Lines(string(text)) {
		var inside, outside, length uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &length); err == nil && own >= inside && own-inside < length {
			return outside + own - inside, true
		}
	}
	return 0, false
}
