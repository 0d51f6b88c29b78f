#!/bin/bash
# quickstart.sh demonstrates cluster-local. It builds the plugins and etcd, creates network
# namespaces for three nodes on one L2 segment, starts an etcd member on each, attaches containers, shows
# the node and the container of each address, kills an etcd member, attaches more containers, and removes
# everything.
#
#   plugins/cluster-local/quickstart.sh                       run the demonstration
#   plugins/cluster-local/quickstart.sh --kubernetes          run it with cluster-local-kubernetes, and an API server on n1
#   plugins/cluster-local/quickstart.sh [--kubernetes] --keep run it, and keep namespaces and etcd
#   plugins/cluster-local/quickstart.sh --clean               remove what --keep left
#
# It does not change the machine's own network namespace, /var/lib/cni, /etc/cni or /opt/cni. All
# files are in /run/plumb-quickstart-cluster. The first build of etcd takes a minute or two, and the first build of the API
# server takes about four minutes.
set -euo pipefail

top=$(cd "$(dirname "$0")/../.." && pwd)
state=/run/plumb-quickstart-cluster
nodes=(n1 n2 n3)
containers=(red:n1 green:n2 blue:n3 white:n1 black:n2 gold:n3) # with their nodes
address_of() { echo "10.77.0.${1#n}"; }

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

# on NODE COMMAND… runs a command in the network namespace of a node or container.
on() { nsenter --net="/run/netns/plumb-$1" "${@:2}"; }

# cnitool COMMAND CONTAINER NODE runs cnitool on the node, in a mount namespace with another /var/lib, because
# cnitool always caches in /var/lib/cni.
# shellcheck disable=SC2016 # expanded by the inner shell
cnitool() {
	on "$3" unshare --mount sh -c '
		state=$1 node=$2 && shift 2
		mount --bind "$state/$node/var-lib" /var/lib
		NETCONFPATH=$state/$node/conf CNI_PATH=$state/bin exec "$state/cnitool" "$@"' \
		sh "$state" "$3" "$1" demo "/run/netns/plumb-$2"
}

build() {
	step "Build the plugins, and cnitool and etcd in the versions of their go.mod"
	# shellcheck source=scripts/go.sh
	. "$top/scripts/go.sh"
	"$top/build_linux.sh" "$state/bin" | grep -E 'bridge|cluster-local' | indent
	(cd "$top" && go build -o "$state/cnitool" github.com/containernetworking/cni/cnitool)
	go -C "$top/plugins/cluster-local/test" build -buildvcs=false -o "$state/etcd" ./etcd
	[ -z "$kubernetes" ] || cp "$("$top/scripts/programs.sh" kubernetes kube-apiserver)/kube-apiserver" "$state/"
}

create_namespaces() {
	step "Create network namespaces for three nodes, a switch, and the containers"
	local node c
	for c in "${nodes[@]}" switch "${containers[@]%:*}"; do
		ip netns add "plumb-$c"
	done
	ip -n plumb-switch link add switch0 type bridge
	ip -n plumb-switch link set switch0 up
	for node in "${nodes[@]}"; do
		mkdir -p "$state/$node/conf" "$state/$node/var-lib/cni"
		ip -n "plumb-$node" link set lo up
		ip -n "plumb-$node" link add lan0 type bridge
		ip -n "plumb-$node" link add eth0 type veth peer name "$node" netns plumb-switch
		ip -n "plumb-$node" link set eth0 master lan0 up
		ip -n plumb-switch link set "$node" master switch0 up
		ip -n "plumb-$node" address add "$(address_of "$node")/24" dev lan0
		ip -n "plumb-$node" link set lan0 up
		say "$node $(address_of "$node"): the port eth0 connects its bridge lan0 to the switch"
	done
}

# certificate NAME ADDRESS… creates a certificate with these addresses, signed by the authority.
certificate() {
	local name=$1 alternatives='subjectAltName=IP:127.0.0.1' a
	for a in "${@:2}"; do alternatives+=",IP:$a"; done
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$state/pki/$name.key" -out "$state/pki/$name.csr" 2>/dev/null
	openssl x509 -req -days 2 -in "$state/pki/$name.csr" -CA "$state/pki/ca.pem" -CAkey "$state/pki/ca.key" -CAcreateserial \
		-extfile <(echo "$alternatives") -out "$state/pki/$name.pem" 2>/dev/null
}

