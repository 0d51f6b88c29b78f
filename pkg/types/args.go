package types

import (
	"slices"
	"strings"
)

// Args is the content of CNI_ARGS.
type Args map[string]string

// The keys of CNI_ARGS that the plugins read, which CONVENTIONS.md, the reference plugins and
// awslabs/tc-redirect-tap define.
const (
	ArgIP            = "IP"
	ArgGateway       = "GATEWAY"
	ArgMAC           = "MAC"
	ArgTapName       = "TC_REDIRECT_TAP_NAME"
	ArgTapOwner      = "TC_REDIRECT_TAP_UID"
	ArgTapGroup      = "TC_REDIRECT_TAP_GID"
	argIgnoreUnknown = "IgnoreUnknown"
)

// ParseArgs parses s as ParseAnyArgs does, but returns an error with CodeEnvironment for an unknown key, unless
// IgnoreUnknown is 1 or true.
func ParseArgs(s string) (Args, error) {
	args, err := ParseAnyArgs(s)
	if err != nil {
		return nil, err
	}
	var unknown []string
	switch strings.ToLower(args[argIgnoreUnknown]) {
	case "1", "true":
		return args, nil
	case "", "0", "false":
	default:
		return nil, Errorf(CodeEnvironment, "CNI_ARGS: IgnoreUnknown: want 1, 0, true or false, got %q", args[argIgnoreUnknown])
	}
	for key := range args {
		if !slices.Contains([]string{ArgIP, ArgGateway, ArgMAC, ArgTapName, ArgTapOwner, ArgTapGroup, argIgnoreUnknown}, key) {
			unknown = append(unknown, key+"="+args[key])
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, Errorf(CodeEnvironment, "ARGS: unknown args %q; add IgnoreUnknown=1 to accept them", unknown)
	}
	return args, nil
}

// ParseAnyArgs parses "K=V;K=V". Keys are case-sensitive. Errors have CodeEnvironment.
func ParseAnyArgs(s string) (Args, error) {
	args := Args{}
	for pair := range strings.SplitSeq(s, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, Errorf(CodeEnvironment, "CNI_ARGS: %q is not KEY=VALUE", pair)
		}
		args[key] = value
	}
	return args, nil
}
