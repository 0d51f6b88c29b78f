#!/bin/sh
# sandbox.sh runs a command as scripts/sandbox.sh does, for real runtimes: in a PID
# namespace besides, so that no daemon, shim or container outlives it, and with empty
# /run, /var/lib and /dev/shm of its own, where runtimes and plugins keep what they
# cannot be told to keep elsewhere. It needs root.
#
#   go test -exec "$PWD/sandbox.sh" .
#
# The command's temporary files go with /run; the control groups that containers are to
# be put under, $PLUMB_CGROUP, are removed at the end.
set -eu

[ $# -ge 1 ] || {
	echo "usage: test/runtimes/sandbox.sh COMMAND…" >&2
	exit 2
}
PLUMB_CGROUP=plumb-runtimes-$$
export PLUMB_CGROUP

# shellcheck disable=SC2016 # for the inner shell, which buries the orphans: no exec
"$(dirname "$0")/../../scripts/sandbox.sh" unshare --pid --fork --kill-child --mount-proc sh -c '
	for dir in /run /var/lib /dev/shm; do mount -t tmpfs tmpfs $dir || exit; done
	mkdir /run/tmp /run/netns
	export TMPDIR=/run/tmp && : >/run/plumb-sandbox
	"$@"
	exit $?' sh "$@" &
trap 'kill -KILL $! || :' INT TERM QUIT HUP
status=0
wait $! || status=$?
# Emptied by now: the end of a PID namespace is the end of all in it.
find /sys/fs/cgroup -depth -type d -path "*/$PLUMB_CGROUP*" -exec rmdir {} + 2>/dev/null || :
exit $status
