package doctor

import (
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
)

// findIgnoredRouters finds interfaces that have addresses or the default route from router advertisements, and will lose
// them because the kernel ignores further advertisements. Without such an address or route, the host may be configured
// statically.
func (h host) findIgnoredRouters(_ []*file, add addFunc) {
	links, err := attach.LinksIgnoringRouters(h.conn)
	h.report.failed("router advertisements", err)
	uplinks, err := h.conn.AdvertisedUplinks()
	h.report.failed("routes from router advertisements", err)
	for _, l := range links {
		addrs, err := h.conn.Addrs(l)
		h.report.failed("addresses of "+l.Name, err)
		isAdvertised := func(a nl.Addr) bool {
			return a.Prefix.Addr().Is6() && !a.Prefix.Addr().IsLinkLocalUnicast() && !a.Permanent
		}
		isUplink := slices.ContainsFunc(uplinks, func(u nl.Link) bool { return u.Index == l.Index })
		i := slices.IndexFunc(addrs, isAdvertised)
		if i < 0 && !isUplink {
			continue
		}
		what := "the IPv6 default route"
		if i >= 0 {
			what = "the address " + addrs[i].Prefix.String()
		}
		setting := attach.AcceptRouters(l.Name)
		fix := withAdvice(run("sysctl", "-w", setting.Key+"="+setting.Value), "If something other than plumb enables forwarding at each start of the host, write %s = %s to a file in /etc/sysctl.d as well.", setting.Key, setting.Value)
		add(onHost, fix, "interface %s will lose %s: sysctl %s is 1, so that the kernel ignores router advertisements while the host forwards IPv6",
			l.Name, what, sysctl.IPv6(l.Name, "accept_ra"))
	}
}
