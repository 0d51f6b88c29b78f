package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig contains the keys of the configuration as they are written. README.md explains each key.
type rawConfig struct {
	Backend              string   `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain string   `json:"externalSetMarkChain"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	OnConflict           *string  `json:"onConflict"`
	RuntimeConfig        struct {
		PortMappings []*rawMapping `json:"portMappings"` // an element is nil if it is null
	} `json:"runtimeConfig"`
}

type rawMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// config is the checked configuration, with all defaults set.
type config struct {
	backend           string // if empty, see portMap.backend
	snat              bool
	masqAll           bool   // false if snat is false
	markBit           int    // the bit of the packet mark that means "masquerade this packet"
	externalMarkChain string // the chain that sets the mark; if empty, plumb's chain sets it
	conditions        map[nft.Family][]string
	onConflict        string // if empty, ADD takes over host ports, and does not look for listeners
	mappings          []mapping
}

// The values of onConflict, which say what ADD does with a host port that is in use.
const (
	replaceOnConflict = "replace"
	failOnConflict    = "fail"
)

// The backends.
const (
	backendNFTables = iptables.BackendNFTables
	backendIPTables = iptables.BackendIPTables
)

// A mapping forwards a port of the host to a port of the container.
type mapping struct {
	proto         protocol
	hostIP        netip.Addr // if zero, all addresses of the host; if unspecified, all addresses of its family
	hostPort      uint16
	containerPort uint16
}

// A protocol is the IP protocol number of a transport protocol.
type protocol uint8

const (
	tcp  protocol = 6
	udp  protocol = 17
	sctp protocol = 132
)

