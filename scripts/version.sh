#!/bin/sh
# version.sh prints the version of this checkout: the environment variable VERSION, or else the last
# tag, with the number of later commits and the last commit. It always begins with v2, because
# runtimes read it, and consider versions below 1.9.1 as old.
set -eu

cd "$(dirname "$0")/.."
if [ -z "${VERSION:-}" ]; then
	VERSION=$(git describe --tags --match 'v2.*' --dirty 2>/dev/null) || VERSION=v2.0.0-dev
fi
case $VERSION in
*[!0-9A-Za-z.+-]*) ;; # not allowed, because the version is part of file names
v2.*)
	echo "$VERSION"
	exit
	;;
esac
echo "version.sh: VERSION is $VERSION; it must be a semantic version that begins with v2." >&2
exit 1
