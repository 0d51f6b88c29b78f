// Package credentials writes a kubeconfig file with the service account token of a pod, for programs on the node that run
// outside of the pod, such as cluster-local-kubernetes.
package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/renameio/v2"
)

// A Writer copies credentials from a projected volume.
type Writer struct {
	From   string // the directory of the volume, with the files token and ca.crt
	File   string // the kubeconfig file to write
	Server string // the URL of the API server
	// Every is how often Follow writes the file again if its content has changed. During a rolling update, the former pod can
	// replace it with its own token, which is valid only until that pod has been deleted.
	Every time.Duration
}

// ServerFromEnvironment returns the URL of the API server that Kubernetes sets in the environment of each container, or
// "".
func ServerFromEnvironment() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return "https://" + net.JoinHostPort(host, port)
}

// Follow writes the file, and writes it again whenever the kubelet has replaced the content of the volume, and every w.Every if
// the file does not have this content, until ctx is done. It calls written after each write. It does not remove the file, because the next pod of a rolling update may have written it.
func (w Writer) Follow(ctx context.Context, written func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(w.From); err != nil {
		return fmt.Errorf("watch %s: %w", w.From, err)
	}
	ticker := time.NewTicker(w.Every)
	defer ticker.Stop()
	for {
		changed, err := w.write()
		if err != nil {
			return err
		}
		if changed {
			written()
		}
		select {
		case <-watcher.Events:
		case <-ticker.C:
		case err := <-watcher.Errors:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// write writes the file if its content would change, and reports whether it has.
func (w Writer) write() (changed bool, err error) {
	token, ca, err := w.read()
	if err != nil {
		return false, err
	}
	text, err := w.kubeconfig(strings.TrimSpace(string(token)), ca)
	if err != nil {
		return false, err
	}
	if old, err := os.ReadFile(w.File); err == nil && bytes.Equal(old, text) {
		return false, nil
	}
	// The file contains the token, so that a reader never finds the token of one renewal with the CA of another.
	// renameio.WriteFile would keep the mode of the file that it replaces. The temporary file is in the directory of the
	// file, so that it gets the security label of files there.
	file, err := renameio.NewPendingFile(w.File, renameio.WithTempDir(filepath.Dir(w.File)), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Cleanup() }() // does nothing after the rename
	if _, err := file.Write(text); err != nil {
		return false, err
	}
	return true, file.CloseAtomicallyReplace()
}

// read reads the token and the CA from the same version of the volume. The kubelet replaces the link ..data and then deletes
// the directory to which it pointed.
func (w Writer) read() (token, ca []byte, err error) {
	for range 10 {
		dir := w.From
		if target, linkErr := os.Readlink(filepath.Join(w.From, "..data")); linkErr == nil {
			dir = filepath.Join(w.From, target)
		}
		token, err = os.ReadFile(filepath.Join(dir, "token"))
		if err == nil {
			ca, err = os.ReadFile(filepath.Join(dir, "ca.crt"))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return token, ca, err
}

// kubeconfig returns the content of the file, as JSON, which is also YAML.
func (w Writer) kubeconfig(token string, ca []byte) ([]byte, error) {
	type object = map[string]any
	const name = "plumb"
	text, err := json.MarshalIndent(object{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"contexts": []object{{"name": name, "context": object{"cluster": name, "user": name}}},
		"clusters": []object{{"name": name, "cluster": object{"server": w.Server, "certificate-authority-data": ca}}},
		"users":    []object{{"name": name, "user": object{"token": token}}},
	}, "", "  ")
	return append(text, '\n'), err
}
