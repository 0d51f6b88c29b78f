package main

import (
	"errors"
	"math"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	VRFName string `json:"vrfname"`
	Table   int    `json:"table"`
}

// config is the checked configuration.
type config struct {
	name  string
	table int // if it is 0, vrf uses the table of an existing VRF or a free table
}

const kind = "vrf"

// firstTable is the lowest table that a VRF gets if none is configured. sbr uses tables from 100 on.
const firstTable = 1000

// parse reads and checks the configuration. The code of errors for invalid values is types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(raw.VRFName == "", "vrfname: configuration is expected to have a valid vrf name; the key is missing or empty")
	if err := types.CheckIfName(raw.VRFName); err != nil {
		reportIf(raw.VRFName != "", "vrfname %q is not an interface name: %w", raw.VRFName, err)
	}
	reportIf(raw.VRFName == "lo" || raw.VRFName != "" && raw.VRFName == r.IfName, "vrfname %q is the name of another interface of the container", raw.VRFName)
	reportIf(raw.Table < 0 || int64(raw.Table) > math.MaxUint32, "table %d must be between 0 and %d", raw.Table, int64(math.MaxUint32))
	reportIf(raw.Table >= 253 && raw.Table <= 255, "table %d is one of the kernel's tables (default, main, local)", raw.Table)
	conf := &config{name: raw.VRFName, table: raw.Table}
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}
