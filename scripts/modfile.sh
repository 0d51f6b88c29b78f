#!/bin/sh
# modfile.sh prints the flag that `go build` needs for the architecture GOARCH. For 64-bit
# processors, it prints nothing.
#
# google/nftables does not compile for 32-bit processors. For these, modfile.sh copies the
# library to .patched/, applies docs/upstream/google-nftables-32-bit.patch, and prints
# -modfile= with a go.mod that names the copy. Remove this script and the patch when go.mod
# names a version that compiles.
set -eu

cd "$(dirname "$0")/.."
case $(go env GOARCH) in
386 | arm | mips | mipsle) ;;
*) exit ;;
esac

module=github.com/google/nftables
go mod download "$module"
from=$(go list -m -f '{{.Dir}}' "$module")
copy=./.patched/nftables-$(go list -m -f '{{.Version}}' "$module")
mkdir -p .patched
work=$(mktemp -d .patched/work.XXXXXX)
trap 'rm -rf "$work"' EXIT
cp -r "$from" "$work/new"
chmod -R u+w "$work/new"
# Without the ceiling, git would look for the paths in this repository.
GIT_CEILING_DIRECTORIES=$PWD git -C "$work/new" apply "$PWD/docs/upstream/google-nftables-32-bit.patch" || {
	echo "modfile.sh: the patch does not apply to this version of $module; check whether the version compiles for $(go env GOARCH) without it" >&2
	exit 1
}
cp go.mod go.sum "$work"
go mod edit -replace="$module=$copy" "$work/go.mod"
# Keep an earlier copy with the same content, because another build may be using it.
[ -d "$copy" ] || mv -T "$work/new" "$copy" 2>/dev/null || [ -d "$copy" ]
mv "$work/go.mod" "$work/go.sum" .patched/
echo "-modfile=.patched/go.mod"
