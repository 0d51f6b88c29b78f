package main

import (
	"cmp"
	"errors"
	"math"
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	Table          *int     `json:"table"`
	Gateways       []string `json:"gateways"`
	AddSourceHints bool     `json:"addSourceHints"`
	KeepMain       string   `json:"keepMain"`
}

// config is the checked configuration.
type config struct {
	table    int          // if it is 0, sbr chooses a free table for each address
	gateways []netip.Addr // at most one per family
	keep     string       // keepNone, keepSubnet or keepAll
}

// The values of keepMain say which routes of the interface stay in the main table.
const (
	keepNone   = "none"
	keepSubnet = "subnet"
	keepAll    = "all"
)

// parse reads and checks the configuration. The code of errors for invalid values is types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	conf, err := raw.toConfig()
	if r.Command == "ADD" && raw.Table != nil && (len(raw.Gateways) > 0 || raw.AddSourceHints || raw.KeepMain != "") {
		r.Warn("gateways, addSourceHints and keepMain have no effect, because with \"table\" sbr only adds rules")
	}
	return conf, types.Coded(types.CodeConfig, err)
}

// toConfig checks the configuration and returns all problems in one error.
func (raw *rawConfig) toConfig() (*config, error) {
	conf := &config{keep: cmp.Or(raw.KeepMain, keepNone)}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	if raw.Table != nil {
		conf.table = *raw.Table
		reportIf(conf.table < 1 || int64(conf.table) > math.MaxUint32,
			"table %d must be between 1 and %d; omit \"table\" to let sbr choose the tables", conf.table, int64(math.MaxUint32))
	}
	if raw.AddSourceHints && raw.KeepMain == "" {
		conf.keep = keepSubnet
	}
	reportIf(conf.keep != keepNone && conf.keep != keepSubnet && conf.keep != keepAll,
		"keepMain %q must be %s, %s or %s", raw.KeepMain, keepNone, keepSubnet, keepAll)
	reportIf(raw.AddSourceHints && conf.keep != keepSubnet,
		"addSourceHints and keepMain %q cannot be combined, because addSourceHints implies keepMain %q", raw.KeepMain, keepSubnet)
	reportIf(len(raw.Gateways) > 2, "gateways: gateways list cannot contain more than 2 entries, got %d", len(raw.Gateways))
	for i, text := range raw.Gateways {
		gateway, err := netip.ParseAddr(text)
		gateway = gateway.Unmap()
		if err != nil || gateway.Zone() != "" || gateway.IsUnspecified() || gateway.IsMulticast() {
			reportIf(true, "gateways[%d]: %q cannot be the address of a gateway", i, text)
			continue
		}
		for _, other := range conf.gateways {
			reportIf(other.Is4() == gateway.Is4(), "gateways[%d]: gateways list contains multiple %s addresses: %s and %s", i, family(gateway), other, gateway)
		}
		conf.gateways = append(conf.gateways, gateway)
	}
	return conf, errors.Join(errs...)
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
