package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as a person writes it. README.md explains each key.
type rawConfig struct {
	Backend              string   `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain string   `json:"externalSetMarkChain"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	RuntimeConfig        struct {
		PortMappings []*rawMapping `json:"portMappings"` // nil: null
	} `json:"runtimeConfig"`
}

type rawMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// config is what the verbs work with: everything checked, every default set.
type config struct {
	backend  string // empty: the better one that the kernel has
	snat     bool
	masqAll  bool   // only with snat
	markBit  int    // of the packet's mark: "masquerade this"
	setMark  string // the chain that marks; empty: our own
	tokens   map[nft.Family][]string
	mappings []mapping
}

// The backends.
const (
	nftables = "nftables"
	iptables = "iptables"
)

// A mapping sends packets for a port of the node to a port of the container.
type mapping struct {
	proto         protocol
	hostIP        netip.Addr // zero: any address; unspecified: any one of its family
	hostPort      uint16
	containerPort uint16
}

// A protocol is its number over IP.
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
	return 0, fmt.Errorf("protocol %q is none of tcp, udp, sctp", s)
}

// in reports whether the mapping is for packets of the family.
func (m mapping) in(f nft.Family) bool {
	return !m.hostIP.IsValid() || m.hostIP.Is4() == (f == nft.IPv4)
}

// everywhere reports whether the mapping is for all addresses of the node.
func (m mapping) everywhere() bool { return !m.hostIP.IsValid() || m.hostIP.IsUnspecified() }

func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	conf, err := raw.config()
	if r.Command == "ADD" && raw.MasqAll && !conf.snat {
		r.Warn("masqAll does nothing where snat is false: no packet to a host port is masqueraded")
	}
	return conf, types.Coded(types.CodeConfig, err)
}

// config checks everything and reports all problems at once.
func (raw *rawConfig) config() (*config, error) {
	conf := &config{
		backend: raw.Backend,
		snat:    raw.SNAT == nil || *raw.SNAT,
		markBit: defaultMarkBit,
		setMark: raw.ExternalSetMarkChain,
		tokens:  map[nft.Family][]string{},
	}
	conf.masqAll = raw.MasqAll && conf.snat
	var errs []error
	refuseIf := types.ProblemsInto(&errs)
	if raw.MarkMasqBit != nil {
		conf.markBit = *raw.MarkMasqBit
		refuseIf(conf.markBit < 0 || conf.markBit > 31, "markMasqBit %d is not between 0 and 31", conf.markBit)
		refuseIf(conf.setMark != "", "markMasqBit and externalSetMarkChain exclude each other: the chain sets the bit that its owner masquerades")
	}
	refuseIf(unclean(conf.setMark) || strings.ContainsAny(conf.setMark, ` "'\`) || language([]string{conf.setMark}) == iptables,
		"externalSetMarkChain %q is no name of a chain", conf.setMark)
	for f, tokens := range map[nft.Family][]string{nft.IPv4: raw.ConditionsV4, nft.IPv6: raw.ConditionsV6} {
		if language(tokens) != "" {
			conf.tokens[f] = tokens
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

// check names the mapping in all that is wrong with it.
func (raw *rawMapping) check(i int) (mapping, error) {
	if raw == nil {
		return mapping{}, fmt.Errorf("portMappings[%d] is null: want an object", i)
	}
	var errs []error
	refuseIf := types.ProblemsInto(&errs)
	where := fmt.Sprintf("portMappings[%d], host port %d to container port %d", i, raw.HostPort, raw.ContainerPort)
	refuseIf(raw.HostPort < 1 || raw.HostPort > 65535, "Invalid host port number: %d (%s; want 1 to 65535)", raw.HostPort, where)
	refuseIf(raw.ContainerPort < 1 || raw.ContainerPort > 65535, "Invalid container port number: %d (%s; want 1 to 65535)", raw.ContainerPort, where)
	m := mapping{hostPort: uint16(raw.HostPort), containerPort: uint16(raw.ContainerPort)}
	var err error
	m.proto, err = parseProtocol(raw.Protocol)
	refuseIf(err != nil, "%s: %w", where, err)
	if raw.HostIP != "" {
		m.hostIP, err = netip.ParseAddr(raw.HostIP)
		refuseIf(err != nil || m.hostIP.Zone() != "", "%s: hostIP %q is no IP address", where, raw.HostIP)
		m.hostIP = m.hostIP.Unmap()
	}
	return m, errors.Join(errs...)
}

// language tells the conditions of the two backends apart by their first word; empty:
// there are none.
func language(tokens []string) string {
	switch {
	case len(tokens) == 0 || tokens[0] == "":
		return ""
	case tokens[0][0] == '-' || tokens[0][0] == '!':
		return iptables
	}
	return nftables
}

// checkConditions refuses what would not stay within its rule.
func (c *config) checkConditions() error {
	var errs []error
	refuseIf := types.ProblemsInto(&errs)
	for f, tokens := range c.tokens {
		for _, token := range tokens {
			refuseIf(unclean(token) || language(tokens) == nftables && strings.ContainsAny(token, ";#"),
				"%s: %q is no part of a condition", conditionsKey(f), token)
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

func unclean(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// chooseBackend takes the one that the options speak the language of.
func (c *config) chooseBackend() error {
	options := map[string][]string{}
	for _, f := range families() {
		if l := language(c.tokens[f]); l != "" {
			options[l] = append(options[l], conditionsKey(f))
		}
	}
	if c.setMark != "" {
		options[iptables] = append(options[iptables], "externalSetMarkChain")
	}
	other := map[string]string{nftables: iptables, iptables: nftables}
	switch {
	case c.backend != "" && other[c.backend] == "":
		return fmt.Errorf("unknown backend %q: must be %q or %q, or left out", c.backend, nftables, iptables)
	case c.backend != "" && len(options[other[c.backend]]) > 0:
		return fmt.Errorf("%s backend was requested but configuration contains %s-specific options %v", c.backend, other[c.backend], options[other[c.backend]])
	case len(options[nftables]) > 0 && len(options[iptables]) > 0:
		return fmt.Errorf("configuration contains both nftables-specific options %v and iptables-specific options %v", options[nftables], options[iptables])
	}
	for backend := range options {
		c.backend = backend
	}
	return nil
}

// families are those that a container may have addresses of.
func families() []nft.Family { return []nft.Family{nft.IPv4, nft.IPv6} }

// familyOf is the family of an address.
func familyOf(a netip.Addr) nft.Family {
	if a.Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// forFamily are the mappings for packets of the family, each port of an address once:
// of two that name one, the first counts.
func (c *config) forFamily(f nft.Family) []mapping {
	out := make([]mapping, 0, len(c.mappings))
	taken := make(map[slot]bool, len(c.mappings))
	for _, m := range c.mappings {
		if s := m.slot(f); m.in(f) && !taken[s] {
			taken[s] = true
			out = append(out, m)
		}
	}
	return out
}
