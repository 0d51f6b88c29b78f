#!/bin/bash
# run.sh tests the executables on Kubernetes nodes, which are kubelet, kube-proxy, containerd and a control plane in
# namespaces of this machine.
#
#   test/node/run.sh                                     all tests
#   test/node/run.sh checks wiped                        the tests with these labels
#   test/node/run.sh --proxy iptables --containerd 2 …   the same with kube-proxy's mode (nftables), and containerd 2 (1)
#   test/node/run.sh --cached …                          the same, but test nothing if Kubernetes is not built yet
#   test/node/run.sh --only HostPort conformance         the specs of Kubernetes' own tests that match a regular expression
#   test/node/run.sh --keep                              a node with two pods, which runs until you press Ctrl-C
#
# It installs missing Debian packages (as root). It tests the executables in $PLUMB_BIN, or builds them. It builds Kubernetes, Helm
# and containerd 2 from their Go modules once, which takes a quarter of an hour, and keeps them in the user's cache directory.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=scripts/go.sh
. ../../scripts/go.sh

programs=(kubelet kube-proxy kube-apiserver kube-controller-manager kube-scheduler kubectl agnhost)
proxy=nftables containerd=1 labels='' flags=()
while [ $# -gt 0 ]; do
	case $1 in
	--proxy) proxy=$2 && shift ;;
	--containerd) containerd=$2 && shift ;;
	--cached)
		../../scripts/programs.sh --cached kubernetes "${programs[@]}" >/dev/null || {
			echo "left out: the tests with Kubernetes nodes"
			exit
		}
		;;
	--only) flags+=(-only "$2") && shift ;;
	--keep) flags+=(-keep) labels=keep ;;
	-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
	-*) echo "run.sh: unknown flag $1; see run.sh --help" >&2 && exit 2 ;;
	*) labels+=${labels:+ || }$1 ;;
	esac
	shift
done

[ -t 1 ] || export GINKGO_NO_COLOR=1
../../scripts/need.sh containerd:containerd runc:runc ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack sysctl:procps \
	mount:mount hostname:hostname cmp:diffutils jq:jq debootstrap:debootstrap dnsmasq:dnsmasq-base firewalld:firewalld dbus-daemon:dbus \
	/usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PLUMB_BIN:-}" ]; then
	export PLUMB_BIN=$work/bin
	../../build_linux.sh "$PLUMB_BIN" >/dev/null
fi
case " $labels " in
*" conformance "* | *" wide "* | *" two-nodes "* | '  ')
	programs+=(ginkgo e2e.test)
	COREDNS=$(../../scripts/programs.sh coredns)
	ROOTFS=$(./rootfs.sh)
	PORTER=$(go -C ../programs/kubernetes list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter
	;;
esac
case " $labels " in
*" move "* | '  ')
	WHEREABOUTS=$(../../scripts/programs.sh whereabouts)
	WHEREABOUTS_SOURCE=$(go -C ../programs/whereabouts list -m -f '{{.Dir}}' github.com/k8snetworkplumbingwg/whereabouts)
	;;
esac
case " $labels " in
*" chart "* | *" deploy "* | *" cluster-local "* | *" move "* | '  ') HELM=$(../../scripts/programs.sh helm) ;;
esac
KUBERNETES=$(../../scripts/programs.sh kubernetes "${programs[@]}")
REFERENCE=$(../../scripts/programs.sh reference)
[ "$containerd" = 1 ] || CONTAINERD=$(../../scripts/programs.sh containerd)
export KUBERNETES REFERENCE CONTAINERD=${CONTAINERD:-} COREDNS=${COREDNS:-} HELM=${HELM:-} ROOTFS=${ROOTFS:-} WHEREABOUTS=${WHEREABOUTS:-} WHEREABOUTS_SOURCE=${WHEREABOUTS_SOURCE:-} PORTER=${PORTER:-} ETCD=$work/etcd PAUSE=$work/pause
go -C ../../plugins/cluster-local/test build -o "$ETCD" ./etcd
CGO_ENABLED=0 go build -ldflags '-s -w' -o "$PAUSE" ./pause
go test -v -count=1 -timeout 3h -exec "$PWD/../runtimes/sandbox.sh" . -ginkgo.v -ginkgo.timeout 3h ${labels:+"-ginkgo.label-filter=$labels"} \
	-proxy "$proxy" -containerd "$containerd" "${flags[@]}"
