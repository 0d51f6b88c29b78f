#!/bin/sh
# sandbox.sh runs a command in new network and mount namespaces, with an empty /run, so that all of the
# command's changes to network and mounts end with it. If the user is not root, the command runs as root in
# a new user namespace.
#
#   scripts/sandbox.sh COMMAND…
#   go test -exec "$PWD/scripts/sandbox.sh" ./pkg/nl
set -eu

[ $# -ge 1 ] || {
	echo "usage: scripts/sandbox.sh COMMAND…" >&2
	exit 2
}
# Raise the default timeout of Gomega's Eventually, because a second is too short on a busy machine. Tests
# that succeed at once do not become slower.
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT="${GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT:-1m}"
# Do not read the configuration file of the machine's plumb. /run is empty.
export PLUMB_CONFIG=/run/plumb.yaml
user=''
[ "$(id -u)" = 0 ] || user=--map-root-user
# shellcheck disable=SC2016 # expanded by the inner shell
exec unshare $user --mount --net sh -c 'mount -t tmpfs -o mode=755 none /run && ip link set lo up && exec "$@"' sh "$@"
