package doctor

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// networkdLinks is the directory in which systemd-networkd writes a file for each link (sd-network(3)). Its name is the link's index.
const networkdLinks = "/run/systemd/netif/links"

// unmanaged is the file that keeps systemd-networkd away from host ends. networkd uses the first file that matches a link, in the
// order of their names in all directories.
const unmanaged = "/etc/systemd/network/00-cni.network"

// findNetworkd finds .network files of systemd-networkd that match host ends of containers on a bridge. networkd removes such a
// link from its bridge when it starts, because the file names no bridge.
func (h host) findNetworkd(files []*file, add addFunc) {
	if !slices.ContainsFunc(pluginsOf(files), func(p plugin) bool { return p.Type == "bridge" }) {
		return
	}
	matched := map[string][]string{} // from each .network file to the host ends
	for _, l := range h.links {
		if attach.CreatedByPlumb(l) && l.Kind == "veth" {
			if file := h.networkFile(l.Index); file != "" {
				matched[file] = append(matched[file], l.Name)
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(matched)) {
		fix := say("Exclude them in [Match] of %s, with Name=!veth*. Then run: networkctl reload && plumb repair", file)
		if filepath.Base(file) > filepath.Base(unmanaged) {
			fix = withAdvice(plugins.Solution{Fix: `printf '[Match]\nName=veth*\n[Link]\nUnmanaged=yes\n' >` + unmanaged + " && networkctl reload"},
				"Then run: plumb repair")
		}
		add(onHost, fix, "systemd-networkd manages host ends of containers (%d, such as %s), because %s matches them, and removes them from their bridge when it starts",
			len(matched[file]), matched[file][0], file)
	}
}

// networkFile returns the .network file with which systemd-networkd manages a link, or "".
func (h host) networkFile(index int) (file string) {
	text, err := os.ReadFile(filepath.Join(networkdLinks, strconv.Itoa(index)))
	h.report.failed("systemd-networkd", types.IgnoreNotExist(err))
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch {
		case key == "ADMIN_STATE" && value == "unmanaged":
			return ""
		case key == "NETWORK_FILE":
			file = value
		}
	}
	return file
}
