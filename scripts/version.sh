#!/bin/sh
# version.sh prints the version of what is built from this checkout: VERSION from the
# environment, else that of the tag, with the commit for what came after it. It begins
# with v2 whatever happens: runtimes read it, and take less than 1.9.1 for old.
set -eu

cd "$(dirname "$0")/.."
if [ -z "${VERSION:-}" ]; then
	VERSION=$(git describe --tags --match 'v2.*' --dirty 2>/dev/null) || VERSION=v2.0.0-dev
fi
case $VERSION in
*[!0-9A-Za-z.+-]*) ;; # it becomes part of file names
v2.*)
	echo "$VERSION"
	exit
	;;
esac
echo "version.sh: VERSION is $VERSION; it has to begin with v2. and to be a semantic version" >&2
exit 1
