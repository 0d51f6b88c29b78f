#!/bin/bash
# run.sh runs the executables under the real runtimes, Debian's containerd and podman,
# each with state, control groups and network namespaces of its own (sandbox.sh).
#
#   test/runtimes/run.sh                      all of it, the checks of the text included
#   test/runtimes/run.sh -ginkgo.focus podman go test with these arguments
#
# It installs the Debian packages that it needs where they are missing (as root). The
# executables are those in $PLUMB_BIN, or built for it.
set -euo pipefail
cd "$(dirname "$0")"

[ -t 1 ] || export GINKGO_NO_COLOR=1
../../scripts/need.sh containerd:containerd runc:runc podman:podman conmon:conmon \
	ip:iproute2 nft:nftables iptables:iptables sysctl:procps
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
