#!/bin/sh
# need.sh installs the Debian packages of the programs that are missing here (as root),
# and elsewhere says which are.
#
#   scripts/need.sh PROGRAM:PACKAGE…
set -eu

missing=''
for pair; do
	command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || [ ! -e /etc/debian_version ]; then
	echo "need.sh: these have to be installed first:$missing" >&2
	exit 1
fi
echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # package names
{ apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 || {
	tail -n 5 "$log" >&2
	exit 1
}
