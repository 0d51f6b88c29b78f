#!/bin/bash
# bench.sh measures plumb's plugins and the reference plugins in one run, in turns, and prints tables
# in Markdown.
#
#   scripts/bench.sh                      all scenarios: some hours, on an idle machine
#   scripts/bench.sh --quick              a short run, in two minutes, that only shows that the script works
#   scripts/bench.sh --only bridge,ptp    these scenarios (--list prints all names)
#   scripts/bench.sh --peer DIR           compare with the executables in DIR, not with Debian's
#   scripts/bench.sh --json FILE --plot DIR   write JSON, and plots of the cost by number of attachments as SVG
#   scripts/bench.sh -n N                 N iterations (100)
#
# It installs missing Debian packages (as root). It measures the executables in $PLUMB_BIN, or builds
# them. Everything runs in separate namespaces.
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
	-h | -help | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
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
