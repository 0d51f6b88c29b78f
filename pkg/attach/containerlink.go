package attach

import (
	"errors"
	"os"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A ContainerLink is an interface that exists only in the container.
type ContainerLink struct {
	Container *nl.Conn // connection to the container's namespace
	Link      nl.Link  // the interface as the kernel created it, which is down
	DAD       DADMode
	// NoCarrier means that the interface has no carrier. In that case the kernel starts duplicate address
	// detection later, and Configure does not wait for it.
	NoCarrier bool
	// NoRouter means that no router can be on the link, so that the interface ignores router advertisements.
	NoRouter bool
	// AnyGateway adds the flag onlink to each route whose gateway is not in the networks of the interface. It is
	// for interfaces that resolve no neighbors, on which the gateway does not decide where packets go.
	AnyGateway bool
	// Adopted is the configuration that the interface keeps from another namespace, or nil. Configure adds it before the
	// addresses and routes of the lease.
	Adopted *nl.LinkConfig
	Pending *ipam.Pending // nil without an IPAM plugin
}

// Begin starts the IPAM plugin, and returns an error if the container already has an interface with the name CNI_IFNAME. The
// plugin then calls Pending.AllowAllocation, creates the interface and calls Configure.
func Begin(r *skel.Request) (ContainerLink, error) {
	pending, err := ipam.Start(r)
	if err != nil {
		return ContainerLink{}, err
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return ContainerLink{}, err
	}
	return ContainerLink{Container: container, Pending: pending}, EnsureNameFree(container, r.IfName)
}

// Configure marks the interface as the attachment's by its alias, unless it has an alias, sets it up, waits for the lease,
// and adds its addresses and routes. It returns the result of ADD. Without an IPAM plugin, the interface gets no addresses.
//
// If another host uses an IPv6 address of the lease, the error has CodeDuplicate. If duplicate address detection
// does not end in time, or if the interface was deleted meanwhile, the error has types.CodeTryAgain.
func (p ContainerLink) Configure(r *skel.Request) (*types.Result, error) {
	result, err := p.configure(r)
	return result, ExplainRemoved(p.Container, p.Link, r.IfName, err)
}

func (p ContainerLink) configure(r *skel.Request) (*types.Result, error) {
	if p.Link.Alias == "" {
		if err := p.Container.SetAlias(p.Link, LinkAlias(r.Attachment())); err != nil {
			return nil, err
		}
	}
	result := &types.Result{Interfaces: []types.Interface{Interface(p.Link, r.NetNS)}, DNS: r.Conf.DNS}
	if p.Pending == nil {
		return result, p.Container.SetUp(p.Link)
	}
	if err := p.prepare(r); err != nil {
		return nil, err
	}
	if err := adopt(p.Container, p.Link, p.Adopted); err != nil {
		return nil, err
	}
	lease, err := p.Pending.Wait()
	if err != nil {
		return nil, err
	}
	if err := RefreshMTU(r, p.Container, &p.Link, &result.Interfaces[0]); err != nil {
		return nil, err
	}
	for _, ip := range lease.IPs {
		if ip.Gateway == ip.Address.Addr() {
			return nil, types.Errorf(types.CodeConfig, "address %s is its own gateway; set \"gateway\" in \"ipam\" to the address of another host on the segment", ip.Address)
		}
	}
	lease.AddTo(result, 0)
	spec := ContainerSpec(p.Link.Name, p.DAD, result.IPs, result.Routes)
	for i, route := range spec.Routes {
		spec.Routes[i].OnLink = p.AnyGateway && spec.unreachableGateway(route).IsValid()
	}
	spec.addAdopted(p.Adopted, result)
	if err := Apply(p.Container, p.Link, spec); err != nil {
		return nil, err
	}
	if p.DAD == DADOn && !p.NoCarrier && slices.ContainsFunc(result.IPs, is6) {
		if err := p.awaitDAD(r); err != nil {
			return nil, err
		}
	}
	if p.hasFixedMAC() {
		return result, nil
	}
	return result, Announce(p.Container, p.Link)
}

// hasFixedMAC reports whether the MAC cannot be set, so that Announce is impossible. Instead, the kernel announces the
// addresses that the interface has when it is set up (arp_notify, ndisc_notify).
func (p ContainerLink) hasFixedMAC() bool { return p.Link.Kind == "ipvlan" }

// RefreshMTU reads the MTU of the container's interface again, into l and i, if the IPAM plugin works over the
// interface and may therefore have set the MTU.
func RefreshMTU(r *skel.Request, container *nl.Conn, l *nl.Link, i *types.Interface) error {
	if !ipam.NeedsLink(r) {
		return nil
	}
	now, err := container.LinkByIndex(l.Index)
	l.MTU, i.MTU = now.MTU, now.MTU
	return err
}

// prepare writes the sysctls and sets the interface up. With a fixed MAC, the interface stays down until it has its
// addresses, unless the IPAM plugin works over it.
func (p ContainerLink) prepare(r *skel.Request) error {
	settings := ContainerSysctls(p.Link.Name, p.DAD)
	if p.NoRouter {
		settings = append(settings, IgnoreRouters(p.Link.Name))
	}
	if p.hasFixedMAC() && !ipam.NeedsLink(r) {
		return sysctl.Set(p.Container.NS(), settings...)
	}
	return Prepare(p.Container, p.Link, settings...)
}

// awaitDAD calls AwaitDAD, but only warns if the detection has not ended because the interface has no carrier.
func (p ContainerLink) awaitDAD(r *skel.Request) error {
	err := AwaitDAD(p.Container, p.Link)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if now, lookupErr := p.Container.LinkByIndex(p.Link.Index); lookupErr != nil || now.Carrier {
		return err
	}
	r.Warn("interface %s has no carrier; until it has a carrier, the container reaches no other host, and IPv6 addresses are not checked for duplicates", p.Link.Name)
	return nil
}

// CheckContainerLink executes CHECK for an interface that exists only in the container. It compares the
// interface with prevResult and calls CHECK of the IPAM plugin. If the interface is of the given kind, it also
// calls diff, which compares what only the plugin knows and REPAIR does not restore. diff may be nil.
func CheckContainerLink(r *skel.Request, kind string, diff func(container *nl.Conn, l nl.Link) error) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return err
	}
	waitIPAM := ipam.StartCheck(r)
	l, changed := DiffContainer(r, container, prevSpec(r, prev, kind, DADOff), nl.Link{})
	if diff != nil && l.Kind == kind {
		changed = errors.Join(changed, types.WithRepair(types.RepairNever, diff(container, l)))
	}
	return types.Coded(types.CodeChanged, errors.Join(waitIPAM(), changed))
}

// DelContainerLink executes DEL for an interface that exists only in the container. It deletes the interface, if
// the container exists, and releases the addresses.
func DelContainerLink(r *skel.Request, kind string) error {
	return ipam.DelWithLink(r, func() (wait func() error, err error) {
		if r.ContainerNS == nil {
			return noWait, nil
		}
		container, err := nl.Open(r.ContainerNS)
		if err != nil {
			return noWait, err
		}
		return deleteOwn(r, container, kind)
	})
}
