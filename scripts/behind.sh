#!/bin/bash
# behind.sh prints which Go modules are older than their newest release, and whether the workflows use an old patch release of
# Go. It fails if there are any, so that the nightly workflow reports them.
#
#   scripts/behind.sh    a line for each module: the go.mod, the module, the version in use and the newest one
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/go.sh
. scripts/go.sh

# newer prints the direct requirements of a go.mod and the modules of its tools for which there is a newer version. A module
# that is replaced, such as plumb itself, is in this repository.
newer() {
	local modules
	mapfile -t modules < <(go -C "$1" mod edit -json | jq -r '
		[.Replace[]?.Old.Path] as $replaced | [.Tool[]?.Path + "/"] as $tools | .Require[]? |
		select((.Indirect | not) or (.Path as $path | any($tools[]; startswith($path + "/")))) | .Path | select(IN($replaced[]) | not)')
	[ ${#modules[@]} = 0 ] || go -C "$1" list -m -u -f "{{with .Update}}$1/go.mod {{.Path}} {{\$.Version}} {{.Version}}{{end}}" "${modules[@]}"
}

# patches prints the versions of Go in the workflows for which there is a newer patch release.
patches() {
	local used newest
	grep -oh 'GOTOOLCHAIN: go[0-9.]*' .github/workflows/*.yml | sort -u | while read -r _ used; do
		newest=$(go list -m -f '{{.Version}}' "$(sed -E "s|^go([0-9]+\.[0-9]+).*|go@\1|" <<<"$used")")
		[ "$used" = "go$newest" ] || echo ".github/workflows go $used go$newest"
	done
}

behind=$(
	# Newer versions of the module in test/programs/flannel do not contain flannel's plugin.
	git ls-files '*go.mod' ':!test/programs/flannel' | while read -r file; do newer "$(dirname "$file")"; done
	patches
)
[ -z "$behind" ] || {
	echo "$behind"
	exit 1
}
