package main

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// A place is where an attachment is shaped: on the host end of its veth pair, which
// sends what the container receives, or, where the node has no end, on the container's
// interface itself. What the device sends is shaped on the device, what it receives
// on an ifb that it is redirected to.
type place struct {
	conn    *nl.Conn
	dev     nl.Link
	sandbox string // netns path of the container; empty: on the node
	owner   types.Attachment
	conf    *config
}

// locate finds the place. It trusts the kernel more than prevResult: some plugins do
// not list the host end.
func locate(r *skel.Request, conf *config) (place, error) {
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return place{}, err
	}
	p := place{conn: pod, sandbox: r.NetNS, owner: r.Attachment(), conf: conf}
	p.dev, err = pod.Link(r.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return place{}, types.Errorf(types.CodeConfig, "no interface %q in container: bandwidth has to come after the plugin that makes it: %w", r.IfName, err)
	}
	if err != nil || p.dev.Kind != "veth" {
		return p, err
	}
	host, err := p.conn.VethPeer(p.dev, node)
	if errors.Is(err, fs.ErrNotExist) {
		return place{}, types.Errorf(types.CodeConfig, "no veth peer of container interface %s found in host ns: what is to be shaped has its other end elsewhere", r.IfName)
	}
	p.conn, p.dev, p.sandbox = node, host, ""
	return p, err
}

// sent shapes what the device sends, received what it receives, on the ifb.
func (p place) sent() shaper {
	if p.sandbox == "" {
		return p.ingress(p.dev)
	}
	return p.egress(p.dev)
}

func (p place) received(ifb nl.Link) shaper {
	if p.sandbox == "" {
		return p.egress(ifb)
	}
	return p.ingress(ifb)
}

func (p place) ingress(dev nl.Link) shaper { return p.shaper(dev, p.conf.ingress, source) }
func (p place) egress(dev nl.Link) shaper  { return p.shaper(dev, p.conf.egress, destination) }

func (p place) shaper(dev nl.Link, l limit, remote side) shaper {
	return shaper{dev: dev, rate: l.rate / 8, burst: l.burst / 8, latency: p.conf.latency, traffic: p.conf.traffic, remote: remote}
}

// ifbNames are the names that the ifb of an attachment may have: the reference
// plugin's, and, where that is taken by the container's other interface in the
// network (the reference's digits do not tell them apart), one of the attachment's
// own. The alias says whose an ifb is.
func ifbNames(a types.Attachment) []string {
	return []string{ifbName(a.Network + a.ContainerID), ifbName(a.String())}
}

func ifbName(identity string) string {
	sum := sha512.Sum512([]byte(identity))
	return "bwp" + hex.EncodeToString(sum[:6])
}

const kindIFB = "ifb"

// addIFB makes the attachment's ifb, down yet, and pushes its removal. It has no business
// with IPv6: it would ask its neighbours for routers.
func (p place) addIFB(u *undo.Stack) (nl.Link, error) {
	var ifb nl.Link
	var err error
	for _, name := range ifbNames(p.owner) {
		ifb, err = p.conn.AddIFB(u, nl.IFB{Name: name, MTU: p.dev.MTU, Group: attach.Group(p.owner.Network)})
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		err = shapedAlready(name, err)
	}
	if err != nil {
		return nl.Link{}, err
	}
	quiet := sysctl.Setting{Key: sysctl.IPv6(ifb.Name, "disable_ipv6"), Value: "1", Optional: true}
	return ifb, sysctl.Set(p.conn.NS(), quiet)
}

func addQdisc(c *nl.Conn, u *undo.Stack, l nl.Link, q nl.Qdisc) error {
	err := c.AddQdisc(u, l, q)
	if errors.Is(err, fs.ErrExist) {
		return shapedAlready(l.Name, err)
	}
	return err
}

func shapedAlready(name string, err error) error {
	return types.Errorf(types.CodeConfig, "interface %s shapes already: an earlier ADD was not followed by a DEL, or another program put a qdisc there: %w", name, err)
}

// ingressQdisc and redirect send what the device receives through the ifb.
func ingressQdisc() nl.Qdisc {
	return nl.Qdisc{Kind: "ingress", Handle: nl.IngressHandle, Parent: nl.Ingress}
}

func redirect(to nl.Link) nl.Filter {
	return nl.Filter{
		Parent: nl.IngressHandle, Priority: redirectPriority, Protocol: nl.ProtocolAll,
		Class: rootHandle.Class(1), Redirect: to.Index,
	}
}

// ifbs finds the ifbs of an attachment: those with its alias, or, where there are
// none, one that the reference plugin made, without an alias.
func ifbs(c *nl.Conn, owner types.Attachment) ([]nl.Link, error) {
	var ours, unnamed []nl.Link
	for _, name := range ifbNames(owner) {
		l, err := c.Link(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case l.Kind == kindIFB && l.Alias == attach.Alias(owner):
			ours = append(ours, l)
		case l.Kind == kindIFB && l.Alias == "":
			unnamed = append(unnamed, l)
		}
	}
	if len(ours) == 0 {
		return unnamed, nil
	}
	return ours, nil
}

// unshape removes what a place of ours, or the reference plugin, put on the device.
func unshape(c *nl.Conn, dev nl.Link) error {
	return errors.Join(unshapeSent(c, dev), unshapeReceived(c, dev))
}

func unshapeSent(c *nl.Conn, dev nl.Link) error {
	q, err := c.Qdisc(dev, nl.Root)
	if err != nil {
		return ignoreNotExist(err)
	}
	if q.Handle != rootHandle || !slices.Contains([]string{kindTBF, kindHTB}, q.Kind) {
		return nil
	}
	return c.DelQdisc(dev, q)
}

// unshapeReceived leaves an ingress qdisc alone that has filters of somebody else.
func unshapeReceived(c *nl.Conn, dev nl.Link) error {
	q, err := c.Qdisc(dev, nl.Ingress)
	if err != nil || q != ingressQdisc() {
		return ignoreNotExist(err)
	}
	filters, err := c.Filters(dev, q.Handle)
	if err != nil {
		return ignoreNotExist(err)
	}
	for _, f := range filters {
		if !f.Same(redirect(nl.Link{Index: f.Redirect})) {
			return nil
		}
	}
	return c.DelQdisc(dev, q)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// missing explains a CHECK that found nothing where something has to be.
func missing(name, what string) error { return fmt.Errorf("interface %s has no %s", name, what) }
