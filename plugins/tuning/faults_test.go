package main

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func configWithEverything(dir string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "tuning", "dataDir": %q, %s,
		"prevResult": {"interfaces": [{"name": "eth0", "sandbox": "/x"}]}}`, dir, everything)
}

func TestFaults(t *testing.T) {
	nstest.RequireRoot(t, "because ping_group_range contains groups of the host")
	nstest.LeakCheck(t)
	dir := t.TempDir()
	nstest.FaultSweep(t, nstest.Sweep{
		Plugin: plugin(), Config: configWithEverything(dir), Dirs: []string{dir}, PrepareContainer: withEth0(t),
	})
}

// setPromiscuous requests promiscuous mode for an interface as tcpdump does (PACKET_MR_PROMISC).
func setPromiscuous(fd int, ifName string) error {
	in, err := net.InterfaceByName(ifName)
	if err != nil {
		return err
	}
	return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(in.Index), Type: unix.PACKET_MR_PROMISC})
}
