package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	rawSettings
	DataDir       string `json:"dataDir"`
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI rawSettings `json:"cni"`
	} `json:"args"`
}

// rawSettings contains the keys that both the configuration and args.cni can set. A nil value means that the
// key is absent.
type rawSettings struct {
	Sysctl   rawSysctls `json:"sysctl"`
	MAC      string     `json:"mac"`
	Promisc  *bool      `json:"promisc"`
	MTU      *int       `json:"mtu"`
	AllMulti *bool      `json:"allmulti"`
	TxQLen   *int       `json:"txQLen"`
}

// rawSysctls is an object of strings in which no key occurs twice.
type rawSysctls map[string]string

// UnmarshalJSON decodes an object. It returns an error if a key occurs twice or a value is null.
func (s *rawSysctls) UnmarshalJSON(data []byte) error {
	var object map[string]*string
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	if countMembers(data) > len(object) {
		return errors.New("duplicated sysctl keys are not allowed")
	}
	*s = make(rawSysctls, len(object))
	for key, value := range object {
		if value == nil {
			return fmt.Errorf("%q: want a string, got null", key)
		}
		(*s)[key] = *value
	}
	return nil
}

// countMembers counts the members of a JSON object of strings, repeated keys included.
func countMembers(object []byte) int {
	dec := json.NewDecoder(bytes.NewReader(object))
	tokens := 0
	for _, err := dec.Token(); err == nil; _, err = dec.Token() {
		tokens++
	}
	return (tokens - 2) / 2 // two tokens are braces, and each member has two tokens
}

// config is the checked configuration, with all defaults set.
type config struct {
	sysctls []assignment // sorted by path, without duplicates
	link    settings
	dataDir string // empty if nothing is saved
}

const (
	defaultDataDir = "/run/cni/tuning"
	maxMTU         = 65536 // the MTU of lo, while other interfaces allow at most attach.MaxMTU
)

// parse reads and checks the configuration and CNI_ARGS. The code of errors for invalid values is
// types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	raw := rawConfig{}
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	conf, err := raw.toConfig(r.IfName, args)
	if err == nil {
		conf.dataDir = r.StateDir(conf.dataDir, defaultDataDir)
	}
	return conf, types.Coded(types.CodeConfig, err)
}

// toConfig checks the configuration and returns all problems in one error.
func (raw *rawConfig) toConfig(ifName string, args types.Args) (*config, error) {
	fromArgs := raw.Args.CNI
	macs := attach.MACKeys{MAC: raw.MAC, RuntimeConfig: raw.RuntimeConfig}
	macs.Args.CNI.MAC = fromArgs.MAC
	mac, macErr := macs.Parse(args)
	sysctls, sysctlErr := assignments(raw.Sysctl, fromArgs.Sysctl, ifName)
	conf := &config{sysctls: sysctls, dataDir: raw.DataDir, link: settings{
		Promisc:  cmp.Or(fromArgs.Promisc, raw.Promisc),
		MTU:      cmp.Or(fromArgs.MTU, raw.MTU),
		AllMulti: cmp.Or(fromArgs.AllMulti, raw.AllMulti),
		TxQLen:   cmp.Or(fromArgs.TxQLen, raw.TxQLen),
	}}
	if mac != "" {
		conf.link.MAC = &mac
	}
	if promisc := conf.link.Promisc; promisc != nil && !*promisc {
		conf.link.Promisc = nil // false leaves the flag unchanged
	}
	if mtu := conf.link.MTU; mtu != nil && *mtu == 0 {
		conf.link.MTU = nil
	}
	return conf, errors.Join(macErr, sysctlErr, conf.validate(fromArgs))
}

// validate returns an error that names each value that no container could use. A value of args.cni replaces the
// configuration's.
func (c *config) validate(fromArgs rawSettings) error {
	var errs []error
	prefix := map[bool]string{true: "args.cni."}
	if mtu := c.link.MTU; mtu != nil && (*mtu < attach.MinMTU || *mtu > maxMTU) {
		errs = append(errs, fmt.Errorf("%s %d must be between %d and %d", prefix[fromArgs.MTU != nil]+"mtu", *mtu, attach.MinMTU, maxMTU))
	}
	if n := c.link.TxQLen; n != nil && (*n < 0 || *n > math.MaxInt32) {
		errs = append(errs, fmt.Errorf("%s %d must be between 0 and %d", prefix[fromArgs.TxQLen != nil]+"txQLen", *n, math.MaxInt32))
	}
	if c.dataDir != "" && !filepath.IsAbs(c.dataDir) {
		errs = append(errs, fmt.Errorf("dataDir %q is not an absolute path", c.dataDir))
	}
	return errors.Join(errs...)
}

func (c *config) setsNothing() bool { return len(c.sysctls) == 0 && c.link == (settings{}) }
