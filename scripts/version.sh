#!/bin/sh
# version.sh prints the version of this checkout, which is the environment variable VERSION or, by default,
# the last tag, or v2.0.0+dev if there is none. Build metadata names later commits and changes
# (v2.1.0+3.gabcdef0.dirty, v2.0.0+dev.gabcdef0). The version always begins with v2, because runtimes read it and consider versions below 1.9.1 as old. It is a pre-release only
# if the tag is one, because Nomad calls CHECK only if the version of bridge satisfies ">= 1.3.0", which no
# pre-release does (hashicorp/go-version).
set -eu

cd "$(dirname "$0")/.."
if [ -z "${VERSION:-}" ]; then
	VERSION=$(git describe --tags --match 'v2.*' --long --dirty=.dirty 2>/dev/null) ||
		VERSION=v2.0.0+dev$(git describe --always --abbrev=7 --dirty=.dirty --exclude '*' 2>/dev/null | sed 's/^/.g/')
	VERSION=$(echo "$VERSION" | sed -E 's/-0-g[0-9a-f]+$//; s/-([0-9]+)-(g[0-9a-f]+(\.dirty)?)$/+\1.\2/')
fi
case $VERSION in
*[!0-9A-Za-z.+-]*) ;; # not allowed, because the version is part of file names
v2.*)
	echo "$VERSION"
	exit
	;;
esac
echo "version.sh: VERSION must be a semantic version that begins with v2., got $VERSION" >&2
exit 1
