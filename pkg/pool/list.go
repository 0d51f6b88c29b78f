package pool

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/types"
)

// A Reservation is the reservation of one address, as the function Reservations found it.
type Reservation struct {
	Addr        netip.Addr
	ContainerID string // empty: the file does not name an owner
	IfName      string // empty: the reference plugin wrote the file before it supported several interfaces
	Path        string
	Since       time.Time // when the file was written
}

// Networks returns the names of the networks that have a folder in dataDir, in order. It returns none if
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

// Reservations returns the reservations of a network in the order of the addresses. It takes no lock and
// changes nothing, not even what an earlier boot left, so a plugin that runs at the same time may add or
// remove some. If the folder does not exist, there are none. If this process may not read a file, the error matches
// fs.ErrPermission.
func Reservations(dataDir, network string) ([]Reservation, error) {
	dir, err := openFolder(filepath.Join(dataDir, network), 0)
	if err != nil {
		return nil, types.IgnoreNotExist(err)
	}
	defer dir.close()
	names, err := dir.names()
	var all []Reservation
	for _, name := range names {
		ip, ok := parseName(name)
		if !ok {
			continue
		}
		content, st, err := dir.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // released meanwhile
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		r := Reservation{Addr: ip, Path: filepath.Join(dir.path, name)}
		if err == nil {
			o, _ := parseOwner(content)
			r.ContainerID, r.IfName, r.Since = o.containerID, o.ifName, time.Unix(st.Mtim.Unix())
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Reservation) int { return a.Addr.Compare(b.Addr) })
	return all, err
}

// ParseIPAM returns the folder and the range sets in the value of the key ipam. It ignores what only the
// runtime passes. If a value is invalid, the error names all problems.
func ParseIPAM(ipam []byte) (dataDir string, sets []Set, err error) {
	var keys Keys
	if err := json.Unmarshal(ipam, &keys); err != nil {
		return "", nil, err
	}
	in := input{keys: &keys, version: types.Newest, command: "STATUS"} // STATUS needs no ranges
	conf, err := in.config()
	if err != nil {
		return "", nil, err
	}
	return conf.dataDir, (&Pool{conf: conf}).Sets(), nil
}
