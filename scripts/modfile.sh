#!/bin/sh
# modfile.sh prints the flag that `go build` needs for the processor in GOARCH. It is
# empty for 64-bit processors.
#
# google/nftables does not compile for 32-bit processors. For those, modfile.sh copies the
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
# Without the ceiling, git would take the paths for those of this repository.
GIT_CEILING_DIRECTORIES=$PWD git -C "$work/new" apply "$PWD/docs/upstream/google-nftables-32-bit.patch" || {
	echo "modfile.sh: the patch does not apply to this version of $module: see whether it compiles for $(go env GOARCH) as it is" >&2
	exit 1
}
cp go.mod go.sum "$work"
go mod edit -replace="$module=$copy" "$work/go.mod"
# Another build may be using a copy that was made before; it has the same content.
[ -d "$copy" ] || mv -T "$work/new" "$copy" 2>/dev/null || [ -d "$copy" ]
mv "$work/go.mod" "$work/go.sum" .patched/
echo "-modfile=.patched/go.mod"
