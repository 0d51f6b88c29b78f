package pool

import (
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// readResolvConf returns the resolver configuration in the file at path. If path is empty, the
// configuration is empty. Errors have types.CodeIO.
func readResolvConf(path string) (types.DNS, error) {
	if path == "" {
		return types.DNS{}, nil
	}
	text, err := hostfile.ReadConfig(path, maxFileSize)
	if err != nil {
		return types.DNS{}, types.Errorf(types.CodeIO, "ipam.resolvConf: %w", err)
	}
	return parseResolvConf(string(text)), nil
}

// parseResolvConf returns the resolver configuration in a text in the format of resolv.conf(5). Like the
// reference plugin, it uses the last line domain, joins the values of all lines search and of all lines
// options, and ignores unknown lines.
func parseResolvConf(text string) types.DNS {
	var dns types.DNS
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns
}
