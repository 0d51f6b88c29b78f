#!/bin/sh
# exec-plugin.sh runs one plugin by hand, with the CNI_* variables set from flags.
set -eu

top=$(dirname "$0")/..

usage() {
	cat <<USAGE
usage: scripts/exec-plugin.sh [flags] PLUGIN COMMAND [CONFIG]

  PLUGIN    bridge, host-local, …: an executable in the folder of --bin
  COMMAND   add, del, check, gc, status or version
  CONFIG    a file with the plugin's configuration; none, or -: stdin

  -c, --container ID   CNI_CONTAINERID (by-hand)
  -n, --netns NETNS    CNI_NETNS: a path, or a name that "ip netns" knows
  -i, --ifname NAME    CNI_IFNAME (eth0)
  -a, --args K=V;…     CNI_ARGS
      --node NETNS     run the plugin in this network namespace, not in ours
      --bin DIR        where the executables are, and CNI_PATH (bin/)
      --debug          print each step of the plugin with its time
      --strace         run the plugin under strace -f
      --count          count its instructions (valgrind): "I refs", without the kernel's
  -h, --help           this text

It prints what the plugin prints, and its exit code on stderr, and exits with it.

  echo '{"cniVersion":"1.1.0","name":"n","type":"loopback"}' |
      scripts/exec-plugin.sh --netns demo --ifname lo --debug loopback add
USAGE
}

die() {
	echo "exec-plugin.sh: $*" >&2
	exit 2
}

# path_of NETNS: a name becomes the path where "ip netns" keeps it.
path_of() {
	case $1 in
	*/*) echo "$1" ;;
	*) echo "/run/netns/$1" ;;
	esac
}

container=by-hand netns='' ifname=eth0 args='' node='' bin=$top/bin debug='' strace='' count=''
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage && exit 0 ;;
	--debug) debug=debug && shift && continue ;;
	--strace) strace=1 && shift && continue ;;
	--count) count=1 && shift && continue ;;
	-c | --container | -n | --netns | -i | --ifname | -a | --args | --node | --bin) ;;
	-?*) die "unknown flag $1 (--help tells more)" ;;
	*) break ;;
	esac
	[ $# -ge 2 ] || die "$1 needs a value (--help tells more)"
	case $1 in
	-c | --container) container=$2 ;;
	-n | --netns) netns=$(path_of "$2") ;;
	-i | --ifname) ifname=$2 ;;
	-a | --args) args=$2 ;;
	--node) node=$(path_of "$2") ;;
	--bin) bin=$2 ;;
	esac
	shift 2
done
[ $# -ge 2 ] || { usage >&2 && exit 2; }

plugin=$1
command=$(echo "$2" | tr '[:lower:]' '[:upper:]')
config=${3:--}
[ -d "$bin" ] || die "no folder $bin: run ./build_linux.sh first, or name another by --bin"
bin=$(cd "$bin" && pwd)
[ -x "$bin/$plugin" ] || die "no executable $plugin in $bin: run ./build_linux.sh first, or name another folder by --bin"
if [ "$config" != - ]; then
	[ -r "$config" ] || die "no file $config that can be read"
	exec <"$config"
elif [ "$command" = VERSION ]; then
	exec </dev/null
elif [ -t 0 ]; then
	echo "exec-plugin.sh: type the configuration, then Ctrl-D" >&2
fi

set -- "$bin/$plugin"
[ -z "$strace" ] || set -- strace -f "$@"
# One processor for the Go runtime: how many threads it starts changes the count.
[ -z "$count" ] || set -- env GOMAXPROCS=1 valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "$@"
[ -z "$node" ] || set -- nsenter --net="$node" "$@"

status=0
env CNI_COMMAND="$command" CNI_CONTAINERID="$container" CNI_NETNS="$netns" CNI_IFNAME="$ifname" \
	CNI_ARGS="$args" CNI_PATH="$bin" CNI_LOG_LEVEL="${debug:-${CNI_LOG_LEVEL:-}}" "$@" || status=$?
echo "exit code $status" >&2
exit $status
