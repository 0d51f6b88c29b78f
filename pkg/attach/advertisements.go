package attach

import "github.com/plumb-cni/plumb/pkg/sysctl"

// IgnoreRouters returns the sysctl with which an interface ignores router advertisements. It is for interfaces that
// receive packets only from containers, because a container could otherwise change routes and addresses
// (CVE-2020-10749), and for containers' interfaces on links without a router.
func IgnoreRouters(name string) sysctl.Setting {
	return sysctl.Setting{Key: sysctl.IPv6(name, "accept_ra"), Value: "0", Optional: true}
}
