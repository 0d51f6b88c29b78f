package main

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// A device is the link on which an attachment's traffic is shaped. For a veth pair it is the
// host end, which sends the packets that the container receives. For any other kind it is the
// container's interface. The plugin shapes the packets that the link sends on the link itself,
// and redirects the packets that the link receives to an ifb, where it shapes them.
type device struct {
	conn    *nl.Conn
	link    nl.Link
	sandbox string // path of the container's network namespace, or "" if the link is on the host
	owner   types.Attachment
	send    shaper // shapes the packets that the link sends
	receive shaper // shapes the packets that the link receives, on an ifb with the link's MTU
}

// findDevice returns the attachment's device. It asks the kernel for the host end, because some
// plugins do not list the host end in prevResult.
func findDevice(r *skel.Request, conf *config) (device, error) {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return device{}, err
	}
	eth, err := container.RequireLink(r.IfName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return device{}, types.Errorf(types.CodeConfig, "no interface %q in container: %w; list bandwidth after the plugin that creates the interface", r.IfName, err)
	case err != nil:
		return device{}, err
	}
	if err := attach.RequireOwnLink(r, container, eth); err != nil {
		return device{}, err
	}
	if eth.Kind != "veth" {
		d := device{conn: container, link: eth, sandbox: r.NetNS, owner: r.Attachment()}
		d.receive, d.send = conf.shapers(eth)
		return d, nil
	}
	hostEnd, err := container.VethPeer(eth, host)
	if errors.Is(err, fs.ErrNotExist) {
		return device{}, types.Errorf(types.CodeConfig, "no veth peer of container interface %s found in host ns: the peer is in another network namespace, and bandwidth cannot shape this interface", r.IfName)
	}
	d := device{conn: host, link: hostEnd, owner: r.Attachment()}
	d.send, d.receive = conf.shapers(hostEnd)
	return d, err
}

// ifbNames returns the two names that an attachment's ifb can have. The first is the reference
// plugin's name, which is the same for all interfaces of a container in one network. The second is
// unique to the attachment. ADD uses the second name if an interface with the first name exists.
func ifbNames(a types.Attachment) []string {
	return []string{ifbName(a.Network + a.ContainerID), ifbName(a.String())}
}

func ifbName(identity string) string {
	sum := sha512.Sum512([]byte(identity))
	return "bwp" + hex.EncodeToString(sum[:6])
}

const kindIFB = "ifb"

// addIFB creates the attachment's ifb, which is down, and pushes its removal to u. It disables IPv6
// on the ifb, because the kernel would send router solicitations there.
func (d device) addIFB(u *undo.Stack) (nl.Link, error) {
	var ifb nl.Link
	var err error
	names := ifbNames(d.owner)
	for _, name := range names {
		ifb, err = d.conn.AddIFB(u, nl.NewLink{Name: name, MTU: d.link.MTU, Group: attach.UnfinishedGroup(d.owner.Network)})
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nl.Link{}, types.Errorf(types.CodeConfig, "interfaces %q already exist: an earlier ADD was not followed by a DEL, or another program created them: %w; call DEL, or delete one of them", names, err)
	case err != nil:
		return nl.Link{}, err
	}
	noIPv6 := sysctl.Setting{Key: sysctl.IPv6(ifb.Name, "disable_ipv6"), Value: "1", Optional: true}
	return ifb, sysctl.Set(d.conn.NS(), noIPv6)
}

// ifbs returns the ifbs whose alias names the attachment. If there are none, it returns the ifbs
// without an alias, which the reference plugin created.
func ifbs(c *nl.Conn, owner types.Attachment) ([]nl.Link, error) {
	var withAlias, withoutAlias []nl.Link
	for _, name := range ifbNames(owner) {
		l, err := c.Link(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case l.Kind == kindIFB && l.Alias == attach.LinkAlias(owner):
			withAlias = append(withAlias, l)
		case l.Kind == kindIFB && l.Alias == "":
			withoutAlias = append(withoutAlias, l)
		}
	}
	if len(withAlias) == 0 {
		return withoutAlias, nil
	}
	return withAlias, nil
}

// removeQdiscs removes the qdiscs that this plugin or the reference plugin added to the device.
func removeQdiscs(c *nl.Conn, dev nl.Link) error {
	return errors.Join(removeRootQdisc(c, dev), attach.DeleteRedirect(c, dev, attach.IsRedirect))
}

// removeRootQdisc removes the root qdisc if this plugin uses its handle and kind.
func removeRootQdisc(c *nl.Conn, dev nl.Link) error {
	q, err := c.Qdisc(dev, nl.Root)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	if q.Handle != rootHandle || q.Kind != kindTBF && q.Kind != kindHTB {
		return nil
	}
	return c.DeleteQdisc(dev, q)
}
