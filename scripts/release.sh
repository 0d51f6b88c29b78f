#!/bin/bash
# release.sh makes the files of a release, in release/ or the folder of --out:
#
#   cni-plugins-linux-ARCH-VERSION.tgz     for each architecture, with
#     ….tgz.sha256, ….tgz.sha512           for sha256sum -c and sha512sum -c beside it
#   cni-plugins-linux-VERSION.spdx.json    what the executables are made of (SPDX 2.3)
#
#   scripts/release.sh [--out DIR] [ARCH…]    without ARCH: all of them
#
# From the same sources, with the same Go, tar and gzip, come the same bytes, wherever
# they are made. VERSION in the environment is that of the release, as for
# build_linux.sh; SOURCE_DATE_EPOCH is the time of its files, else that of the commit.
# The files of a version are never replaced: what was published stays as it was.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
architectures=(amd64 arm arm64 loong64 mips64le ppc64le riscv64 s390x)

# The oldest processor of each kind, whatever the environment says: ARMv6 with an FPU is
# every Raspberry Pi, and without one is every MIPS. No plugin misses what newer ones have.
export GOAMD64=v1 GOARM=6 GOARM64=v8.0 GOMIPS64=softfloat GOPPC64=power8 GORISCV64=rva20u64
export GOFLAGS='' GOEXPERIMENT='' LC_ALL=C

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; }
die() {
	printf 'release.sh: %s\n' "$*" >&2
	exit 1
}

# commit_time: without a checkout or SOURCE_DATE_EPOCH there is none to be had.
commit_time() {
	git -C "$top" log -1 --format=%ct 2>/dev/null || die "this is no git checkout: set SOURCE_DATE_EPOCH"
}

# archive FOLDER: its files as a tar, with nothing in it of who made it, where or when. The
# folder itself is no member: unpacking is not to change the owner or mode of one in use.
archive() {
	local members=()
	mapfile -t members < <(cd "$1" && printf './%s\n' *)
	tar --create --directory="$1" --format=ustar --mtime="@$SOURCE_DATE_EPOCH" \
		--owner=0 --group=0 --numeric-owner "${members[@]}"
}

# pack ARCH
pack() {
	local name=cni-plugins-linux-$1-$version.tgz
	GOARCH=$1 "$top/build_linux.sh" "$work/$1" >"$work/log" || die "cannot build for $1"
	cp "$top/README.md" "$top/LICENSE" "$work/$1"
	chmod 0755 "$work/$1"/*
	chmod 0644 "$work/$1"/{README.md,LICENSE}
	archive "$work/$1" | gzip -n -9 >"$work/made/$name"
	(cd "$work/made" && sha256sum "$name" >"$name.sha256" && sha512sum "$name" >"$name.sha512")
}

# bill ARCH…: the SBOM of all that was packed.
bill() {
	local arch args=()
	for arch in "$@"; do
		args+=("$work/made/cni-plugins-linux-$arch-$version.tgz=$work/$arch")
	done
	(cd "$top" && env -u GOARCH -u GOOS go run ./scripts/sbom "$version" "${args[@]}") \
		>"$work/made/cni-plugins-linux-$version.spdx.json" || die "cannot make the SBOM"
}

# publish moves what was made to its place, once all of it is made.
publish() {
	chmod 0644 "$work/made"/*
	mv "$work/made"/* "$out"
	echo "plumb $version in $out:"
	(cd "$out" && ls -l --human-readable ./*"-$version".*) | awk '{ printf "  %5s  %s\n", $5, substr($NF, 3) }'
}

out=$top/release
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage && exit ;;
	--out)
		[ $# -ge 2 ] || die "--out needs a folder"
		out=$2
		shift 2
		;;
	-*) die "unknown argument $1; there are --out and --help" ;;
	*) break ;;
	esac
done
for arch in "$@"; do
	[[ " ${architectures[*]} " = *" $arch "* ]] || die "unknown architecture $arch; there are ${architectures[*]}"
done
[ $# -gt 0 ] || set -- "${architectures[@]}"

version=$("$top/scripts/version.sh")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(commit_time)}
export SOURCE_DATE_EPOCH VERSION=$version
mkdir -p "$out"
out=$(cd "$out" && pwd)
! compgen -G "$out/cni-plugins-linux-*$version.*" >/dev/null ||
	die "$out has files of $version, which are not replaced: name another folder by --out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/made"

for arch in "$@"; do
	echo "$arch"
	pack "$arch"
done
bill "$@"
publish
