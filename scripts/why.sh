#!/bin/bash
# why.sh shows what stays on a host after three incidents, first with the reference plugins and then with plumb. It uses
# network namespaces, and does not change the machine's own network, /var/lib/cni or /run.
#
#   scripts/why.sh
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)

# cni VERB NETNS calls cnitool on the host, which is this namespace.
cni() { "$tools/cnitool" "$1" web "/run/netns/$2" >/run/out 2>&1 || sed 's/^/    /' /run/out; }

# gc calls GC of each plugin of the list, as libcni does, with an empty list of valid attachments.
gc() {
	local i type
	for i in 0 1; do
		type=$(jq -r ".plugins[$i].type" /run/net.d/web.conflist)
		jq ".plugins[$i] + {name, cniVersion, \"cni.dev/valid-attachments\": []}" /run/net.d/web.conflist |
			CNI_COMMAND=GC "$bin/$type"
	done
}

# create NAME creates a container that serves HTTP, and attaches it. With --bind, the server does not ask a DNS server, which the
# container cannot reach, for the name of "::".
create() {
	ip netns add "$1"
	ip -n "$1" link set lo up
	cni add "$1"
	ip netns exec "$1" python3 -m http.server --bind 0.0.0.0 --directory /run/net.d 80 >/dev/null 2>&1 &
	server=$!
	until ip netns exec "$1" curl --silent --output /dev/null http://127.0.0.1/; do
		kill -0 "$server"
		sleep 0.05
	done
}

# crash NAME ends the processes of a container, and deletes its namespace, without a DEL.
crash() {
	kill "$server"
	wait "$server" || :
	ip netns delete "$1"
}

# killed_add NAME kills the runtime (cnitool) while the last plugin of the list runs, and deletes the container's namespace.
killed_add() {
	local runtime
	printf '#!/bin/sh\necho $$ >/run/pid.new\nmv /run/pid.new /run/pid\nexec sleep 600\n' >/run/net.d/wait
	chmod +x /run/net.d/wait
	cp /run/net.d/web.conflist /run/web.conflist
	jq '.plugins += [{"type": "wait"}]' /run/web.conflist >/run/net.d/web.conflist
	ip netns add "$1"
	"$tools/cnitool" add web "/run/netns/$1" >/run/out 2>&1 &
	runtime=$!
	until [ -e /run/pid ]; do
		kill -0 "$runtime"
		sleep 0.05
	done
	kill -KILL "$runtime" "$(cat /run/pid)"
	{ wait "$runtime"; } 2>/dev/null || :
	ip netns delete "$1"
	mv /run/web.conflist /run/net.d/web.conflist
}

# left prints reservations, rules and elements that name a container or its address.
left() {
	{
		find /var/lib/cni/networks/web -type f -name "10.*" | sed "s|^|reservation |"
		nft list ruleset | grep -E '10\.30\.0\.[0-9]+ |cnitool-|CNI-[0-9a-f]{8}|CNI-DN-' | sed 's/^[[:space:]]*/rule        /; s/cnitool-[0-9a-f]*/CONTAINER/g; s/ counter packets 0 bytes 0//; s/ {$//' || true
	} 2>/dev/null | sort | awk '{n++} n <= 4 {print "    " substr($0, 1, 110)} END {print n ? "    " n " lines in all" : "    nothing"}'
}

# answers prints whether the host port answers to another host.
answers() { ip netns exec other curl --silent --output /dev/null --max-time 3 http://198.18.0.1:8080/ && echo "    the host port answers" || echo "    the host port does not answer"; }

step() { printf '  %s\n' "$*"; }

# prepare creates the network, and another host.
prepare() {
	mount -t tmpfs none /var/lib
	mkdir -p /run/net.d /run/netns /var/lib/cni
	ip netns add other
	ip link add up0 type veth peer name up0 netns other
	ip address add 198.18.0.1/24 dev up0
	ip link set up0 up
	ip -n other address add 198.18.0.2/24 dev up0
	ip -n other link set up0 up
	export NETCONFPATH=/run/net.d CNI_PATH=$bin:/run/net.d CAP_ARGS='{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}'
	cat >/run/net.d/web.conflist <<-JSON
		{"cniVersion": "1.1.0", "name": "web", "plugins": [
		  {"type": "bridge", "bridge": "web0", "isDefaultGateway": true, "ipMasq": true,
		    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.30.0.0/24"}]]}},
		  {"type": "portmap", "capabilities": {"portMappings": true}}]}
	JSON
}

# These are the incidents. Each runs on a host of its own.
incident1() {
	step "A container crashes, and its namespace is gone before the runtime calls DEL. DEL leaves:"
	create a
	crash a
	cni del a
	left
}

incident2() {
	step "The runtime is killed during ADD, and calls only GC later. GC leaves:"
	killed_add a
	gc
	left
	step "The next container gets the same host port:"
	create b
	answers
}

incident3() {
	step "Another program runs \"nft flush ruleset\":"
	create a
	nft flush ruleset
	answers
	if [ -x "$bin/plumb" ]; then
		step "The operator runs \"plumb repair\":"
		"$bin/plumb" repair --conf-dir /run/net.d --cni-path "$bin" --cache-dir /var/lib/cni >/run/out 2>&1 || :
		tail -n 1 /run/out | sed 's/^/    /'
		answers
	fi
}

if [ "${1:-}" = --inside ]; then
	bin=$2 tools=$3
	server=''
	trap '[ -z "$server" ] || kill "$server" 2>/dev/null || :' EXIT
	prepare
	"$4"
	exit
fi
[ $# = 0 ] || {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
"$top/scripts/need.sh" ip:iproute2 nft:nftables iptables:iptables curl:curl jq:jq python3:python3
# shellcheck source=scripts/go.sh
. "$top/scripts/go.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
plumb=${PLUMB_BIN:-$work/plumb}
[ -n "${PLUMB_BIN:-}" ] || "$top/build_linux.sh" "$plumb" >/dev/null
(cd "$top" && CGO_ENABLED=0 go build -o "$work/cnitool" github.com/containernetworking/cni/cnitool)
reference=${CNI_REFERENCE:-$("$top/scripts/programs.sh" reference)}
for bin in "$reference" "$plumb"; do
	[ "$bin" = "$plumb" ] && echo plumb || echo "reference plugins $("$bin/bridge" 2>&1 | sed -n 's/^CNI bridge plugin //p')"
	for incident in incident1 incident2 incident3; do
		"$top/scripts/sandbox.sh" "$0" --inside "$bin" "$work" "$incident"
	done
done
