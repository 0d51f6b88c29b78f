#!/bin/bash
# programs.sh builds programs of other projects in the versions of test/programs/MODULE/go.mod, unless they are built already,
# and prints their directory, which is in the user's cache directory.
#
#   scripts/programs.sh reference                  all programs of the module, which are the reference plugins
#   scripts/programs.sh kubernetes kubelet kubectl only these programs
#   scripts/programs.sh --cached MODULE PROGRAM…   build nothing, and fail if a program is not built
#   scripts/programs.sh --version MODULE           build nothing, and print the version
set -euo pipefail
# shellcheck source=scripts/go.sh
. "$(dirname "$0")/go.sh"
cached='' only_version=''
case ${1:-} in
--cached) cached=yes && shift ;;
--version) only_version=yes && shift ;;
esac
[ $# -ge 1 ] || {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
module=$1
shift
cd "$(dirname "$0")/../test/programs/$module"

# version MODULE prints the version of a module in go.mod.
version() { go list -m -f '{{.Version}}' "$1"; }

# The flags set what the projects' own builds set. Without its version, kubelet reports v0.0.0.
flags=(-trimpath)
case $module in
reference | flannel)
	version=$(version github.com/containernetworking/plugins)
	ldflags="-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$version"
	;;
kubernetes)
	version=$(version k8s.io/kubernetes)
	ldflags=''
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
	done
	;;
containerd)
	version=$(version github.com/containerd/containerd/v2)
	ldflags="-X github.com/containerd/containerd/v2/version.Version=$version"
	flags+=(-tags "no_btrfs no_devmapper no_zfs")
	;;
coredns)
	version=$(version github.com/coredns/coredns)
	ldflags=''
	;;
whereabouts)
	version=$(version github.com/k8snetworkplumbingwg/whereabouts)
	ldflags="-X github.com/k8snetworkplumbingwg/whereabouts/pkg/version.Version=$version"
	;;
helm)
	version=$(version helm.sh/helm/v4)
	ldflags="-X helm.sh/helm/v4/internal/version.version=$version"
	;;
esac
if [ -n "$only_version" ]; then
	echo "$version"
	exit
fi
flags+=(-ldflags "-s -w $ldflags")
export CGO_ENABLED=0

dir=${XDG_CACHE_HOME:-$HOME/.cache}/plumb-test/$module-$version-$(go env GOVERSION GOARCH | cat - go.sum | sha256sum | cut -c 1-16)
tools=$(go mod edit -json | jq -r '.Tool[].Path')
[ $# -gt 0 ] || mapfile -t all < <(sed 's|/cmd$||; s|.*/||; s|^e2e$|e2e.test|' <<<"$tools")
[ $# -gt 0 ] || set -- "${all[@]}"
mkdir -p "$dir"
new=$(mktemp -d "$dir/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
for program; do
	[ ! -x "$dir/$program" ] || continue
	if [ -n "$cached" ]; then
		echo "programs.sh: $dir/$program is not built" >&2
		exit 1
	fi
	if [ "$program" = e2e.test ]; then
		go test -vet=off -c "${flags[@]}" -o "$new/$program" k8s.io/kubernetes/test/e2e
	else
		go build "${flags[@]}" -o "$new/$program" "$(grep -E "(^|/)$program(/cmd)?\$" <<<"$tools")"
	fi
	chmod 755 "$new/$program"
	mv -T "$new/$program" "$dir/$program" # another call may have built the same
done
echo "$dir"
