package main

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// del deletes the link and releases the address. It does not look at the master, which may be
// gone or configured in another way by now.
func del(r *skel.Request) error {
	return ipam.DelWithLink(r, func() (func() error, error) { return delLink(r) })
}

// delLink deletes the attachment's link, if the container exists. It leaves a link of
// another kind, or of another attachment, alone: another namespace is at the path. A link
// without an alias was made by the reference plugin, or by an ADD that was killed. The
// caller must call wait, which returns when the kernel has cleaned up.
func delLink(r *skel.Request) (wait func() error, err error) {
	nothing := func() error { return nil }
	if r.Pod == nil {
		return nothing, nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return nothing, err
	}
	eth, err := pod.Link(r.IfName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nothing, nil
	case err != nil:
		return nothing, err
	case eth.Kind != kind:
		return nothing, nil
	}
	prev, _ := r.Prev() // without it, if it cannot be read
	if other, err := attach.BelongsToOther(pod, eth, r.Attachment(), prev); other || err != nil {
		return nothing, err
	}
	return pod.DeleteLinkAsync(eth)
}

// status returns an error if an ADD would fail. It cannot check a master in the container.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil && !conf.inContainer {
		err = masterStatus(r, conf)
	}
	if err != nil {
		return types.NotAvailable(err)
	}
	return ipam.Status(r)
}

func masterStatus(r *skel.Request, conf *config) error {
	node, err := nl.Open(r.Node)
	if err != nil {
		return err
	}
	_, err = findMaster(node, conf)
	return err
}
