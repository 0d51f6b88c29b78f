package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode"

	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	Backend        string `json:"backend"`
	AdminChain     string `json:"iptablesAdminChainName"`
	Zone           string `json:"firewalldZone"`
	IngressPolicy  string `json:"ingressPolicy"`
	PublishedPorts bool   `json:"publishedPorts"`
}

// config is the validated configuration with all defaults set.
type config struct {
	backend    string // if empty, ADD chooses the backend by the program that drops forwarded packets
	adminChain string
	zone       string
	policy     string
	published  bool
}

// The backends.
const (
	iptables  = xt.BackendIPTables
	nftables  = xt.BackendNFTables
	firewalld = "firewalld"
)

// The policies.
const (
	open       = "open"
	sameBridge = "same-bridge"
	isolated   = "isolated"
)

const defaultZone = "trusted"

// parse reads and checks the configuration. With an error, the config contains what could be read, which DEL and GC use.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	decodeErr := r.Decode(&raw)
	conf := &config{
		backend:    raw.Backend,
		adminChain: cmp.Or(raw.AdminChain, "CNI-ADMIN"),
		zone:       cmp.Or(raw.Zone, defaultZone),
		policy:     cmp.Or(raw.IngressPolicy, open),
		published:  raw.PublishedPorts,
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!slices.Contains([]string{open, sameBridge, isolated}, conf.policy),
		"ingressPolicy: unknown ingress policy: %q; want %q, %q or %q", conf.policy, open, sameBridge, isolated)
	reportIf(!isChainName(conf.adminChain), "iptablesAdminChainName %q cannot be the name of an administrator's chain", conf.adminChain)
	reportIf(len(conf.zone) > maxZone || strings.ContainsFunc(conf.zone, unicode.IsControl), "firewalldZone %q cannot be the name of a zone", conf.zone)
	if !slices.Contains([]string{"", iptables, nftables, firewalld}, conf.backend) {
		const want = "backend %q must be %q, %q or %q, or left out"
		reportIf(r.Conf.Strict, want, conf.backend, iptables, nftables, firewalld)
		if r.Command == "ADD" && !r.Conf.Strict { // the reference plugin ignores an unknown backend
			r.Warn(want+"; ignoring it", conf.backend, iptables, nftables, firewalld)
		}
		conf.backend = ""
	}
	return conf, cmp.Or(decodeErr, types.Coded(types.CodeConfig, errors.Join(errs...)))
}

// isChainName reports whether an administrator can create a chain named s with iptables. It rejects the
// names of built-in chains, of targets and of the plugin's own chains.
func isChainName(s string) bool {
	reserved := []string{
		forwardChain, stage1, stage2, "INPUT", "FORWARD", "OUTPUT", "ACCEPT", "DROP", "REJECT", "QUEUE", "RETURN",
	}
	return xt.IsChainName(s) && !slices.Contains(reserved, s)
}
