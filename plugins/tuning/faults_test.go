package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func configWithEverything(dir string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "tuning", "dataDir": %q, %s,
		"prevResult": {"interfaces": [{"name": "eth0", "sandbox": "/x"}]}}`, dir, everything)
}

func TestFaults(t *testing.T) {
	nstest.LeakCheck(t)
	dir := t.TempDir()
	nstest.FaultSweep(t, nstest.Sweep{
		Plugin: plugin(), Config: configWithEverything(dir), Dirs: []string{dir}, PrepareContainer: withEth0(t),
	})
}

// TestKilledWhileWriting tests that ADD and DEL remove the temporary file of an ADD that was killed.
func TestKilledWhileWriting(t *testing.T) {
	host, container := nstest.NewHostAndContainer(t)
	withEth0(t)(container)
	dir := t.TempDir()
	call := nstest.Call{Host: host, Container: container, Config: configWithEverything(dir)}
	temp := filepath.Join(dir, statefile.TempName(types.Attachment{Network: "net", ContainerID: "test", IfName: "eth0"}))
	writeFile(t, temp, `{"ma`)
	nstest.Run(plugin(), call.With("ADD")).OK(t)
	writeFile(t, temp, `{"ma`)
	nstest.Run(plugin(), call.With("DEL")).OK(t)
	requireEmpty(t, dir)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%s: %v, %v", dir, entries, err)
	}
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
