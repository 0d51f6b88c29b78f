// static gives a container the addresses that its configuration, or the runtime,
// names. It keeps no record of them. See README.md.
package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin has no DEL and no GC: nothing is kept that could be given back.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "static", IPAM: true, Add: add, Check: check, Status: status}
}

// codeChanged is the code of a CHECK that found a difference.
const codeChanged = 100

// add tells the addresses. Not to have any is legal, as with the reference plugin:
// whether a network can do without is for the interface plugin to say.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	if len(conf.ips) == 0 {
		r.Warn("no address: neither ipam.addresses, nor IP in CNI_ARGS, nor ips in args.cni or runtimeConfig has one")
	}
	for _, gw := range conf.unused {
		r.Warn("CNI_ARGS: GATEWAY %s is not used: no address that is without a gateway has it in its subnet", gw)
	}
	return &types.Result{IPs: conf.ips, Routes: conf.routes, DNS: conf.dns}, nil
}

// check compares the addresses with those of the result. A gateway that the
// interface plugin added to an address without one is no difference.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.MustPrev()
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range conf.ips {
		errs = append(errs, compare(want, prev.IPs))
	}
	return types.Coded(codeChanged, errors.Join(errs...))
}

func compare(want types.IP, have []types.IP) error {
	i := slices.IndexFunc(have, func(ip types.IP) bool { return ip.Address == want.Address })
	switch {
	case i < 0:
		return fmt.Errorf("prevResult has no address %s", want.Address)
	case !want.Gateway.IsValid(), have[i].Gateway == want.Gateway:
		return nil
	case !have[i].Gateway.IsValid():
		return fmt.Errorf("prevResult has address %s without a gateway, not with %s", want.Address, want.Gateway)
	}
	return fmt.Errorf("prevResult has address %s with gateway %s, not %s", want.Address, have[i].Gateway, want.Gateway)
}

// status says whether the configuration could serve an ADD.
func status(r *skel.Request) error {
	if _, err := parse(r); err != nil {
		return types.Errorf(types.CodeNotAvailable, "%w", err)
	}
	return nil
}
