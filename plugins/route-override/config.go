package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	rawChanges
	RequireDelRoutes bool `json:"requireDelRoutes"`
	SkipCheck        bool `json:"skipcheck"`
	Args             struct {
		CNI rawChanges `json:"cni"`
	} `json:"args"`
}

// rawChanges contains the keys that the runtime can also pass in args.cni. A key there replaces the configuration's.
type rawChanges struct {
	FlushRoutes  *bool             `json:"flushroutes"`
	FlushGateway *bool             `json:"flushgateway"`
	DelRoutes    []rawDelRoute     `json:"delroutes"`
	AddRoutes    []types.RouteText `json:"addroutes"`
}

type rawDelRoute struct {
	Dst   string `json:"dst"`
	GW    string `json:"gw"`
	Table int    `json:"table"`
}

// config is the checked configuration.
type config struct {
	flushRoutes      bool
	flushGateway     bool
	delRoutes        []types.Route // a route without a gateway selects the routes through any gateway
	addRoutes        []types.Route
	requireDelRoutes bool
	skipCheck        bool
}

// parse reads and checks the configuration. The code of errors for invalid values is types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	conf, err := raw.toConfig()
	return conf, types.Coded(types.CodeConfig, err)
}

// toConfig checks the configuration and returns all problems in one error.
func (raw *rawConfig) toConfig() (*config, error) {
	args, no := raw.Args.CNI, false
	conf := &config{
		flushRoutes:      *cmp.Or(args.FlushRoutes, raw.FlushRoutes, &no),
		flushGateway:     *cmp.Or(args.FlushGateway, raw.FlushGateway, &no),
		requireDelRoutes: raw.RequireDelRoutes, skipCheck: raw.SkipCheck,
	}
	var errs []error
	parseRoute := func(key string, i int, text types.RouteText) types.Route {
		route, err := text.Route()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s[%d]: %w", key, i, err))
		}
		return route
	}
	delKey, delRoutes := "delroutes", raw.DelRoutes
	if args.DelRoutes != nil {
		delKey, delRoutes = "args.cni.delroutes", args.DelRoutes
	}
	for i, text := range delRoutes {
		conf.delRoutes = append(conf.delRoutes, parseRoute(delKey, i, types.RouteText{Dst: text.Dst, GW: text.GW, Table: text.Table}))
	}
	addKey, addRoutes := "addroutes", raw.AddRoutes
	if args.AddRoutes != nil {
		addKey, addRoutes = "args.cni.addroutes", args.AddRoutes
	}
	for i, text := range addRoutes {
		conf.addRoutes = append(conf.addRoutes, parseRoute(addKey, i, text))
	}
	return conf, errors.Join(errs...)
}
