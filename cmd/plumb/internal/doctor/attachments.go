package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
)

// findNoNetworks finds networks that have attachments but no configuration, without which no runtime can call DEL. It
// finds nothing if a file cannot be parsed, because that may be the file of any network.
func findNoNetworks(e *examination) (found []Finding) {
	if len(e.parsed()) < len(e.files) {
		return nil
	}
	for _, n := range e.inventory.Networks {
		if n.List() != nil || e.fileOfNetwork(n.Name) != nil {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(e.inventory.Attachments), func(a *node.Attachment) bool {
			return a.Network != n.Name || a.Incomplete || e.leftover[a] || addMayRun(a)
		})
		if len(left) > 0 {
			found = append(found, Finding{Where: whereNode,
				What: fmt.Sprintf("network %s has no configuration, and the node holds things for it: %s: no runtime can call DEL", n.Name, names(left)),
				Mend: fmt.Sprintf("%sif a container is gone, plumb gc --live FILE%s prints the commands that remove its things", edit, e.Flags)})
		}
	}
	return found
}

// findDamaged calls CHECK for each attachment, with the configuration and the result of its ADD. It leaves out the
// attachments and networks for which an earlier check has a finding that explains an error of CHECK.
func findDamaged(e *examination) (found []Finding) {
	damaged := map[string][]*node.Attachment{} // by the text of the error
	mends := map[string][]string{}             // by the text of the error
	var texts []string                         // the keys of damaged, in their order
	hanging := map[string]bool{}               // the networks in which a CHECK did not end in time
	for _, a := range e.liveAttachments() {
		if f := e.fileOfNetwork(a.Network); e.explained[a] || hanging[a.Network] || f != nil && e.broken[f] {
			continue
		}
		err := e.check(a)
		hanging[a.Network] = errors.Is(err, errNoAnswer)
		if _, statErr := os.Stat(resultPath(a)); err == nil || statErr != nil { // without a result, DEL has been called meanwhile
			continue
		}
		text := fmt.Sprintf("network %s: CHECK fails: %s", a.Network, errorText(err))
		if damaged[text] == nil {
			texts = append(texts, text)
		}
		damaged[text] = append(damaged[text], a)
		if how := mend(a, err); !slices.Contains(mends[text], how) {
			mends[text] = append(mends[text], how)
		}
	}
	for _, text := range texts {
		found = append(found, Finding{Where: whereNode, What: names(damaged[text]) + ", " + text, Mend: strings.Join(mends[text], " && ")})
	}
	return found
}

// names returns the containers and interfaces of attachments.
func names(all []*node.Attachment) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, fmt.Sprintf("container %s, interface %s", a.ContainerID, a.IfName))
	}
	return strings.Join(texts, "; ")
}

// check calls CHECK of the plugins of plumb in the attachment's chain, and leaves out other plugins. Some of these fail
// although nothing is wrong: the reference plugin portmap fails for containers with IPv4 only.
func (e *examination) check(a *node.Attachment) error {
	list, runtime := a.Added()
	if list == nil || !slices.Contains(versionsWithCheck(), list.CNIVersion) {
		return nil
	}
	ours := *list
	ours.Plugins = slices.DeleteFunc(slices.Clone(list.Plugins), func(p *libcni.PluginConfig) bool {
		return e.executable(p.Network.Type).version == ""
	})
	return libcni.NewCNIConfig(e.PluginPath, e.caller()).CheckNetworkList(e.ctx, &ours, runtime)
}

// versionsWithCheck returns the versions of the specification that have CHECK.
func versionsWithCheck() []string { return []string{"0.4.0", "1.0.0", "1.1.0"} }

// errorText returns the code and the text of a plugin's error.
func errorText(err error) string {
	var coded *cnitypes.Error
	if errors.As(err, &coded) {
		return fmt.Sprintf("code %d: %s", coded.Code, checkText(err))
	}
	return err.Error()
}
