#!/bin/sh
# sandbox.sh runs a command in a network and a mount namespace and with a /run of its own, so that
# whatever it does to the network or mounts is gone with it. Without root it also gets
# a user namespace in which it is root.
#
#   scripts/sandbox.sh COMMAND…
#   go test -exec "$PWD/scripts/sandbox.sh" ./pkg/nl
set -eu

[ $# -ge 1 ] || {
	echo "usage: scripts/sandbox.sh COMMAND…" >&2
	exit 2
}
# How long Gomega's Eventually waits where a test does not say it. The default, a second,
# is too short on a busy machine; what comes at once is not slower for it.
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT="${GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT:-1m}"
user=''
[ "$(id -u)" = 0 ] || user=--map-root-user
# shellcheck disable=SC2016 # for the inner shell
exec unshare $user --mount --net sh -c 'mount -t tmpfs -o mode=755 none /run && ip link set lo up && exec "$@"' sh "$@"
