package repair

import (
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
)

// acceptRouters lets the host accept router advertisements on interfaces that were added after the last ADD, as the next
// ADD would do. CHECK does not report these interfaces, because no attachment needs them.
func (r *Report) acceptRouters(dryRun bool) error {
	h, err := ns.Self(nil)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	host, err := nl.Open(h)
	if err != nil {
		return err
	}
	links, err := attach.LinksIgnoringRouters(host)
	for _, l := range links {
		setting := attach.AcceptRouters(l.Name)
		setting.Optional = false
		e := Entry{IfName: l.Name, What: fmt.Sprintf("sysctl %s is 1, so that the kernel ignores router advertisements while the host forwards IPv6", setting.Key)}
		if dryRun {
			r.Damaged = append(r.Damaged, e)
			continue
		}
		if err := sysctl.Set(h, setting); err != nil {
			e.Error, e.Fix = err.Error(), "sysctl -w "+setting.Key+"="+setting.Value
			r.Left = append(r.Left, e)
			continue
		}
		r.Repaired = append(r.Repaired, e)
	}
	return err
}
