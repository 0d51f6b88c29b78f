package doctor

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
)

// A repair is a line in an error of CHECK for which one command is obvious.
type repair struct {
	line    string // a regular expression for the end of the line
	command string // $1 and so on are its parts in parentheses; NETNS is the namespace of the container
}

// repairs returns all repairs. A command with "dev $1" is for the container if $1 is the container's interface. prepend
// keeps a route of another attachment to the same destination, as ADD does.
func repairs() []repair {
	return []repair{
		{`sysctl (\S+) is ".*", not "(\w+)"`, `sysctl -w $1=$2`},
		{`sysctl (net/\S+) of the container is ".*", not "(\w+)"`, `nsenter --net=NETNS sysctl -w $1=$2`},
		{`(?:interface|port|bridge) (\S+) is down`, `ip link set dev $1 up`},
		{`bridge (\S+) is not in promiscuous mode`, `ip link set dev $1 promisc on`},
		{`interface (\S+) is no port of bridge (\S+)`, `ip link set dev $1 master $2`},
		{`port (\S+) has (hairpin|isolated) false, not true`, `ip link set dev $1 type bridge_slave $2 on`},
		{`port (\S+) has (hairpin|isolated) true, not false`, `ip link set dev $1 type bridge_slave $2 off`},
		{`interface (\S+) has no (?:gateway )?address ([\d.]+/\d+)`, `ip address add $2 dev $1`},
		{`interface (\S+) has no (?:gateway )?address ([[:xdigit:]:.]+/\d+)`, `ip address add $2 dev $1 nodad`},
		{`interface (\S+) has no route (\S+)(?:: packets for .*)?`, `ip route prepend $2 dev $1`},
		{`interface (\S+) has no route (\S+) via (\S+)`, `ip route prepend $2 via $3 dev $1`},
	}
}

// mend returns how to mend what an error of an attachment's CHECK names: commands, if each line has one.
func mend(a *node.Attachment, err error) string {
	var commands []string
	for line := range strings.Lines(checkText(err)) {
		line = strings.TrimSpace(line)
		if regexp.MustCompile(`host port \S+/\w+( of IP version .)? belongs to \S+ now$`).MatchString(line) {
			return edit + "give one of the two containers another host port: to replace one of them takes the port from the other"
		}
		command := commandFor(a, line)
		if command == "" {
			return edit + "find out which program changed this, then let the runtime replace the container"
		}
		if !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	return strings.Join(commands, " && ")
}

// commandFor returns the command for a line of an error, or "".
func commandFor(a *node.Attachment, line string) string {
	for _, r := range repairs() {
		parts := regexp.MustCompile(`(?:^|: )` + r.line + `$`).FindStringSubmatch(line)
		if parts == nil {
			continue
		}
		command := r.command
		if strings.Contains(command, "dev $1") && parts[1] == a.IfName {
			command = "nsenter --net=NETNS " + command
		}
		if strings.Contains(command, "address add") && a.InterfacePlugin() == "ptp" { // the node is the only host on the link
			command += " noprefixroute"
		}
		return os.Expand(strings.ReplaceAll(command, "NETNS", node.Quote(a.NetNS)), func(part string) string {
			i, _ := strconv.Atoi(part) // all are numbers
			return node.Quote(parts[i])
		})
	}
	return ""
}

// checkText returns the text of a plugin's error.
func checkText(err error) string {
	var coded *cnitypes.Error
	if errors.As(err, &coded) {
		return strings.TrimSpace(coded.Msg + " " + coded.Details)
	}
	return err.Error()
}
