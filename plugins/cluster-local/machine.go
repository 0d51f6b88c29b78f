package main

import (
	"os"
	"strings"

	"github.com/plumb-cni/plumb/pkg/invoke"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/plumb-cni/plumb/pkg/types"
)

// thisHost returns the host that the process runs on.
func thisHost() host {
	return host{pool.ThisMachine(), []string{"/sys/class/dmi/id/product_uuid", "/etc/machine-id"}, os.Hostname, invoke.RunProgram}
}

// machine returns what distinguishes this machine from all others: the UUID of the hardware or virtual
// machine, and the machine ID of the system. Either alone is not enough: a copied disk has the same machine
// ID, and containers that are nodes have the UUID of their host.
func (h host) machine() (string, error) {
	var parts []string
	for _, path := range h.identity {
		text, err := os.ReadFile(path)
		id := strings.Join(strings.Fields(string(text)), "")
		if err == nil && id != "" && len(id) < 100 {
			parts = append(parts, id)
		}
	}
	if len(parts) == 0 {
		return "", types.Errorf(types.CodeConfig, "this machine has no identity: neither of %s can be read; make a machine ID with systemd-machine-id-setup",
			strings.Join(h.identity, " and "))
	}
	return strings.Join(parts, "/"), nil
}