create_certificates() {
	step "Create a certificate authority, and certificates for the servers and the nodes"
	mkdir -m 700 "$state/pki"
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout "$state/pki/ca.key" -out "$state/pki/ca.pem" 2>/dev/null
	certificate server 10.77.0.1 10.77.0.2 10.77.0.3
	certificate node
	certificate service-accounts
}

# start_etcd NODE… starts an etcd member on each of the nodes.
start_etcd() {
	step "Start etcd on $*"
	local node url peers=''
	for node; do
		peers+="${peers:+,}$node=https://$(address_of "$node"):2380"
	done
	for node; do
		url=https://$(address_of "$node")
		# $! is the process of etcd, because nsenter executes it. With a function, $! would be a shell.
		nsenter --net="/run/netns/plumb-$node" "$state/etcd" --name "$node" --data-dir "$state/$node/etcd" --log-level warn \
			--initial-cluster "$peers" --listen-peer-urls "$url:2380" --initial-advertise-peer-urls "$url:2380" \
			--listen-client-urls "$url:2379" --advertise-client-urls "$url:2379" \
			--trusted-ca-file "$state/pki/ca.pem" --cert-file "$state/pki/server.pem" --key-file "$state/pki/server.key" --client-cert-auth \
			--peer-trusted-ca-file "$state/pki/ca.pem" --peer-cert-file "$state/pki/server.pem" --peer-key-file "$state/pki/server.key" --peer-client-cert-auth \
			</dev/null >"$state/$node/etcd.log" 2>&1 &
		echo $! >"$state/$node/etcd.pid"
		say "$node: $url:2379, log $state/$node/etcd.log"
	done
}

# await_datastore waits until the datastore answers.
await_datastore() {
	local tries
	for tries in {1..60}; do
		ipam list >/dev/null 2>&1 && return
		sleep 0.5
	done
	ipam list || die "the datastore does not answer after $tries calls; see the logs in $state/n1"
}

# api METHOD PATH [FILE] sends a request to the API server as its administrator.
api() {
	on n1 curl -sS --fail-with-body --cacert "$state/pki/ca.pem" -H 'Authorization: Bearer admin' -H "Content-Type: application/${4:-json}" \
		-X "$1" "https://10.77.0.1:6443$2" ${3:+--data-binary "@$3"}
}

start_api_server() {
	step "Start the API server of Kubernetes on n1, and create the custom resources, the rights and the policy"
	echo 'admin,admin,1,system:masters' >"$state/tokens.csv"
	nsenter --net=/run/netns/plumb-n1 "$state/kube-apiserver" --etcd-servers=https://10.77.0.1:2379 --etcd-cafile="$state/pki/ca.pem" \
		--etcd-certfile="$state/pki/node.pem" --etcd-keyfile="$state/pki/node.key" --bind-address=10.77.0.1 --advertise-address=10.77.0.1 --secure-port=6443 \
		--tls-cert-file="$state/pki/server.pem" --tls-private-key-file="$state/pki/server.key" --cert-dir="$state/n1/apiserver" --authorization-mode=RBAC \
		--token-auth-file="$state/tokens.csv" --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://plumb.test \
		--service-account-key-file="$state/pki/service-accounts.pem" --service-account-signing-key-file="$state/pki/service-accounts.key" \
		</dev/null >"$state/n1/apiserver.log" 2>&1 &
	echo $! >"$state/n1/apiserver.pid"
	local tries file node
	for tries in {1..120}; do
		api GET /api/v1/namespaces/kube-system >/dev/null 2>&1 && break
		sleep 0.5
	done
	api GET /api/v1/namespaces/kube-system >/dev/null || die "the API server does not answer after $tries calls; see $state/n1/apiserver.log"
	for file in crds rbac policy; do
		csplit -q -z -f "$state/manifest-" "$top/plugins/cluster-local/deploy/$file.yaml" '/^---$/' '{*}'
		for manifest in "$state"/manifest-*; do
			api POST "$(collection "$(sed -n 's/^kind: //p' "$manifest")")" "$manifest" yaml >/dev/null || die "$file.yaml was rejected"
		done
		rm "$state"/manifest-*
	done
	for node in "${nodes[@]}" operator; do
		credentials "$node"
	done
	say "https://10.77.0.1:6443, log $state/n1/apiserver.log"
}

