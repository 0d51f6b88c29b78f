#!/bin/sh
# sandbox.sh runs a command in the namespaces of scripts/sandbox.sh and in a PID namespace, so
# that all daemons, shims and containers end with the command. /run, /var/lib, /dev/shm and /opt are
# empty file systems, because runtimes and plugins always write there, and because plumb looks for plugins there. The script
# needs root.
#
#   go test -exec "$PWD/sandbox.sh" .
#
# The command's temporary files are in /run. At the end, the script removes the control groups in
# $PLUMB_CGROUP, where the tests put the containers.
set -eu

[ $# -ge 1 ] || {
	echo "usage: test/runtimes/sandbox.sh COMMAND…" >&2
	exit 2
}
PLUMB_CGROUP=plumb-runtimes-$$
export PLUMB_CGROUP

# shellcheck disable=SC2016 # expanded by the inner shell, which waits for orphans and therefore does not use exec
"$(dirname "$0")/../../scripts/sandbox.sh" unshare --pid --fork --kill-child --mount-proc sh -c '
	for dir in /run /var/lib /dev/shm /opt; do mount -t tmpfs tmpfs $dir || exit; done
	mkdir /run/tmp /run/netns
	export TMPDIR=/run/tmp && : >/run/plumb-sandbox
	"$@"
	exit $?' sh "$@" &
trap 'kill -KILL $! || :' INT TERM QUIT HUP
status=0
wait $! || status=$?
# The control groups are empty now, because all processes end with their PID namespace.
find /sys/fs/cgroup -depth -type d -path "*/$PLUMB_CGROUP*" -exec rmdir {} + 2>/dev/null || :
exit $status
