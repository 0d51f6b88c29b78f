package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/daemon"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	IPAM *rawIPAM `json:"ipam"`
}

type rawIPAM struct {
	Type             string       `json:"type"`
	DaemonSocketPath string       `json:"daemonSocketPath"`
	Priority         int          `json:"priority"`
	Provide          []rawProvide `json:"provide"`
	Request          []rawRequest `json:"request"`
	ClientID         string       `json:"clientID"`
	MTU              bool         `json:"mtu"`
	Probe            bool         `json:"probe"`
	Timeout          int          `json:"timeout"`
}

type rawProvide struct {
	Option  string `json:"option"`
	Value   string `json:"value"`
	FromArg string `json:"fromArg"`
}

type rawRequest struct {
	Option      string `json:"option"`
	SkipDefault bool   `json:"skipDefault"`
}

// config is the validated configuration.
type config struct {
	socket string
	// ignoresRequest reports whether the runtime or the user requests an address, which no DHCP option contains.
	ignoresRequest bool
	timeout        time.Duration // limit of ADD; if it is 0, the daemon chooses the limit
	settings       daemon.Settings
}

// Codes of DHCP options (RFC 2132).
const (
	optionPad      = 0
	optionMask     = 1
	optionClientID = 61
	optionEnd      = 255
)

// optionNames maps the names that the reference plugin accepts to codes (RFC 2132, RFC 3004).
var optionNames = map[string]uint8{
	"subnet-mask": optionMask, "routers": 3, "host-name": 12, "vendor-class-identifier": 60,
	"dhcp-client-identifier": optionClientID, "user-class": 77,
}

// ownOptions lists the options that the client itself sets, which are the requested address, overload, the message type,
// the server identifier, and the list of requested options.
var ownOptions = []uint8{50, 52, 53, 54, 55}

// maxTimeout is the largest timeout of ADD, in seconds. plumb's interface plugins wait for at most 240 s.
const maxTimeout = 200

// maxValue is the largest length of an option's value, in bytes.
const maxValue = 255

// An input contains the values from which the method config builds a config.
type input struct {
	raw   *rawIPAM
	args  types.Args // CNI_ARGS
	owner types.Attachment
}

// parse reads and validates the configuration and CNI_ARGS. Errors for invalid values carry types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	args, err := r.AnyArgs()
	if err != nil {
		return nil, err
	}
	conf, err := input{raw.IPAM, args, r.Attachment()}.toConfig()
	if err != nil {
		return nil, types.Coded(types.CodeConfig, err)
	}
	isProvided := slices.ContainsFunc(raw.IPAM.Provide, func(p rawProvide) bool { return p.FromArg == types.ArgIP })
	conf.ignoresRequest = args[types.ArgIP] != "" && !isProvided || requestsAddress(r)
	return conf, nil
}

// requestsAddress reports whether the configuration contains ips in runtimeConfig or args.cni, as host-local reads them.
func requestsAddress(r *skel.Request) bool {
	var keys struct {
		Args          struct{ CNI struct{ IPs []any } }
		RuntimeConfig struct{ IPs []any }
	}
	_ = types.Decode(r.Stdin, &keys) // keys of another type have no effect, either
	return len(keys.Args.CNI.IPs)+len(keys.RuntimeConfig.IPs) > 0
}

// parseSocket reads the path of the socket, which is the only key that DEL and GC need.
func parseSocket(r *skel.Request) (string, error) {
	var raw struct {
		IPAM struct {
			DaemonSocketPath string `json:"daemonSocketPath"`
		} `json:"ipam"`
	}
	if err := types.Decode(r.Stdin, &raw); err != nil {
		return "", err
	}
	socket, err := socketPath(raw.IPAM.DaemonSocketPath)
	return socket, types.Coded(types.CodeConfig, err)
}

// socketPath returns the path, or the default path if it is empty.
func socketPath(path string) (string, error) {
	path = daemon.SocketPath(path)
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("ipam.daemonSocketPath %q is not an absolute path", path)
	}
	return path, nil
}

