#!/bin/bash
# bench.sh measures plumb's plugins and the reference plugins in one run, in turns, and prints tables
# in Markdown.
#
#   scripts/bench.sh                      all scenarios: some hours, on an idle machine
#   scripts/bench.sh --quick              a run of two minutes that only shows that the script works
#   scripts/bench.sh --only bridge,ptp    these scenarios (--list prints all names)
#   scripts/bench.sh --peer DIR           compare with the executables in DIR instead of the newest reference plugins,
#                                         for example with Debian's in /usr/lib/cni
#   scripts/bench.sh --json FILE          write all figures as JSON
#   scripts/bench.sh --never-slower       measure one scenario of each plugin, and fail if a call takes 3 % more time than
#                                         the reference plugin's, for ten minutes on an idle machine
#   scripts/bench.sh -n N                 N iterations (100)
#   scripts/bench.sh --report             measure this commit for a quarter of an hour, and replace the file in
#                                         docs/benchmarks and the tables and plots in README.md and docs/explanation/performance.md
#
# It installs missing Debian packages (as root). It measures the executables in $PLUMB_BIN, or builds
# them, and builds the reference plugins once (scripts/programs.sh reference). Everything runs in separate namespaces.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/go.sh
. "$top/scripts/go.sh"
command="scripts/bench.sh${*:+ $*}"
needed=(ip:iproute2 nft:nftables iptables:iptables sysctl:procps)
report='' peer=''
for argument; do
	case $argument in
	-report | --report) report=yes needed+=(git:git) ;;
	-peer* | --peer*) peer=given ;;
	-h | -help | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
	esac
done
"$top/scripts/need.sh" "${needed[@]}"
if [ -n "$report" ]; then
	[ -z "$(git -C "$top" status --porcelain -- '*.go' '*go.mod' '*go.sum')" ] || {
		echo "bench.sh: the sources differ from the commit that the report names; commit them" >&2
		exit 1
	}
	report=$top/docs/benchmarks/$(date -u +%F)-$(git -C "$top" rev-parse --short HEAD).json
	unset PLUMB_BIN
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PLUMB_BIN:-}" ]; then
	PLUMB_BIN=$work/bin
	"$top/build_linux.sh" "$PLUMB_BIN" >/dev/null
fi
go -C "$top" build -o "$work/bench" ./test/bench
[ -n "$peer" ] || set -- -peer "$("$top/scripts/programs.sh" reference)" "$@"
"$top/scripts/sandbox.sh" "$work/bench" -plumb "$PLUMB_BIN" -as "$command" "$@" ${report:+-json "$work/report.json"}
if [ -n "$report" ]; then
	mkdir -p "${report%/*}"
	rm -f "${report%/*}"/*.json
	mv "$work/report.json" "$report"
	cd "$top"
	"$work/bench" -pages
fi
