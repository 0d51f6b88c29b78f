package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as a person writes it. README.md explains each key.
type rawConfig struct {
	Sysctl        rawSysctls `json:"sysctl"`
	MAC           string     `json:"mac"`
	Promisc       bool       `json:"promisc"`
	MTU           int        `json:"mtu"`
	AllMulti      *bool      `json:"allmulti"`
	TxQLen        *int       `json:"txQLen"`
	DataDir       string     `json:"dataDir"`
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI rawArgs `json:"cni"`
	} `json:"args"`
}

// rawArgs is what stands above the configuration; nil: it says nothing.
type rawArgs struct {
	Sysctl   rawSysctls `json:"sysctl"`
	MAC      string     `json:"mac"`
	Promisc  *bool      `json:"promisc"`
	MTU      *int       `json:"mtu"`
	AllMulti *bool      `json:"allmulti"`
	TxQLen   *int       `json:"txQLen"`
}

// rawSysctls is an object of texts, in which no key stands twice.
type rawSysctls map[string]string

// UnmarshalJSON refuses a key that stands twice: which of the values is meant?
func (s *rawSysctls) UnmarshalJSON(data []byte) error {
	var object map[string]*string
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	if members(data) > len(object) {
		return errors.New("duplicated sysctl keys are not allowed")
	}
	*s = make(rawSysctls, len(object))
	for key, value := range object {
		if value == nil {
			return fmt.Errorf("sysctl %q: want a string, have null", key)
		}
		(*s)[key] = *value
	}
	return nil
}

// members counts the members of a JSON object of texts, each time that they stand there.
func members(object []byte) int {
	dec := json.NewDecoder(bytes.NewReader(object))
	tokens := 0
	for _, err := dec.Token(); err == nil; _, err = dec.Token() {
		tokens++
	}
	return (tokens - 2) / 2 // but for the braces, key and value
}

// config is what ADD and CHECK work with: everything checked, every default set.
type config struct {
	sysctls []assignment // sorted by path, each once
	link    settings
	dataDir string
}

const (
	defaultDataDir = "/run/cni/tuning"
	minMTU         = 68 // RFC 791
	maxMTU         = 65536
)

func parse(r *skel.Request) (*config, error) {
	raw := rawConfig{}
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	args, err := r.Args()
	if err != nil {
		return nil, err
	}
	conf, err := raw.config(r.IfName, args)
	return conf, types.Coded(types.CodeConfig, err)
}

// config checks everything and reports all problems at once.
func (raw *rawConfig) config(ifName string, args types.Args) (*config, error) {
	above := raw.Args.CNI
	mac, macErr := types.FirstMAC(raw.RuntimeConfig.MAC, above.MAC, args[types.ArgMAC], raw.MAC)
	sysctls, sysctlErr := assignments(raw.Sysctl, above.Sysctl, ifName)
	conf := &config{sysctls: sysctls, dataDir: orDefault(raw.DataDir)}
	if mac != "" {
		conf.link.MAC = &mac
	}
	if promisc := or(above.Promisc, &raw.Promisc); *promisc { // false is no wish
		conf.link.Promisc = promisc
	}
	if mtu := or(above.MTU, &raw.MTU); *mtu != 0 {
		conf.link.MTU = mtu
	}
	conf.link.AllMulti = or(above.AllMulti, raw.AllMulti)
	conf.link.TxQLen = or(above.TxQLen, raw.TxQLen)
	return conf, errors.Join(macErr, sysctlErr, conf.validate())
}

// or is the first that says something.
func or[T any](above, below *T) *T {
	if above != nil {
		return above
	}
	return below
}

func orDefault(dataDir string) string {
	if dataDir == "" {
		return defaultDataDir
	}
	return dataDir
}

// validate says what cannot work, whatever the container looks like.
func (c *config) validate() error {
	var errs []error
	if mtu := c.link.MTU; mtu != nil && (*mtu < minMTU || *mtu > maxMTU) {
		errs = append(errs, fmt.Errorf("mtu %d is not between %d and %d", *mtu, minMTU, maxMTU))
	}
	if n := c.link.TxQLen; n != nil && (*n < 0 || *n > math.MaxInt32) {
		errs = append(errs, fmt.Errorf("txQLen %d is not between 0 and %d", *n, math.MaxInt32))
	}
	if !filepath.IsAbs(c.dataDir) {
		errs = append(errs, fmt.Errorf("dataDir %q is no absolute path", c.dataDir))
	}
	return errors.Join(errs...)
}

// idle: nothing is asked for.
func (c *config) idle() bool { return len(c.sysctls) == 0 && len(c.link.knobs()) == 0 }

// dataDir reads no more of the configuration than DEL and GC need.
func dataDir(r *skel.Request) string {
	var raw struct {
		DataDir string `json:"dataDir"`
	}
	_ = types.Decode(r.Stdin, &raw)
	return orDefault(raw.DataDir)
}