# collection KIND prints the path of the objects of this kind.
collection() {
	case $1 in
	CustomResourceDefinition) echo /apis/apiextensions.k8s.io/v1/customresourcedefinitions ;;
	ServiceAccount) echo /api/v1/namespaces/kube-system/serviceaccounts ;;
	ClusterRole*) echo "/apis/rbac.authorization.k8s.io/v1/${1,,}s" ;;
	ValidatingAdmissionPolicy) echo /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies ;;
	*) echo "/apis/admissionregistration.k8s.io/v1/${1,,}s" ;;
	esac
}

# credentials NODE writes a kubeconfig file with a token for the node, as the DaemonSet of plumb does, or with the token of
# the administrator.
credentials() {
	local token=admin uid
	if [ "$1" != operator ]; then
		echo "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"$1\"}}" >"$state/request"
		uid=$(api POST /api/v1/nodes "$state/request" | jq -r .metadata.uid)
		echo "{\"apiVersion\": \"authentication.k8s.io/v1\", \"kind\": \"TokenRequest\", \"spec\": {\"boundObjectRef\": {\"apiVersion\": \"v1\", \"kind\": \"Node\", \"name\": \"$1\", \"uid\": \"$uid\"}}}" >"$state/request"
		token=$(api POST /api/v1/namespaces/kube-system/serviceaccounts/plumb/token "$state/request" | jq -r .status.token)
	fi
	cat >"$state/pki/kubeconfig-$1" <<-YAML
		current-context: demo
		contexts: [{name: demo, context: {cluster: demo, user: demo}}]
		clusters: [{name: demo, cluster: {server: "https://10.77.0.1:6443", certificate-authority: ca.pem}}]
		users: [{name: demo, user: {token: "$token"}}]
	YAML
}

# datastore_keys NODE prints the configuration of the datastore.
datastore_keys() {
	if [ -n "$kubernetes" ]; then
		printf '"datastore": {"type": "cluster-local-kubernetes", "kubeconfig": "%s/kubeconfig-%s"}' "$state/pki" "$1"
		return
	fi
	printf '"datastore": {"type": "cluster-local-etcd", "endpoints": ["https://10.77.0.1:2379", "https://10.77.0.2:2379", "https://10.77.0.3:2379"],
            "caFile": "%s/ca.pem", "certFile": "%s/node.pem", "keyFile": "%s/node.key"}' "$state/pki" "$state/pki" "$state/pki"
}

# ipam COMMAND… runs plumb ipam on n2.
ipam() {
	on n2 "$state/bin/plumb" ipam "$@" --conf-dir "$state/n2/conf" --cni-path "$state/bin" --cache-dir "$state/n2/var-lib/cni" --data-dir "$state/n2"
}

