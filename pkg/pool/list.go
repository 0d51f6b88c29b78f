package pool

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Reservation is the reservation of one address, as the function Reservations returns it.
type Reservation struct {
	Addr        netip.Addr
	ContainerID string // ID of the container, or "" if the file does not name an owner
	IfName      string // interface of the container, or "" if the reference plugin wrote the file before it supported several interfaces
	Path        string
	Since       time.Time // the time at which the file was written
}

// Networks returns the sorted names of the networks that have a directory in dataDir. It returns none if
// dataDir does not exist.
func Networks(dataDir string) ([]string, error) {
	entries, err := os.ReadDir(dataDir)
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, types.IgnoreNotExist(err)
}

// Reservations returns the reservations of a network, sorted by address. It takes no lock, so that a plugin that
// runs at the same time may add or remove some, and it does not remove reservations of an earlier boot. If the directory
// does not exist, there are none. If this process may not read a file, the error matches fs.ErrPermission.
func Reservations(dataDir, network string) ([]Reservation, error) {
	dir, err := openDirectory(filepath.Join(dataDir, network), 0)
	if err != nil {
		return nil, types.IgnoreNotExist(err)
	}
	defer dir.close()
	var all []Reservation
	var denied error
	err = dir.eachReservation(func(res reservation, err error) {
		if errors.Is(err, fs.ErrPermission) {
			denied = err
		}
		all = append(all, Reservation{res.addr, res.owner.containerID, res.owner.ifName, filepath.Join(dir.path, res.addr.String()), res.written})
	})
	slices.SortFunc(all, func(a, b Reservation) int { return a.Addr.Compare(b.Addr) })
	return all, cmp.Or(denied, err)
}

// Irregular returns the paths of reservations, of the lock file and of last_reserved_ip files of a network that are not
// regular files. A symbolic link counts as the file to which it leads.
func Irregular(dataDir, network string) (paths []string, err error) {
	dir := filepath.Join(dataDir, network)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		_, isAddress := parseName(e.Name())
		if e.Type().IsRegular() || !isAddress && e.Name() != "lock" && !strings.HasPrefix(e.Name(), cursorPrefix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			paths = append(paths, path)
		}
	}
	return paths, types.IgnoreNotExist(err)
}

// Remembered returns the sorted addresses of a network that are recorded for a former workload (key sticky), including those
// that are reserved again.
func Remembered(dataDir, network string) ([]netip.Addr, error) {
	dir, err := openDirectory(Store{privateDir: filepath.Join(dataDir, ".plumb", network)}.PrivatePath("sticky"), 0)
	if err != nil {
		return nil, types.IgnoreNotExist(err)
	}
	defer dir.close()
	var all []netip.Addr
	names, err := dir.names()
	for _, name := range names {
		if ip, ok := parseName(name); ok {
			all = append(all, ip)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, err
}

// ParseIPAM returns dataDir and the range sets in the value of the key ipam, without the ranges that only the runtime
// passes. If a value is invalid, the error names all problems.
func ParseIPAM(ipam []byte) (dataDir string, sets []Set, err error) {
	var keys Keys
	if err := json.Unmarshal(ipam, &keys); err != nil {
		return "", nil, err
	}
	in := input{keys: &keys, version: types.Newest, rangesLater: true}
	p, err := in.pool()
	if err != nil {
		return "", nil, err
	}
	return p.dataDir, p.Sets(), nil
}
