package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	rawLimits
	Latency       *int `json:"latency"`
	RuntimeConfig struct {
		Bandwidth rawLimits `json:"bandwidth"`
	} `json:"runtimeConfig"`
}

// rawLimits contains the keys that both the configuration and the runtime can set. Ingress is what the
// container receives, and egress is what it sends.
type rawLimits struct {
	IngressRate     uint64   `json:"ingressRate"`
	IngressBurst    uint64   `json:"ingressBurst"`
	EgressRate      uint64   `json:"egressRate"`
	EgressBurst     uint64   `json:"egressBurst"`
	UnshapedSubnets []string `json:"unshapedSubnets"`
	ShapedSubnets   []string `json:"shapedSubnets"`
}

// config is the validated configuration with all defaults set.
type config struct {
	ingress, egress limit
	latency         time.Duration
	traffic         traffic
}

// A limit is a rate in bits per second (zero means no limit) and a burst in bits.
type limit struct{ rate, burst uint64 }

// traffic selects the packets to shape by the address that is not the container's.
type traffic struct {
	scope   scope
	subnets []netip.Prefix
}

type scope int

const (
	shapeAll    scope = iota // all packets
	shapeExcept              // all packets, except packets from or to the subnets
	shapeOnly                // shapeOnly packets from or to the subnets
)

const (
	defaultLatency = 25 * time.Millisecond
	maxLatency     = 60_000    // in milliseconds
	minRate        = 8         // in bits per second, because the kernel counts bytes
	maxBurst       = 1<<32 - 1 // in bytes; the reference plugin has the same limit
	// maxRate is the highest rate, in bits per second, at which the bytes of one tick (nl.TickNanoseconds) do not
	// overflow 64 bits in the kernel (psched_ns_t2l), which otherwise answers EINVAL.
	maxRate = 1<<61 - 1
)

func (c *config) hasLimit() bool { return c.ingress.rate != 0 || c.egress.rate != 0 }

// parse reads and validates the configuration. Errors for invalid values carry types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	conf, err := raw.toConfig()
	return conf, types.Coded(types.CodeConfig, err)
}

// toConfig validates the configuration and returns all problems in one error.
func (raw *rawConfig) toConfig() (*config, error) {
	chosenLimits, at, subnetsAt := raw.chosenLimits()
	traffic, trafficErr := chosenLimits.traffic(subnetsAt)
	latency, latencyErr := raw.latency()
	conf := &config{
		ingress: limit{chosenLimits.IngressRate, chosenLimits.IngressBurst},
		egress:  limit{chosenLimits.EgressRate, chosenLimits.EgressBurst},
		latency: latency,
		traffic: traffic,
	}
	return conf, errors.Join(conf.ingress.validate(at+"ingress"), conf.egress.validate(at+"egress"), trafficErr, latencyErr)
}

// chosenLimits returns the configuration's limits if one of its four numbers is not zero, and otherwise the runtime's
// limits. The configuration's subnets apply to the runtime's limits as well, unless the runtime passes subnets. at and
// subnetsAt are the beginnings of the keys of the numbers and of the subnets.
func (raw *rawConfig) chosenLimits() (l rawLimits, at, subnetsAt string) {
	const ofRuntime = "runtimeConfig.bandwidth."
	own, runtime := raw.rawLimits, raw.RuntimeConfig.Bandwidth
	if own.IngressRate|own.IngressBurst|own.EgressRate|own.EgressBurst != 0 {
		return own, "", ""
	}
	if runtime.UnshapedSubnets == nil && runtime.ShapedSubnets == nil {
		runtime.UnshapedSubnets, runtime.ShapedSubnets = own.UnshapedSubnets, own.ShapedSubnets
		return runtime, ofRuntime, ""
	}
	return runtime, ofRuntime, ofRuntime
}

// validate returns an error for an invalid limit. prefix is the beginning of its two keys.
func (l limit) validate(prefix string) error {
	switch {
	case l.rate == 0 && l.burst == 0:
		return nil
	case l.burst == 0:
		return fmt.Errorf("%[1]sBurst is missing; set it together with %[1]sRate", prefix)
	case l.rate == 0:
		return fmt.Errorf("%[1]sRate is missing; set it together with %[1]sBurst", prefix)
	}
	var errs []error
	if l.rate < minRate || l.rate > maxRate {
		errs = append(errs, fmt.Errorf("%sRate %d must be between %d and %d bit/s", prefix, l.rate, minRate, uint64(maxRate)))
	}
	if l.burst/8 >= maxBurst {
		errs = append(errs, fmt.Errorf("%sBurst %d: burst cannot be more than 4GB", prefix, l.burst))
	}
	return errors.Join(errs...)
}

func (raw *rawLimits) traffic(at string) (traffic, error) {
	unshaped, unshapedErr := parseSubnets(at+"unshapedSubnets", raw.UnshapedSubnets)
	shaped, shapedErr := parseSubnets(at+"shapedSubnets", raw.ShapedSubnets)
	err := errors.Join(unshapedErr, shapedErr)
	switch {
	case len(raw.UnshapedSubnets) > 0 && len(raw.ShapedSubnets) > 0:
		return traffic{}, errors.Join(err, fmt.Errorf("%sunshapedSubnets %q and shapedSubnets %q exclude each other; set only one of them", at, raw.UnshapedSubnets, raw.ShapedSubnets))
	case len(unshaped) > 0:
		return traffic{shapeExcept, unshaped}, err
	case len(shaped) > 0:
		return traffic{shapeOnly, shaped}, err
	}
	return traffic{}, err
}

func parseSubnets(key string, texts []string) ([]netip.Prefix, error) {
	var subnets []netip.Prefix
	var errs []error
	for i, text := range texts {
		p, err := types.ParseCIDR(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s[%d]: %q is not a subnet; write it like 10.0.0.0/8 or fd00::/8", key, i, text))
			continue
		}
		subnets = append(subnets, p.Masked())
	}
	return subnets, errors.Join(errs...)
}

func (raw *rawConfig) latency() (time.Duration, error) {
	if raw.Latency == nil {
		return defaultLatency, nil
	}
	if ms := *raw.Latency; ms < 1 || ms > maxLatency {
		return 0, fmt.Errorf("latency %d must be between 1 and %d milliseconds", ms, maxLatency)
	}
	return time.Duration(*raw.Latency) * time.Millisecond, nil
}
