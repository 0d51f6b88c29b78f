#!/bin/bash
# quickstart.sh demonstrates plumb. It builds the plugins, creates network namespaces for a host, two
# containers and an outside host, attaches the containers to a bridge with cnitool, tests the
# connections between all of them, and removes everything.
#
#   scripts/quickstart.sh           run the demonstration
#   scripts/quickstart.sh --keep    run it, and keep the namespaces
#   scripts/quickstart.sh --clean   remove what --keep left
#
# It does not change the machine's own network namespace, /var/lib/cni, /etc/cni or /opt/cni. All
# files are in /run/plumb-quickstart.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
state=/run/plumb-quickstart
host=plumb-host outside=plumb-outside
containers=(red blue)

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
bold='' plain=''
[ ! -t 1 ] || bold=$'\033[1m' plain=$'\033[0m'
step() { printf '\n%s==> %s%s\n' "$bold" "$*" "$plain"; }
say() { printf '    %s\n' "$*"; }
indent() { sed 's/^/    /'; }
die() {
	printf 'quickstart.sh: %s\n' "$*" >&2
	exit 1
}

# cnitool COMMAND CONTAINER runs cnitool on the host, in a mount namespace with another /var/lib, because
# cnitool always caches in /var/lib/cni.
# shellcheck disable=SC2016 # expanded by the inner shell
cnitool() {
	nsenter --net="/run/netns/$host" unshare --mount sh -c '
		state=$1 && shift
		mount --bind "$state/var-lib" /var/lib
		NETCONFPATH=$state/conf CNI_PATH=$state/bin exec "$state/cnitool" "$@"' \
		sh "$state" "$1" demo "/run/netns/plumb-$2"
}

# on NAMESPACE COMMAND… runs a command in a network namespace.
on() { nsenter --net="/run/netns/$1" "${@:2}"; }

addresses() { ip -n "$1" -brief address show dev "$2" scope global | tr -s ' ' | cut -d' ' -f3- | sed 's/ *$//'; }
address() { addresses "$1" "$2" | tr ' ' '\n' | grep -m1 "$3" | cut -d/ -f1; }

build() {
	step "Build the plugins, and cnitool in the version of go.mod"
	# shellcheck source=scripts/go.sh
	. "$top/scripts/go.sh"
	"$top/build_linux.sh" "$state/bin" | indent
	(cd "$top" && go build -o "$state/cnitool" github.com/containernetworking/cni/cnitool)
}

create_namespaces() {
	step "Create network namespaces for a host, two containers and an outside host"
	for ns in "$host" "$outside" "${containers[@]/#/plumb-}"; do
		ip netns add "$ns"
	done
	ip -n "$host" link set lo up
	ip -n "$host" link add uplink0 type veth peer name uplink0 netns "$outside"
	local end
	for end in "$host 1" "$outside 2"; do
		set -- "${end% *}" "${end#* }"
		ip -n "$1" address add "198.18.0.$2/24" dev uplink0
		ip -n "$1" address add "2001:db8:18::$2/64" dev uplink0 nodad
		ip -n "$1" link set uplink0 up
	done
	say "host 198.18.0.1 2001:db8:18::1 -- uplink0 -- outside 198.18.0.2 2001:db8:18::2"
	say "The outside host has no route to the containers."
}

write_network() {
	step "Write the configuration $state/conf/demo.conflist"
	cat >"$state/conf/demo.conflist" <<-JSON
		{
		  "cniVersion": "1.1.0",
		  "name": "demo",
		  "plugins": [
		    {
		      "type": "bridge",
		      "bridge": "cni0",
		      "isGateway": true,
		      "ipMasq": true,
		      "ipam": {
		        "type": "host-local",
		        "dataDir": "$state/leases",
		        "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]],
		        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
		      }
		    }
		  ]
		}
	JSON
	indent <"$state/conf/demo.conflist"
}

attach() {
	step "cnitool add demo: attach $1"
	cnitool add "$1" >"$state/$1.json" || {
		indent <"$state/$1.json" >&2
		die "attaching $1 failed"
	}
	say "$1 has the addresses $(addresses "plumb-$1" eth0). Output of ip:"
	{
		ip -n "plumb-$1" -brief address show dev eth0
		ip -n "plumb-$1" route show
		ip -n "plumb-$1" -6 route show default
	} | indent
	cnitool check "$1" || die "CHECK of $1 failed"
	say "CHECK succeeds. The result of ADD is in $state/$1.json."
}

