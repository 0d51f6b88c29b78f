#!/bin/bash
# bench.sh measures plumb's plugins beside the reference plugins, in one run in which
# they take turns, and prints tables in Markdown.
#
#   scripts/bench.sh                      all of it: some hours, on a quiet machine
#   scripts/bench.sh --quick              that it works, in two minutes
#   scripts/bench.sh --only bridge,ptp    these scenarios (--list tells which there are)
#   scripts/bench.sh --peer DIR           against the executables there, not Debian's
#   scripts/bench.sh --json FILE --plot DIR   also as JSON, and cost against fill as SVG
#   scripts/bench.sh -n N                 N iterations (100)
#
# It installs the Debian packages that it needs where they are missing (as root). The
# executables are those in $PLUMB_BIN, or built for it. All runs in namespaces of its own.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
command="scripts/bench.sh${*:+ $*}"
needed=(ip:iproute2 nft:nftables iptables:iptables sysctl:procps)
case " $* " in
*" -peer"* | *" --peer"*) ;;
*) needed+=(/usr/lib/cni/bridge:containernetworking-plugins) ;;
esac
for argument; do
	case $argument in
	-h | -help | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' && exit ;;
	esac
done
"$top/scripts/need.sh" "${needed[@]}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PLUMB_BIN:-}" ]; then
	PLUMB_BIN=$work/bin
	"$top/build_linux.sh" "$PLUMB_BIN" >/dev/null
fi
go -C "$top" build -o "$work/bench" ./test/bench
"$top/scripts/sandbox.sh" "$work/bench" -plumb "$PLUMB_BIN" -as "$command" "$@"
