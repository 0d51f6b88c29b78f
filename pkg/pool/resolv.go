package pool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// readResolvConf returns the resolver configuration in the file at path. If path is empty, the
// configuration is empty. Errors have types.CodeIO.
func readResolvConf(path string) (types.DNS, error) {
	if path == "" {
		return types.DNS{}, nil
	}
	text, err := readSmallFile(path)
	if err != nil {
		return types.DNS{}, types.Errorf(types.CodeIO, "read resolvConf: %w", err)
	}
	return parseResolvConf(string(text)), nil
}

// readSmallFile returns the content of the file at path, which may be a symbolic link. It does not wait for
// the writer of a named pipe. The file may be a device, because /dev/null is a usual resolvConf without
// content. The limit is for endless devices such as /dev/zero.
func readSmallFile(path string) ([]byte, error) {
	f, err := workingDir.open(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s is a socket", path)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		err = fmt.Errorf("%s is a named pipe", path)
	}
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(text) > maxFileSize {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFileSize)
	}
	return text, err
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
