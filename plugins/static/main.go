// static is an IPAM plugin that returns the addresses that the configuration or the runtime specifies. It
// does not reserve them. See README.md.
package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It needs no DEL and no GC, because nothing is reserved.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "static", IPAM: true}, parse, add, check)
}

// add returns the addresses. It succeeds without addresses, as the reference plugin does, because the
// interface plugin decides whether the network needs addresses.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	if len(conf.ips) == 0 {
		r.Warn("the result contains no address; set ipam.addresses, IP in CNI_ARGS, or ips in args.cni or runtimeConfig")
	}
	for _, gw := range conf.unusedGateways {
		r.Warn("CNI_ARGS: GATEWAY %s is not used, because no address without a gateway is in its subnet", gw)
	}
	return &types.Result{IPs: conf.ips, Routes: conf.routes, DNS: conf.dns}, nil
}

// check compares the addresses with the addresses in prevResult. It accepts a gateway that the interface
// plugin has added to an address without one, and the lack of a gateway, which a plugin of the chain can
// remove, for example route-override.
func check(r *skel.Request, conf *config) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range conf.ips {
		errs = append(errs, compare(want, prev.IPs))
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}

// compare returns an error if an address is not in prevResult, or has another gateway there.
func compare(want types.IP, prev []types.IP) error {
	i := slices.IndexFunc(prev, func(ip types.IP) bool { return ip.Address == want.Address })
	switch {
	case i < 0:
		return fmt.Errorf("prevResult lacks address %s", want.Address)
	case !want.Gateway.IsValid(), !prev[i].Gateway.IsValid(), prev[i].Gateway == want.Gateway:
		return nil
	}
	return fmt.Errorf("address %s in prevResult: want gateway %s, got %s", want.Address, want.Gateway, prev[i].Gateway)
}