func (p protocol) String() string {
	switch p {
	case tcp:
		return "tcp"
	case udp:
		return "udp"
	case sctp:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

func parseProtocol(s string) (protocol, error) {
	for _, p := range []protocol{tcp, udp, sctp} {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("protocol %q must be tcp, udp or sctp", s)
}

// hasFamily reports whether the mapping is for packets of the family.
func (m mapping) hasFamily(f nft.Family) bool {
	return !m.hostIP.IsValid() || m.hostIP.Is4() == (f == nft.IPv4)
}

// isAnyAddress reports whether the mapping is for all addresses of the host in a family.
func (m mapping) isAnyAddress() bool { return !m.hostIP.IsValid() || m.hostIP.IsUnspecified() }

func (m mapping) String() string {
	if m.hostIP.IsValid() {
		return fmt.Sprintf("host port %s/%s", netip.AddrPortFrom(m.hostIP, m.hostPort), m.proto)
	}
	return fmt.Sprintf("host port %d/%s", m.hostPort, m.proto)
}

// parse returns the checked configuration of the call. An error names all problems.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	conf, err := raw.toConfig()
	if r.Command == "ADD" && raw.MasqAll && !conf.snat {
		r.Warn("masqAll has no effect because snat is false: no packet to a host port is masqueraded")
	}
	return conf, types.Coded(types.CodeConfig, err)
}

// toConfig returns the checked configuration. An error names all problems.
func (raw *rawConfig) toConfig() (*config, error) {
	conf := &config{
		backend:           raw.Backend,
		snat:              raw.SNAT == nil || *raw.SNAT,
		markBit:           defaultMarkBit,
		externalMarkChain: raw.ExternalSetMarkChain,
		conditions:        map[nft.Family][]string{},
	}
	conf.masqAll = raw.MasqAll && conf.snat
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	if raw.MarkMasqBit != nil {
		conf.markBit = *raw.MarkMasqBit
		reportIf(conf.markBit < 0 || conf.markBit > 31, "markMasqBit %d must be between 0 and 31", conf.markBit)
		reportIf(conf.externalMarkChain != "", "markMasqBit and externalSetMarkChain exclude each other, because the program that created the chain chooses the bit")
	}
	reportIf(raw.ExternalSetMarkChain != "" && !iptables.IsChainName(raw.ExternalSetMarkChain), "externalSetMarkChain %q is not the name of a chain", raw.ExternalSetMarkChain)
	if raw.OnConflict != nil {
		conf.onConflict = *raw.OnConflict
		reportIf(!slices.Contains([]string{replaceOnConflict, failOnConflict}, conf.onConflict),
			"onConflict %q must be %q or %q", conf.onConflict, replaceOnConflict, failOnConflict)
	}
	for f, words := range map[nft.Family][]string{nft.IPv4: raw.ConditionsV4, nft.IPv6: raw.ConditionsV6} {
		if backendOf(words) != "" {
			conf.conditions[f] = words
		}
	}
	errs = append(errs, conf.checkConditions(), conf.chooseBackend())
	for i, m := range raw.RuntimeConfig.PortMappings {
		checked, err := m.check(i)
		errs = append(errs, err)
		conf.mappings = append(conf.mappings, checked)
	}
	return conf, errors.Join(errs...)
}

// check returns the checked mapping. The error joins all problems, each with the index i of the mapping.
func (raw *rawMapping) check(i int) (mapping, error) {
	if raw == nil {
		return mapping{}, fmt.Errorf("runtimeConfig.portMappings[%d]: want an object, got null", i)
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	at := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
	reportIf(raw.HostPort < 1 || raw.HostPort > 65535, "%s.hostPort: Invalid host port number: %d; want 1 to 65535", at, raw.HostPort)
	reportIf(raw.ContainerPort < 1 || raw.ContainerPort > 65535, "%s.containerPort: Invalid container port number: %d; want 1 to 65535", at, raw.ContainerPort)
	m := mapping{hostPort: uint16(raw.HostPort), containerPort: uint16(raw.ContainerPort)}
	var err error
	m.proto, err = parseProtocol(raw.Protocol)
	reportIf(err != nil, "%s.%w", at, err)
	if raw.HostIP != "" {
		m.hostIP, err = netip.ParseAddr(raw.HostIP)
		reportIf(err != nil || m.hostIP.Zone() != "", "%s.hostIP %q is not an IP address", at, raw.HostIP)
		m.hostIP = m.hostIP.Unmap()
	}
	return m, errors.Join(errs...)
}

// backendOf returns the backend in whose language the conditions are written, or "" if there are
// no conditions. The first word of conditions for iptables begins with "-" or "!".
func backendOf(conditions []string) string {
	switch {
	case len(conditions) == 0 || conditions[0] == "":
		return ""
	case conditions[0][0] == '-' || conditions[0][0] == '!':
		return backendIPTables
	}
	return backendNFTables
}

// checkConditions returns an error for words that could end the rule that they are part of.
func (c *config) checkConditions() error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	for f, conditions := range c.conditions {
		for _, word := range conditions {
			reportIf(hasControl(word) || backendOf(conditions) == backendNFTables && strings.ContainsAny(word, ";#"),
				"%s: %q cannot be part of a condition", conditionsKey(f), word)
		}
	}
	return errors.Join(errs...)
}

func conditionsKey(f nft.Family) string {
	if f == nft.IPv6 {
		return "conditionsV6"
	}
	return "conditionsV4"
}

// hasControl reports whether the string contains a control character, such as a newline.
func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// chooseBackend sets c.backend if the configuration contains an option that only one backend supports.
// It returns an error if the options need different backends, or another backend than the key backend.
func (c *config) chooseBackend() error {
	options := map[string][]string{} // the options that only one backend supports, by backend
	for _, f := range nft.Families() {
		if backend := backendOf(c.conditions[f]); backend != "" {
			options[backend] = append(options[backend], conditionsKey(f))
		}
	}
	if c.externalMarkChain != "" {
		options[backendIPTables] = append(options[backendIPTables], "externalSetMarkChain")
	}
	other := map[string]string{backendNFTables: backendIPTables, backendIPTables: backendNFTables}
	switch {
	case c.backend != "" && other[c.backend] == "":
		return fmt.Errorf("backend %q must be %q or %q, or left out", c.backend, backendNFTables, backendIPTables)
	case c.backend != "" && len(options[other[c.backend]]) > 0:
		return fmt.Errorf("backend: %s backend was requested but configuration contains %s-specific options %v", c.backend, other[c.backend], options[other[c.backend]])
	case len(options[backendNFTables]) > 0 && len(options[backendIPTables]) > 0:
		return fmt.Errorf("backend: configuration contains both nftables-specific options %v and iptables-specific options %v", options[backendNFTables], options[backendIPTables])
	}
	for backend := range options { // there is at most one
		c.backend = backend
	}
	return nil
}

// mappingsOf returns the mappings for packets of the family. Of several mappings with the same
// endpoint, it returns the first.
func (c *config) mappingsOf(f nft.Family) []mapping {
	mappings := make([]mapping, 0, len(c.mappings))
	seen := make(map[endpoint]bool, len(c.mappings))
	for _, m := range c.mappings {
		if e := m.endpoint(f); m.hasFamily(f) && !seen[e] {
			seen[e] = true
			mappings = append(mappings, m)
		}
	}
	return mappings
}
