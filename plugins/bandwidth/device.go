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

// A device is the link on which an attachment is shaped: the host end of its veth pair,
// which sends what the container receives, or, if the node has no end, the container's
// interface. What the link sends is shaped on the link itself; what it receives is
// redirected to an ifb, and shaped there.
type device struct {
	conn    *nl.Conn
	link    nl.Link
	sandbox string // netns path of the container; empty if the link is on the node
	owner   types.Attachment
	conf    *config
}

// findDevice finds the device. It asks the kernel for the host end, because some plugins
// do not list it in prevResult.
func findDevice(r *skel.Request, conf *config) (device, error) {
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return device{}, err
	}
	d := device{conn: pod, sandbox: r.NetNS, owner: r.Attachment(), conf: conf}
	d.link, err = pod.Link(r.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return device{}, types.Errorf(types.CodeConfig, "no interface %q in container: bandwidth has to come after the plugin that makes it: %w", r.IfName, err)
	}
	if err != nil || d.link.Kind != "veth" {
		return d, err
	}
	host, err := d.conn.VethPeer(d.link, node)
	if errors.Is(err, fs.ErrNotExist) {
		return device{}, types.Errorf(types.CodeConfig, "no veth peer of container interface %s found in host ns: what is to be shaped has its other end elsewhere", r.IfName)
	}
	d.conn, d.link, d.sandbox = node, host, ""
	return d, err
}

// sendShaper returns the shaper for what the device sends.
func (d device) sendShaper() shaper {
	if d.sandbox == "" {
		return d.ingress(d.link)
	}
	return d.egress(d.link)
}

// receiveShaper returns the shaper for what the device receives, which is on the ifb.
func (d device) receiveShaper(ifb nl.Link) shaper {
	if d.sandbox == "" {
		return d.egress(ifb)
	}
	return d.ingress(ifb)
}

func (d device) ingress(dev nl.Link) shaper { return d.shaper(dev, d.conf.ingress, source) }
func (d device) egress(dev nl.Link) shaper  { return d.shaper(dev, d.conf.egress, destination) }

func (d device) shaper(dev nl.Link, l limit, remote side) shaper {
	return shaper{dev: dev, rate: l.rate / 8, burst: l.burst / 8, latency: d.conf.latency, traffic: d.conf.traffic, remote: remote}
}

// ifbNames returns the names that the ifb of an attachment can have: that of the
// reference plugin, which is the same for all interfaces of a container in one network,
// and, if another interface has it, one that only this attachment has. The alias names
// the owner of an ifb.
func ifbNames(a types.Attachment) []string {
	return []string{ifbName(a.Network + a.ContainerID), ifbName(a.String())}
}

func ifbName(identity string) string {
	sum := sha512.Sum512([]byte(identity))
	return "bwp" + hex.EncodeToString(sum[:6])
}

const kindIFB = "ifb"

// addIFB makes the attachment's ifb, which is down, and pushes its removal. IPv6 is
// disabled on it, so that it sends no router solicitations.
func (d device) addIFB(u *undo.Stack) (nl.Link, error) {
	var ifb nl.Link
	var err error
	for _, name := range ifbNames(d.owner) {
		ifb, err = d.conn.AddIFB(u, nl.IFB{Name: name, MTU: d.link.MTU, Group: attach.UnfinishedGroup(d.owner.Network)})
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		err = alreadyShaped(name, err)
	}
	if err != nil {
		return nl.Link{}, err
	}
	noIPv6 := sysctl.Setting{Key: sysctl.IPv6(ifb.Name, "disable_ipv6"), Value: "1", Optional: true}
	return ifb, sysctl.Set(d.conn.NS(), noIPv6)
}

// addQdisc adds a qdisc and pushes its removal.
func addQdisc(c *nl.Conn, u *undo.Stack, l nl.Link, q nl.Qdisc) error {
	err := c.AddQdisc(u, l, q)
	if errors.Is(err, fs.ErrExist) {
		return alreadyShaped(l.Name, err)
	}
	return err
}

func alreadyShaped(name string, err error) error {
	return types.Errorf(types.CodeConfig, "interface %s already has a qdisc: an earlier ADD was not followed by a DEL, or another program made the qdisc, and it has to be removed: %w", name, err)
}

// ingressQdisc returns the qdisc that the redirecting filter is attached to.
func ingressQdisc() nl.Qdisc {
	return nl.Qdisc{Kind: "ingress", Handle: nl.IngressHandle, Parent: nl.Ingress}
}

// redirect returns the filter that sends what a device receives through the ifb.
func redirect(to nl.Link) nl.Filter {
	return nl.Filter{
		Parent: nl.IngressHandle, Priority: redirectPriority, Protocol: nl.ProtocolAll,
		Class: rootHandle.Class(1), Redirect: to.Index,
	}
}

// ifbs returns the ifbs of an attachment: those with its alias or, if there are none, the
// one without an alias, which the reference plugin made.
func ifbs(c *nl.Conn, owner types.Attachment) ([]nl.Link, error) {
	var ours, unnamed []nl.Link
	for _, name := range ifbNames(owner) {
		l, err := c.Link(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case l.Kind == kindIFB && l.Alias == attach.LinkAlias(owner):
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

// unshape removes what this plugin, or the reference plugin, added to the device.
func unshape(c *nl.Conn, dev nl.Link) error {
	return errors.Join(unshapeSent(c, dev), unshapeReceived(c, dev))
}

func unshapeSent(c *nl.Conn, dev nl.Link) error {
	q, err := c.Qdisc(dev, nl.Root)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	if q.Handle != rootHandle || !slices.Contains([]string{kindTBF, kindHTB}, q.Kind) {
		return nil
	}
	return c.DelQdisc(dev, q)
}

// unshapeReceived removes the ingress qdisc, unless it has filters of another program.
func unshapeReceived(c *nl.Conn, dev nl.Link) error {
	q, err := c.Qdisc(dev, nl.Ingress)
	if err != nil || q != ingressQdisc() {
		return types.IgnoreNotExist(err)
	}
	filters, err := c.Filters(dev, q.Handle)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	for _, f := range filters {
		if !f.Same(redirect(nl.Link{Index: f.Redirect})) {
			return nil
		}
	}
	return c.DelQdisc(dev, q)
}

// missing is the error of a CHECK for something that does not exist.
func missing(name, what string) error { return fmt.Errorf("interface %s has no %s", name, what) }