write_networks() {
	step "Write the configurations: $1's file follows; the others differ in the key node and the directory"
	local node
	for node in "${nodes[@]}"; do
		cat >"$state/$node/conf/demo.conflist" <<-JSON
			{
			  "cniVersion": "1.1.0",
			  "name": "demo",
			  "plugins": [
			    {
			      "type": "bridge",
			      "bridge": "lan0",
			      "ipam": {
			        "type": "cluster-local",
			        "node": "$node",
			        "dataDir": "$state/$node/leases",
			        "ranges": [[{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.128", "rangeEnd": "10.77.0.159"}]],
			        $(datastore_keys "$node")
			      }
			    }
			  ]
			}
		JSON
	done
	indent <"$state/$1/conf/demo.conflist"
}

# attach CONTAINER:NODE attaches a container on a node.
attach() {
	local c=${1%:*} node=${1#*:}
	cnitool add "$c" "$node" >"$state/$c.json" || {
		indent <"$state/$c.json" >&2
		die "attaching $c failed"
	}
	say "$c on $node: $(container_address "$c")"
}

container_address() { jq -r '.ips[0].address | split("/")[0]' "$state/$1.json"; }

# show prints the owner and the container of each address.
show() {
	step "Show the node and the container of each address (plumb ipam list)"
	local list ip node c held
	list=$(ipam list -o json) || die "plumb ipam list failed"
	while read -r ip node; do
		held='in warm pool'
		for c in "${containers[@]%:*}"; do
			[ ! -e "$state/$c.json" ] || [ "$(container_address "$c")" != "$ip" ] || held="container $c"
		done
		printf '    %-12s %-3s %s\n' "$ip" "$node" "$held"
	done < <(jq -r '.owners | to_entries[] | "\(.key) \(.value.node)"' <<<"$list")
	say "$(jq -r .free <<<"$list") addresses of the range are free."
}

# reach FROM TO pings a container from another one.
reach() {
	on "$1" ping -n -c 1 -W 5 "$(container_address "$2")" >/dev/null || die "$2 does not answer $1"
	say "$1 -> $2 $(container_address "$2"): answers"
}

kill_member() {
	step "Kill the etcd member on $1 (kill -9)"
	kill -9 "$(cat "$state/$1/etcd.pid")"
	wait "$(cat "$state/$1/etcd.pid")" 2>/dev/null || :
	rm "$state/$1/etcd.pid"
	say "The other two continue. Attach more containers, including one on $1:"
}

detach() {
	step "Detach all containers"
	local c
	for c in "${containers[@]}"; do
		cnitool del "${c%:*}" "${c#*:}" || die "detaching $c failed"
		rm "$state/${c%:*}.json"
	done
}

explain() {
	cat <<-TEXT

		The script keeps etcd running, and keeps the namespaces plumb-n1, plumb-n2, plumb-n3 and the containers'. Try these commands:

		    ip netns exec plumb-red ping $(container_address green)
		    find $state/n1/leases -type f          # reservations and owned addresses of a node
		    cat $state/n1/conf/demo.conflist
		    ip netns exec plumb-n2 $state/bin/plumb ipam list --conf-dir $state/n2/conf --cni-path $state/bin

		plugins/cluster-local/quickstart.sh --clean removes everything.
	TEXT
}

# clean ends etcd, and removes the namespaces and files that exist.
clean() {
	local pid ns
	for pid in "$state"/*/*.pid; do
		[ ! -e "$pid" ] || kill -9 "$(cat "$pid")" 2>/dev/null || :
	done
	wait 2>/dev/null # without the shell's message about each killed process
	for ns in "${containers[@]%:*}" "${nodes[@]}" switch; do
		[ ! -e "/run/netns/plumb-$ns" ] || ip netns delete "plumb-$ns"
	done
	rm -rf "$state"
}

keep='' kubernetes='' clean=''
for argument; do
	case $argument in
	--keep) keep=1 ;;
	--kubernetes) kubernetes=1 ;;
	--clean) clean=1 ;;
	-h | --help) usage && exit ;;
	*) die "unknown argument $argument (see --help)" ;;
	esac
done
[ "$(id -u)" = 0 ] || die "only root can create network namespaces: sudo $0 $*"
if [ -n "$clean" ]; then
	clean
	echo "Removed all namespaces and files of the quickstart."
	exit
fi
[ ! -e "$state" ] || die "an earlier run kept its namespaces; plugins/cluster-local/quickstart.sh --clean removes them"

kept=''
trap '[ -n "$kept" ] || { clean && echo && echo "Removed all namespaces and files."; }' EXIT
mkdir -p "$state/bin"
"$top/scripts/need.sh" ip:iproute2 ping:iputils-ping openssl:openssl jq:jq ${kubernetes:+curl:curl} | indent
build
create_namespaces
create_certificates
if [ -n "$kubernetes" ]; then
	start_etcd n1
	start_api_server
else
	start_etcd "${nodes[@]}"
fi
write_networks n1
await_datastore
step "cnitool add demo: attach a container on each node"
for c in "${containers[@]:0:3}"; do
	attach "$c"
done
reach red green
reach green blue
show
[ -n "$kubernetes" ] || kill_member n1
for c in "${containers[@]:3}"; do
	attach "$c"
done
reach white gold
show
if [ -n "$keep" ]; then
	kept=1
	explain
else
	detach
	show
	say "A node keeps a few free addresses, and assigns them to its next containers without a call of the datastore."
fi
printf '\n%scluster-local works on this machine.%s\n' "$bold" "$plain"
