#!/bin/bash
# release.sh makes the files of a release in release/, or in the folder of --out:
#
#   cni-plugins-linux-ARCH-VERSION.tgz     one archive per architecture
#     ….tgz.sha256, ….tgz.sha512           its checksums, for sha256sum -c and sha512sum -c
#   cni-plugins-VERSION.schemas.tgz        the JSON Schemas of the plugins' configurations
#   cni-plugins-linux-VERSION.spdx.json    the SBOM of the executables (SPDX 2.3)
#
#   scripts/release.sh [--out DIR] [ARCH…]    without ARCH: all architectures
#
# The same sources, Go, tar and gzip give the same bytes on every machine. The environment variable
# VERSION is the version of the release, as for build_linux.sh. SOURCE_DATE_EPOCH is the time of the
# files; without it they have the time of the commit. The script does not replace the files of a
# version that exists already.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
architectures=(amd64 arm arm64 loong64 mips64le ppc64le riscv64 s390x)

# Build for the oldest processors of each architecture, regardless of the environment: ARMv6 with an
# FPU, as in all Raspberry Pis, and MIPS without an FPU.
export GOAMD64=v1 GOARM=6 GOARM64=v8.0 GOMIPS64=softfloat GOPPC64=power8 GORISCV64=rva20u64
export GOFLAGS='' GOEXPERIMENT='' LC_ALL=C

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
die() {
	printf 'release.sh: %s\n' "$*" >&2
	exit 1
}

# commit_time prints the time of the commit.
commit_time() {
	git -C "$top" log -1 --format=%ct 2>/dev/null || die "this is no git checkout: set SOURCE_DATE_EPOCH"
}

# archive FOLDER prints a tar archive of the files, without user names, and with the time of the
# release. The folder is no member, so that unpacking does not change owner or mode of a folder in
# use.
archive() {
	local members=()
	mapfile -t members < <(cd "$1" && printf './%s\n' *)
	tar --create --directory="$1" --format=ustar --mtime="@$SOURCE_DATE_EPOCH" \
		--owner=0 --group=0 --numeric-owner "${members[@]}"
}

# The units of systemd that an archive has.
units=("$top/plugins/firewall/plumb-firewalld.service" "$top"/plugins/dhcp/cni-dhcp.{service,socket})

# pack ARCH makes the archive and the checksum files of an architecture.
pack() {
	local name=cni-plugins-linux-$1-$version.tgz
	GOARCH=$1 "$top/build_linux.sh" "$work/$1" >"$work/log" || die "cannot build for $1"
	cp "$top/README.md" "$top/LICENSE" "${units[@]}" "$work/$1"
	chmod 0755 "$work/$1"/*
	chmod 0644 "$work/$1"/{README.md,LICENSE,*.service,*.socket}
	archive "$work/$1" | gzip -n -9 >"$work/made/$name"
	(cd "$work/made" && sha256sum "$name" >"$name.sha256" && sha512sum "$name" >"$name.sha512")
}

# schemas makes the archive of the JSON Schemas, which is the same for all architectures.
schemas() {
	mkdir "$work/schemas"
	cp "$top"/cmd/plumb/internal/schema/*.schema.json "$work/schemas"
	chmod 0644 "$work/schemas"/*
	archive "$work/schemas" | gzip -n -9 >"$work/made/cni-plugins-$version.schemas.tgz"
}

# sbom ARCH… makes the SBOM of the archives.
sbom() {
	local arch args=()
	for arch in "$@"; do
		args+=("$work/made/cni-plugins-linux-$arch-$version.tgz=$work/$arch")
	done
	(cd "$top" && env -u GOARCH -u GOOS go run ./scripts/sbom "$version" "${args[@]}") \
		>"$work/made/cni-plugins-linux-$version.spdx.json" || die "cannot make the SBOM"
}

# publish moves the finished files to the folder of --out.
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
	-*) die "unknown argument $1 (see --help)" ;;
	*) break ;;
	esac
done
for arch in "$@"; do
	[[ " ${architectures[*]} " = *" $arch "* ]] || die "unknown architecture $arch; use one of ${architectures[*]}"
done
[ $# -gt 0 ] || set -- "${architectures[@]}"

version=$("$top/scripts/version.sh")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(commit_time)}
export SOURCE_DATE_EPOCH VERSION=$version
mkdir -p "$out"
out=$(cd "$out" && pwd)
! compgen -G "$out/cni-plugins-*$version.*" >/dev/null ||
	die "$out has files of $version, which are not replaced: name another folder with --out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/made"

for arch in "$@"; do
	echo "$arch"
	pack "$arch"
done
schemas
sbom "$@"
publish
