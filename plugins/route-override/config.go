package main

import (
	"cmp"
	"errors"

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
	delKey, delRoutes := "delroutes", raw.DelRoutes
	if args.DelRoutes != nil {
		delKey, delRoutes = "args.cni.delroutes", args.DelRoutes
	}
	var texts []types.RouteText
	for _, r := range delRoutes {
		texts = append(texts, types.RouteText{Dst: r.Dst, GW: r.GW, Table: r.Table})
	}
	addKey, addRoutes := "addroutes", raw.AddRoutes
	if args.AddRoutes != nil {
		addKey, addRoutes = "args.cni.addroutes", args.AddRoutes
	}
	var delErr, addErr error
	conf.delRoutes, delErr = types.ParseRoutes(delKey, texts)
	conf.addRoutes, addErr = types.ParseRoutes(addKey, addRoutes)
	return conf, errors.Join(delErr, addErr)
}
