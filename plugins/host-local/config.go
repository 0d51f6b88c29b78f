package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

// rawConf is the configuration as the user writes it.
type rawConf struct {
	IPAM *pool.Keys `json:"ipam"`
	pool.RuntimeKeys
}

// parse returns the pool that the configuration of an ADD, CHECK or STATUS describes.
func (h machine) parse(r *skel.Request) (*pool.Pool, error) {
	var raw rawConf
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	return h.NewPool(r, raw.IPAM, raw.RuntimeKeys)
}
