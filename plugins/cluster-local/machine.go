package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/invoke"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// thisHost returns the host that the process runs on.
func thisHost() host {
	return host{pool.ThisMachine(), []string{"/sys/class/dmi/id/product_uuid", "/etc/machine-id"}, os.Hostname, invoke.RunProgram}
}

// machine returns a string that distinguishes this machine from all others, and one data directory from
// another. It consists of the UUID of the hardware or virtual machine, the machine ID of the system, and the
// path of the directory. One ID is enough. machine uses both if both exist, because a copied disk contains
// the same machine ID, and containers that are nodes see the UUID of their host.
func (n *network) machine() (string, error) {
	id, err := n.host.machineID()
	dir := strconv.QuoteToASCII(filepath.Join(n.ownedPath(), "../../.."))
	return id + ":" + strings.ReplaceAll(strings.Trim(dir, `"`), " ", `\x20`), err
}

// machineID returns the IDs in the files of h.identity, except IDs that many machines share.
func (h host) machineID() (string, error) {
	var parts, problems []string
	for _, path := range h.identity {
		text, err := os.ReadFile(path)
		id := strings.Join(strings.Fields(string(text)), "")
		switch {
		case err != nil:
			problems = append(problems, err.Error())
		case isSharedID(id) || len(id) >= 100:
			problems = append(problems, fmt.Sprintf("%s contains %q, which is not unique to one machine", path, id))
		default:
			parts = append(parts, id)
		}
	}
	if len(parts) == 0 {
		return "", types.Errorf(types.CodeConfig, "this machine has no identity: %s; create a machine ID with systemd-machine-id-setup", strings.Join(problems, "; "))
	}
	return strings.Join(parts, "/"), nil
}

// sharedIDs lists the IDs that vendors and images assign to many machines, in lower case and without '-'.
var sharedIDs = []string{
	"", "uninitialized", // machine-id(5)
	"notsettable", "notpresent", "notspecified", "none", "tobefilledbyo.e.m.",
	"03000200040005000006000700080009", "00020003000400050006000700080009", "123456781234567890abcddeefaabbcc",
}

func isSharedID(id string) bool {
	id = strings.ReplaceAll(strings.ToLower(id), "-", "")
	return strings.Trim(id, "0") == "" || strings.Trim(id, "f") == "" || slices.Contains(sharedIDs, id)
}
