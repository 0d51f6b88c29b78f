#!/bin/bash
# conformance.sh runs cni-conformance on the plugins of plumb, on the reference plugins and on Debian's package, with each
# list in cmd/cni-conformance/testdata, and writes the results to docs/conformance.md. It takes an hour on two cores.
# Arguments go to cni-conformance.
#
#   scripts/conformance.sh
#   scripts/conformance.sh --kills 5
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/go.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CGO_ENABLED=0 go build -trimpath -o "$work/" ./cmd/cni-conformance
bin=${PLUMB_BIN:-$work/bin}
[ -n "${PLUMB_BIN:-}" ] || ./build_linux.sh "$bin" >&2

# The first digit is the order of the columns.
for set in "1plumb=$bin" "2reference=$(scripts/programs.sh reference)" "3Debian=/usr/lib/cni"; do
	mkdir "$work/${set%%=*}"
	for list in cmd/cni-conformance/testdata/*.conflist; do
		name=$(basename "$list" .conflist) status=0
		echo "${set%%=*} $name" >&2
		"$work/cni-conformance" --profile all -o json --cni-path "${set#*=}" "$@" "$list" >"$work/${set%%=*}/$name.json" || status=$?
		[ "$status" -le 1 ] || exit "$status"
	done
done

table() {
	jq -nr --arg kernel "$(uname -r)" '
		[inputs | {set: (input_filename | split("/")[-2][1:]), list: (.list | rtrimstr(".conflist")), report: .}] as $all
		| ($all | map(.set) | reduce .[] as $s ([]; if index($s) then . else . + [$s] end)) as $sets
		| def version($set): [$all[] | select(.set == $set) | .report.plugins[0].version | capture("(?<v>v[0-9][^ ]*)").v] | unique | join(", ");
		def cell($set; $id): [$all[] | select(.set == $set) | {list, case: (.report.cases[] | select(.id == $id))}] as $runs
			| [$runs[] | select(.case.verdict == "fail") | .list] as $fail
			| [$runs[] | select(.case.verdict == "inconclusive") | .list] as $unclear
			| if $fail + $unclear == [] then (if [$runs[] | select(.case.verdict == "pass")] == [] then "not applicable" else "pass" end)
			  else ([if $fail != [] then "**fail**: " + ($fail | join(", ")) else empty end, if $unclear != [] then "inconclusive: " + ($unclear | join(", ")) else empty end] | join("; ")) end;
		"Versions: \([$sets[] | "\(.) \(version(.))"] | join(", ")); Linux \($kernel); \($all[0].report.tool).",
		"",
		"| case | level | \($sets | join(" | ")) |", "|---|---|\($sets | map("---|") | join(""))",
		($all[0].report.cases[] | . as $c | "| \($c.id) | \($c.level) | \([$sets[] as $s | cell($s; $c.id)] | join(" | ")) |")
	' "$work"/[123]*/*.json
}

page=docs/conformance.md
{
	sed '/<!-- begin: scripts\/conformance.sh -->/q' "$page"
	echo
	table
	echo
	sed -n '/<!-- end: scripts\/conformance.sh -->/,$p' "$page"
} >"$work/page"
cat "$work/page" >"$page"
