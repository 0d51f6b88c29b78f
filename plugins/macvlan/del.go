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

// del removes the link, and gives the address back when nothing answers for it any
// more. It needs no master: the configuration may have changed, the master be gone.
func del(r *skel.Request) error {
	var leased error
	if ipam.OverLink(r) {
		leased = ipam.Del(r)
	}
	finish, err := delLink(r)
	if err == nil && !ipam.OverLink(r) {
		leased = ipam.Del(r)
	}
	return errors.Join(leased, err, finish())
}

// delLink removes the attachment's link. Where the container is gone, so is the link.
// One of another kind, or of another attachment, belongs to a newcomer at the same
// path; one without an alias was made by the reference plugin, or by an ADD that was
// killed. finish is that of nl.DelAside.
func delLink(r *skel.Request) (finish func() error, err error) {
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
	prev, _ := r.Prev() // one that cannot be read is as good as none
	if newcomers, err := attach.Newcomers(pod, eth, r.Attachment(), prev); newcomers || err != nil {
		return nothing, err
	}
	return pod.DelAside(eth)
}

// status says whether an ADD could succeed now. A master in the container is there
// only when the container is.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil && !conf.inContainer {
		err = masterStatus(r, conf)
	}
	if err != nil {
		return types.Errorf(types.CodeNotAvailable, "%w", err)
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
