package pool

import (
	"io/fs"
	"os"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

// readResolvConf returns the resolver configuration in the file at path. If path is empty, the
// configuration is empty. For a named pipe or a socket it returns an error, because to open a named
// pipe would block until there is a writer.
func readResolvConf(path string) (types.DNS, error) {
	if path == "" {
		return types.DNS{}, nil
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		return types.DNS{}, types.Errorf(types.CodeIO, "read resolvConf: %s is not a regular file", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return types.DNS{}, types.Errorf(types.CodeIO, "read resolvConf: %w", err)
	}
	return parseResolvConf(string(text)), nil
}

// parseResolvConf returns the resolver configuration in a text in the format of resolv.conf(5). It
// reads the text as the reference plugin does: it uses the last domain, joins all search and all
// options lines, and ignores unknown lines.
func parseResolvConf(text string) types.DNS {
	var dns types.DNS
	for line := range strings.Lines(text) {
		field := strings.Fields(line)
		if len(field) < 2 || field[0][0] == '#' || field[0][0] == ';' {
			continue
		}
		switch field[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, field[1])
		case "domain":
			dns.Domain = field[1]
		case "search":
			dns.Search = append(dns.Search, field[1:]...)
		case "options":
			dns.Options = append(dns.Options, field[1:]...)
		}
	}
	return dns
}
