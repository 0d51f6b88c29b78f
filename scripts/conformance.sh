#!/bin/bash
# conformance.sh runs cni-conformance on the plugins of plumb, on the reference plugins and on Debian's package, with each
# list in cmd/cni-conformance/testdata, and some lists on plugins of other projects, and writes the results to
# docs/reference/conformance.md. It takes an hour on two cores, and builds the programs of Kubernetes (scripts/programs.sh).
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

# results runs the cases with each list. Exit status 3 means that no case can run on this machine.
results() {
	local list name status
	mkdir "$work/$1"
	for list in cmd/cni-conformance/testdata/*.conflist; do
		name=$(basename "$list" .conflist) status=0
		"$work/cni-conformance" --profile all -o json --cni-path "$2" "${@:3}" "$list" >"$work/$1/$name.json" 2>"$work/$1/$name.stderr" || status=$?
		echo "${1#?} $name: exit status $status" >&2
		[ "$status" -le 1 ] || rm "$work/$1/$name.json"
		[ "$status" -le 1 ] || echo "${1#?} cannot run $name on this machine: $(head -n 1 "$work/$1/$name.stderr")" >>"$work/notes"
	done
}

# The first digit is the order of the columns.
reference=$(scripts/programs.sh reference)
results 1plumb "$bin" "$@" &
results 2reference "$reference" "$@" &
results 3Debian /usr/lib/cni "$@" &
wait

# failures NAME LIST ARGUMENTS… runs the cases with a list of another project, and prints the cases that fail.
failures() {
	local name=$1 list=$2 status=0
	"$work/cni-conformance" --profile all -o json "${@:3}" "$list" >"$work/other.json" 2>"$work/other.stderr" || status=$?
	echo "$name: exit status $status" >&2
	if [ "$status" -gt 1 ]; then
		echo "| $name | none ran | $(head -n 1 "$work/other.stderr") |"
		return
	fi
	jq -r --arg name "$name" '[.cases[] | select(.verdict == "fail").id] as $fail | [.cases[] | select(.verdict == "inconclusive").id] as $unclear
		| "| \($name) | \($fail | length) of \(.cases | length) | \($fail | join(", "))\(if $unclear == [] then "" else "; inconclusive: " + ($unclear | join(", ")) end) |"' "$work/other.json"
}

# others prints the failures of plugins of other projects.
others() {
	local data=cmd/cni-conformance/testdata version flannel whereabouts
	version=$(scripts/programs.sh --version reference)
	flannel=$(scripts/programs.sh flannel) whereabouts=$(scripts/programs.sh whereabouts)
	KUBERNETES=$(scripts/programs.sh kubernetes kube-apiserver kubectl) ETCD=$work/etcd TMPDIR=$work
	CRDS=$(go -C test/programs/whereabouts list -m -f '{{.Dir}}' github.com/k8snetworkplumbingwg/whereabouts)/doc/crds
	export KUBERNETES ETCD CRDS TMPDIR
	go -C plugins/cluster-local/test build -o "$ETCD" ./etcd
	echo "| plugins | fail | cases |"
	echo "|---|---|---|"
	failures "[shell script](../../$data/tutorial/veth), as tutorials show it" $data/tutorial/tutorial.conflist --cni-path $data/tutorial "$@"
	failures "flannel, as reference $(scripts/programs.sh --version flannel) contained it, with plugins of reference $version" $data/flannel/flannel.conflist \
		--setup $data/flannel/setup.sh --cni-path "$flannel,$reference" "$@"
	failures "flannel, the same, with plugins of plumb" $data/flannel/flannel.conflist --setup $data/flannel/setup.sh --cni-path "$flannel,$bin" "$@"
	failures "whereabouts $(scripts/programs.sh --version whereabouts), with macvlan of reference $version" $data/whereabouts/whereabouts.conflist \
		--setup $data/whereabouts/setup.sh --cni-path "$whereabouts,$reference" "$@"
}

table() {
	# Debian's plugins do not print their version.
	jq -nr --arg kernel "$(uname -r)" --arg debian "$(dpkg-query -W -f '${Version}' containernetworking-plugins)" '
		[inputs | {set: (input_filename | split("/")[-2][1:]), list: (.list | rtrimstr(".conflist")), report: .}] as $all
		| ($all | map(.set) | reduce .[] as $s ([]; if index($s) then . else . + [$s] end)) as $sets
		| def version($set): [$all[] | select(.set == $set) | .report.plugins[0].version | capture("(?<v>v[0-9][^ ]*)").v] + (if $set == "Debian" then [$debian] else [] end) | unique | join(", ");
		def cell($set; $id): [$all[] | select(.set == $set) | {list, case: (.report.cases[] | select(.id == $id))}] as $runs
			| [$runs[] | select(.case.verdict == "fail") | .list] as $fail
			| [$runs[] | select(.case.verdict == "inconclusive") | .list] as $unclear
			| if $fail + $unclear == [] then (if [$runs[] | select(.case.verdict == "pass")] == [] then "not applicable" else "pass" end)
			  else ([if $fail != [] then "**fail**: " + ($fail | join(", ")) else empty end, if $unclear != [] then "inconclusive: " + ($unclear | join(", ")) else empty end] | join("; ")) end;
		"Versions: \([$sets[] | "\(.) \(version(.))"] | join(", ")), Linux \($kernel), \($all[0].report.tool).",
		"Lists: \([$all[].list] | unique | join(", ")). KILL-1 and KILL-2 kill each plugin at up to \($all[0].report.kills) system calls of each call.",
		"",
		"| case | level | \($sets | join(" | ")) |", "|---|---|\($sets | map("---|") | join(""))",
		($all[0].report.cases[] | . as $c | "| \($c.id) | \($c.level) | \([$sets[] as $s | cell($s; $c.id)] | join(" | ")) |")
	' "$work"/[123]*/*.json
}

page=docs/reference/conformance.md
{
	sed '/<!-- begin: scripts\/conformance.sh -->/q' "$page"
	echo
	table
	echo
	others "$@"
	echo
	[ ! -f "$work/notes" ] || sed 's/$/\n/' "$work/notes"
	sed -n '/<!-- end: scripts\/conformance.sh -->/,$p' "$page"
} >"$work/page"
cat "$work/page" >"$page"