show_host() {
	step "Show the interfaces on the host"
	{
		ip -n "$host" -brief link show master cni0
		ip -n "$host" -brief address show dev cni0
		ip -n "$host" link show master cni0 | awk '/^[0-9]/ { sub(/@.*/, "", $2); name = $2 } /^ *alias/ { print name " belongs to " $2 }'
	} | indent
}

# reach FROM TO ADDRESS pings an address from a container.
reach() {
	local took
	took=$(on "plumb-$1" ping -n -c 1 -W 3 "$3" | sed -n 's/.*time=//p') || true
	printf '    %-5s -> %-8s %-16s %s\n' "$1" "$2" "$3" "${took:-NO ANSWER}"
	[ -n "$took" ] || failed=1
}

show_reach() {
	step "Test the connections (ping, one packet each)"
	failed=''
	local family
	for family in '\.' ':'; do
		reach red blue "$(address plumb-blue eth0 "$family")"
		reach blue red "$(address plumb-red eth0 "$family")"
		reach red gateway "$(address "$host" cni0 "$family")"
		reach red outside "$(address "$outside" uplink0 "$family")"
	done
	[ -z "$failed" ] || die "some addresses did not answer"
	say "The outside host can answer because the host masquerades the packets as 198.18.0.1 and 2001:db8:18::1."
}

detach() {
	step "cnitool del demo: detach both containers"
	local c
	for c in "${containers[@]}"; do
		cnitool del "$c" || die "detaching $c failed"
	done
	local ports leases
	ports=$(ip -n "$host" -brief link show master cni0 | wc -l)
	leases=$(find "$state/leases" -name .plumb -prune -o -type f -name '[0-9a-f]*[.:]*' -print | wc -l) # files named as addresses
	[ "$ports$leases" = 00 ] || die "left: $ports ports on cni0, $leases reservations"
	say "No port of cni0 and no reservation are left."
}

explain() {
	cat <<-TEXT

		The script keeps the network namespaces ${containers[*]/#/plumb-}, $host and $outside. Try these commands:

		    ip netns exec plumb-red ip address
		    ip netns exec plumb-red ping $(address plumb-blue eth0 '\.')
		    ip netns exec $host nft list ruleset
		    ip netns exec $host ip -d link show master cni0
		    scripts/exec-plugin.sh --help        # run one plugin: --bin $state/bin --host $host

		scripts/quickstart.sh --clean removes everything.
	TEXT
}

# clean removes the namespaces and files that exist.
clean() {
	local ns
	for ns in "${containers[@]/#/plumb-}" "$host" "$outside"; do
		[ ! -e "/run/netns/$ns" ] || ip netns delete "$ns"
	done
	rm -rf "$state"
}

keep=''
case ${1:-} in
'') ;;
--keep) keep=1 ;;
--clean) ;;
-h | --help) usage && exit ;;
*) die "unknown argument $1 (see --help)" ;;
esac
[ "$(id -u)" = 0 ] || die "only root can create network namespaces: sudo $0 $*"
if [ "${1:-}" = --clean ]; then
	clean
	echo "Removed all namespaces and files of the quickstart."
	exit
fi
[ ! -e "$state" ] || die "an earlier run kept its namespaces; scripts/quickstart.sh --clean removes them"

[ -n "$keep" ] || trap 'clean && echo && echo "Removed all namespaces and files."' EXIT
mkdir -p "$state/conf" "$state/var-lib/cni" "$state/bin"
"$top/scripts/need.sh" ip:iproute2 ping:iputils-ping | indent
build
create_namespaces
write_network
step "cnitool status demo: check that the network can be used"
cnitool status red || die "STATUS failed"
say "STATUS succeeds."
for c in "${containers[@]}"; do
	attach "$c"
done
show_host
show_reach
if [ -n "$keep" ]; then
	explain
else
	detach
fi
printf '\n%splumb works on this machine.%s\n' "$bold" "$plain"
