#!/bin/bash
# run.sh tests the executables with Debian's containerd and podman. sandbox.sh gives the tests
# their own directories, control groups and namespaces.
#
#   test/runtimes/run.sh                      all tests, and static checks of this module
#   test/runtimes/run.sh -ginkgo.focus podman go test with these arguments
#   NERDCTL=FILE test/runtimes/run.sh         all tests, including the tests with this nerdctl
#
# It installs missing Debian packages (as root). It tests the executables in $PLUMB_BIN, or builds
# them.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=scripts/go.sh
. ../../scripts/go.sh

[ -t 1 ] || export GINKGO_NO_COLOR=1
../../scripts/need.sh containerd:containerd runc:runc podman:podman conmon:conmon \
	ip:iproute2 nft:nftables iptables:iptables sysctl:procps dnsmasq:dnsmasq-base
if [ -z "${PLUMB_BIN:-}" ]; then
	PLUMB_BIN=$(mktemp -d)
	export PLUMB_BIN
	trap 'rm -rf "$PLUMB_BIN"' EXIT
	../../build_linux.sh "$PLUMB_BIN"
fi
if [ $# = 0 ]; then
	go vet ./...
	"$(go -C ../.. tool -n staticcheck)" -checks all ./...
	go mod tidy -diff
fi
go test -count=1 -timeout 60m -exec "$PWD/sandbox.sh" . "$@"