// toConfig validates the input and returns all problems in one error.
func (in input) toConfig() (*config, error) {
	if in.raw == nil {
		return nil, types.ErrNoIPAM
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(in.raw.Priority < 0 || int64(in.raw.Priority) > 1<<32-1, "ipam.priority %d must be between 0 and %d", in.raw.Priority, int64(1<<32-1))
	reportIf(in.raw.Timeout < 0 || in.raw.Timeout > maxTimeout, "ipam.timeout %d must be between 0 and %d seconds", in.raw.Timeout, maxTimeout)
	socket, socketErr := socketPath(in.raw.DaemonSocketPath)
	options, optionsErr := in.providedOptions()
	requestedCodes, askedErr := in.requestedCodes()
	conf := &config{
		socket: socket, timeout: time.Duration(in.raw.Timeout) * time.Second,
		settings: daemon.Settings{
			ID: in.clientID(), Options: options, Ask: requestedCodes,
			Priority: in.raw.Priority, SetMTU: in.raw.MTU, Probe: in.raw.Probe,
		},
	}
	return conf, errors.Join(append(errs, socketErr, optionsErr, askedErr)...)
}

// clientID returns the content of option 61, or nil if the interface's MAC identifies the client. The content is a zero byte,
// which means that no hardware address follows (RFC 2132, section 9.14), and at most 254 bytes of text.
func (in input) clientID() []byte {
	text := in.raw.ClientID
	switch namespace, pod := in.args["K8S_POD_NAMESPACE"], in.args["K8S_POD_NAME"]; {
	case text == "mac":
		return nil
	case text == "name" && namespace != "" && pod != "":
		text = namespace + "/" + pod
	case text == "name":
		text = in.owner.ContainerID
	case text == "": // the reference plugin's identifier
		text = in.owner.ContainerID + "/" + in.owner.Network + "/" + in.owner.IfName
	}
	return append([]byte{0}, text[:min(len(text), maxValue-1)]...)
}

// providedOptions returns the options to send. It omits an option if neither the configuration nor CNI_ARGS contains
// its value.
func (in input) providedOptions() ([]dhcp4.Option, error) {
	var options []dhcp4.Option
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	for i, p := range in.raw.Provide {
		code, err := parseOption(p.Option)
		if err != nil {
			errs = append(errs, fmt.Errorf("ipam.provide[%d].%w", i, err))
		}
		value := cmp.Or(in.args[p.FromArg], p.Value)
		reportIf(slices.Contains(ownOptions, code), "ipam.provide[%d].option %d is set by the client itself", i, code)
		reportIf(p.Value == "" && p.FromArg == "", "ipam.provide[%d]: neither value nor fromArg is set", i)
		reportIf(len(value) > maxValue, "ipam.provide[%d].value of option %s must be at most %d bytes long, got %d", i, p.Option, maxValue, len(value))
		reportIf(slices.ContainsFunc(options, func(o dhcp4.Option) bool { return o.Code == code }), "ipam.provide[%d].option %s is listed twice", i, p.Option)
		if value != "" {
			options = append(options, dhcp4.Option{Code: code, Value: []byte(value)})
		}
	}
	return options, errors.Join(errs...)
}

// requestedCodes returns the codes of the options to request, without duplicates. It returns at least one code.
func (in input) requestedCodes() ([]byte, error) {
	var errs []error
	var requestedCodes []byte
	if !slices.ContainsFunc(in.raw.Request, func(r rawRequest) bool { return r.SkipDefault }) {
		requestedCodes = slices.Clone(dhcp4.DefaultRequest)
	}
	for i, r := range in.raw.Request {
		if r.Option == "" && r.SkipDefault {
			continue
		}
		code, err := parseOption(r.Option)
		if err != nil {
			errs = append(errs, fmt.Errorf("ipam.request[%d].%w", i, err))
		} else if !slices.Contains(requestedCodes, code) {
			requestedCodes = append(requestedCodes, code)
		}
	}
	if len(requestedCodes) == 0 { // with an empty list, the client would request its defaults
		requestedCodes = []byte{optionMask}
	}
	return requestedCodes, errors.Join(errs...)
}

func parseOption(s string) (uint8, error) {
	if code, known := optionNames[s]; known {
		return code, nil
	}
	code, err := strconv.ParseUint(s, 10, 8)
	if err != nil || code == optionPad || code == optionEnd {
		return 0, fmt.Errorf("option %q is neither a known name nor a number from 1 to 254", s)
	}
	return uint8(code), nil
}
