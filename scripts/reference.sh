#!/bin/bash
# reference.sh builds the reference plugins (containernetworking/plugins) in the version of test/reference/go.mod, unless
# they are built already, and prints their directory, which is in the user's cache directory.
set -euo pipefail
cd "$(dirname "$0")/../test/reference"
# shellcheck source=scripts/go.sh
. ../../scripts/go.sh

version=$(go list -m -f '{{.Version}}' github.com/containernetworking/plugins)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/plumb-test/reference-$version-$(go env GOVERSION GOARCH | cat - go.sum | sha256sum | cut -c 1-16)
if [ ! -d "$dir" ]; then
	mkdir -p "${dir%/*}"
	new=$(mktemp -d "$dir.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	# The project's own build sets the version in the same way.
	CGO_ENABLED=0 go build -trimpath -o "$new" \
		-ldflags "-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$version" tool
	chmod 755 "$new"
	mv -T "$new" "$dir" 2>/dev/null || [ -d "$dir" ] # another call may have built the same
fi
echo "$dir"
