#!/bin/sh
# exec-plugin.sh runs one plugin, and sets the CNI_* variables from its flags.
set -eu

top=$(dirname "$0")/..

usage() {
	cat <<USAGE
usage: scripts/exec-plugin.sh [flags] PLUGIN COMMAND [CONFIG]

  PLUGIN    the name of an executable in the directory of --bin, such as bridge
  COMMAND   add, del, check, gc, status or version
  CONFIG    a file with the plugin's configuration (default, and with -: stdin)

  -c, --container ID   CNI_CONTAINERID (by-hand)
  -n, --netns NETNS    CNI_NETNS: a path, or a name of "ip netns"
  -i, --ifname NAME    CNI_IFNAME (eth0)
  -a, --args K=V;…     CNI_ARGS
      --host NETNS     run the plugin in this network namespace
      --bin DIR        the directory of the executables, and CNI_PATH (bin/)
      --debug          print each step of the plugin, with start and duration
      --strace         run the plugin under strace -f
      --count          count the plugin's instructions in user space with valgrind ("I refs")
  -h, --help           print this text

It prints the plugin's output, and the plugin's exit code to stderr. It exits with the same code.

  echo '{"cniVersion":"1.1.0","name":"n","type":"loopback"}' |
      scripts/exec-plugin.sh --netns demo --ifname lo --debug loopback add
USAGE
}

die() {
	echo "exec-plugin.sh: $*" >&2
	exit 2
}

# path_of NETNS prints the path of a network namespace, which may be a name of "ip netns".
path_of() {
	case $1 in
	*/*) echo "$1" ;;
	*) echo "/run/netns/$1" ;;
	esac
}

container=by-hand netns='' ifname=eth0 args='' host='' bin=$top/bin debug='' strace='' count=''
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage && exit 0 ;;
	--debug) debug=debug && shift && continue ;;
	--strace) strace=1 && shift && continue ;;
	--count) count=1 && shift && continue ;;
	-c | --container | -n | --netns | -i | --ifname | -a | --args | --host | --bin) ;;
	-?*) die "unknown flag $1 (see --help)" ;;
	*) break ;;
	esac
	[ $# -ge 2 ] || die "$1 needs a value (see --help)"
	case $1 in
	-c | --container) container=$2 ;;
	-n | --netns) netns=$(path_of "$2") ;;
	-i | --ifname) ifname=$2 ;;
	-a | --args) args=$2 ;;
	--host) host=$(path_of "$2") ;;
	--bin) bin=$2 ;;
	esac
	shift 2
done
[ $# -ge 2 ] || { usage >&2 && exit 2; }

plugin=$1
command=$(echo "$2" | tr '[:lower:]' '[:upper:]')
config=${3:--}
[ -d "$bin" ] || die "no directory $bin: run ./build_linux.sh first, or name another directory with --bin"
bin=$(cd "$bin" && pwd)
[ -x "$bin/$plugin" ] || die "no executable $plugin in $bin: run ./build_linux.sh first, or name another directory with --bin"
if [ "$config" != - ]; then
	[ -r "$config" ] || die "cannot read the file $config"
	exec <"$config"
elif [ "$command" = VERSION ]; then
	exec </dev/null
elif [ -t 0 ]; then
	echo "exec-plugin.sh: type the configuration, then Ctrl-D" >&2
fi

set -- "$bin/$plugin"
[ -z "$strace" ] || set -- strace -f "$@"
# Use one processor, because the number of the Go runtime's threads changes the count.
[ -z "$count" ] || set -- env GOMAXPROCS=1 valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "$@"
[ -z "$host" ] || set -- nsenter --net="$host" "$@"

status=0
env CNI_COMMAND="$command" CNI_CONTAINERID="$container" CNI_NETNS="$netns" CNI_IFNAME="$ifname" \
	CNI_ARGS="$args" CNI_PATH="$bin" CNI_LOG_LEVEL="${debug:-${CNI_LOG_LEVEL:-}}" "$@" || status=$?
echo "exit code $status" >&2
exit $status
