#!/bin/sh
# build_linux.sh builds static executables (one per plugin, the datastores of cluster-local, and the tool
# plumb) into bin/ or the given directory. The architecture is GOARCH, or this machine's by default.
#
#   ./build_linux.sh
#   GOARCH=arm64 ./build_linux.sh release/arm64
#   VERSION=v2.1.0 ./build_linux.sh
set -eu

cd "$(dirname "$0")"
bin=${1:-bin}

. scripts/go.sh
command -v go >/dev/null || {
	echo "build_linux.sh: no Go in PATH; install Go $(sed -n 's/^go //p' go.mod) or later: https://go.dev/dl" >&2
	exit 1
}

VERSION=$(scripts/version.sh)

mkdir -p "$bin"
bin=$(cd "$bin" && pwd)
export CGO_ENABLED=0 GOOS=linux
modfile=$(scripts/modfile.sh)
ldflags="-s -w -X github.com/plumb-cni/plumb/v2/pkg/version.linked=$VERSION"
# shellcheck disable=SC2086 # the flag may be empty
go build -trimpath -buildvcs=false $modfile -ldflags "$ldflags" -o "$bin/" ./plugins/*/ ./cmd/plumb
# shellcheck disable=SC2086 # the flag may be empty
go build -trimpath -buildvcs=false $modfile -ldflags "$ldflags" -o "$bin/cluster-local-kubernetes" ./plugins/cluster-local/datastore/kubernetes
go -C plugins/cluster-local/datastore/etcd build -trimpath -buildvcs=false -ldflags "$ldflags" -o "$bin/cluster-local-etcd"

echo "plumb $VERSION for linux/$(go env GOARCH) in $bin:"
for plugin in plugins/*/ cluster-local-etcd cluster-local-kubernetes plumb; do
	plugin=$(basename "$plugin")
	[ -f "$bin/$plugin" ] && printf '  %-24s %5d KiB\n' "$plugin" $(($(stat -c %s "$bin/$plugin") / 1024))
done
