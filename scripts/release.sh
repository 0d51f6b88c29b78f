#!/bin/bash
# release.sh creates the files of a release in release/, or in the directory of --out:
#
#   cni-plugins-linux-ARCH-VERSION.tgz     one archive per architecture
#   cni-plugins-VERSION.schemas.tgz        the JSON Schemas of the plugins' configurations
#   cni-plugins-linux-VERSION.spdx.json    the SBOM of the executables (SPDX 2.3)
#   plumb-cni_…_ARCH.deb, plumb-cni-….rpm  packages per architecture
#   plumb-image-VERSION.tar                a container image for all architectures, in the OCI image layout
#   plumb-daemonset-VERSION.yaml           a DaemonSet that installs the plugins
#   plumb-chart-VERSION.tgz                the same as a Helm chart
#   ….sha256, ….sha512                     the checksums of each file except the SBOM, for sha256sum -c and
#                                          sha512sum -c
#
#   scripts/release.sh [--once] [--out DIR] [ARCH…]    builds for the architectures, or for all of them
#
# The same sources, Go, tar and gzip produce the same bytes on every machine. To check this, the script builds everything
# a second time, from a copy of the sources in another directory, with another environment and an empty build cache (or
# with the cache SECOND_GOCACHE), and fails if a file differs. --once skips the second build. At the end, the script prints how another
# person repeats the build. The environment variable VERSION is the version of the release, as for build_linux.sh.
# SOURCE_DATE_EPOCH is the time of the files, by default the time of the commit. The script does not replace the files
# of a version that exists already.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/go.sh
. "$top/scripts/go.sh"
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
	git -C "$top" log -1 --format=%ct 2>/dev/null || die "this is not a git checkout; set SOURCE_DATE_EPOCH"
}

# archive DIR MEMBER… prints a tar archive of members of a directory, sorted, without user names, and with the time of
# the release. Without a MEMBER, it contains all files as ./NAME. The directory itself is not a member, so that unpacking
# does not change the owner or mode of a directory in use.
archive() {
	local dir=$1 members=("${@:2}")
	[ $# -gt 1 ] || mapfile -t members < <(cd "$dir" && printf './%s\n' *)
	tar --create --directory="$dir" --format=ustar --mtime="@$SOURCE_DATE_EPOCH" \
		--owner=0 --group=0 --numeric-owner --sort=name "${members[@]}"
}

# units are the systemd units that an archive contains.
units=("$top/plugins/firewall/plumb-firewalld.service" "$top"/plugins/dhcp/cni-dhcp.{service,socket})

# pack ARCH creates the archive and the packages of an architecture.
pack() {
	local name=cni-plugins-linux-$1-$version.tgz
	GOARCH=$1 "$top/build_linux.sh" "$work/$1" >"$work/log" || die "cannot build for $1"
	# A version without a hyphen and a plus sign is a release. Its pages must contain the sizes of its executables.
	if [[ $1 = amd64 && $version != *[-+]* ]]; then
		tool . ./test/bench bench
		(cd "$top" && "$work/bench" -sizes "$work/amd64") || exit
	fi
	cp "$top/README.md" "$top/LICENSE" "${units[@]}" "$work/$1"
	chmod 0755 "$work/$1"/*
	chmod 0644 "$work/$1"/{README.md,LICENSE,*.service,*.socket}
	archive "$work/$1" | gzip -n -6 >"$work/made/$name"
	package_tree "$1" "$work/tree-$1"
	local arch=$1 format
	[ "$arch" != arm ] || arch=arm6 # nfpm's name for GOARM=6
	for format in deb rpm; do
		(cd "$top/scripts/packages" && VERSION=$packaged ARCH=$arch TREE="$work/tree-$1" "$work/nfpm" package --packager "$format" --target "$work/made") \
			>"$work/log" 2>&1 || die "cannot create the $format for $1: $(cat "$work/log")"
	done
}

# schemas creates the archive of the JSON Schemas, which is the same for all architectures.
schemas() {
	mkdir "$work/schemas"
	cp "$top"/cmd/plumb/internal/schema/*.schema.json "$work/schemas"
	chmod 0644 "$work/schemas"/*
	archive "$work/schemas" | gzip -n -9 >"$work/made/cni-plugins-$version.schemas.tgz"
}

# tool MODULE PACKAGE OUT builds a program that runs on this machine.
tool() { env -u GOARCH -u GOOS CGO_ENABLED=0 go -C "$top/$1" build -o "$work/$3" "$2" || die "cannot build $2"; }

# package_tree ARCH DIRECTORY creates the files of the packages of an architecture. It renames the units, because
# the distributions' packages of the reference plugins contain units with the same names.
package_tree() {
	local cni=$2/usr/lib/plumb/cni share=$2/usr/share doc=$2/usr/share/doc/plumb-cni system=$2/usr/lib/systemd/system unit name
	mkdir -p "$cni" "$doc" "$system" "$2/usr/share/lintian/overrides"
	find "$work/$1" -type f -perm -u+x -exec ln -t "$cni" {} +
	for unit in "${units[@]}"; do
		name=${unit##*/}
		sed 's|/opt/cni/bin|/usr/lib/plumb/cni|; s|cni-dhcp\.|plumb-dhcp.|g' "$unit" >"$system/${name/#cni-/plumb-}"
	done
	cp "$top"/cmd/plumb/plumb-maintain.{service,timer} "$system"
	cp "$top/scripts/packages/copyright" "$doc"
	cp "$top/scripts/packages/lintian-overrides" "$2/usr/share/lintian/overrides/plumb-cni"
	changelog | gzip -n -9 >"$doc/changelog.gz"
	"$work/plumb" man "$share/man/man8"
	gzip -n -9 "$share"/man/man8/*
	mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
	"$work/plumb" completion bash >"$share/bash-completion/completions/plumb"
	"$work/plumb" completion zsh >"$share/zsh/site-functions/_plumb"
	"$work/plumb" completion fish >"$share/fish/vendor_completions.d/plumb.fish"
	sbom "$1" | gzip -n -9 >"$doc/plumb.spdx.json.gz"
	find "$2" -type d -exec chmod 0755 {} +
	find "$2" -type f ! -path "$cni/*" -exec chmod 0644 {} +
}

# changelog prints the changelog of the Debian package, with the version that nfpm gives it.
changelog() {
	local deb=${packaged#v}
	printf 'plumb-cni (%s) unstable; urgency=medium\n\n' "${deb/-/\~}"
	printf '  * See https://github.com/plumb-cni/plumb/releases/tag/%s\n\n' "$version"
	printf ' -- plumb contributors <plumb-cni@users.noreply.github.com>  %s\n' "$(date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")"
}

# sbom ARCH… prints the SBOM of the archives.
sbom() {
	local arch args=()
	for arch in "$@"; do
		args+=("$work/made/cni-plugins-linux-$arch-$version.tgz=$work/$arch")
	done
	(cd "$top" && "$work/sbom" "$version" "${args[@]}") || die "cannot create the SBOM"
}

# image ARCH… creates the container image.
image() {
	local arch args=()
	for arch in "$@"; do
		args+=("$arch=$work/$arch")
	done
	"$work/image" "registry.example/plumb:$tag" "$work/made/plumb-image-$version.tar" "${args[@]}" || die "cannot create the image"
}

# manifests creates the DaemonSet and the Helm chart with the version of the release and the image's tag. Helm expects a
# directory with the name of the chart in the archive.
manifests() {
	sed "s|plumb:v2\.0\.0_dev|plumb:$tag|" "$top/deploy/daemonset.yaml" >"$work/made/plumb-daemonset-$version.yaml"
	mkdir "$work/chart"
	cp -RL "$top/deploy/chart" "$work/chart/plumb"
	sed -i "/^# scripts.release/d; s|^version: .*|version: ${version#v}|; s|^appVersion: .*|appVersion: $tag|" "$work/chart/plumb/Chart.yaml"
	find "$work/chart" -type d -exec chmod 0755 {} + -o -type f -exec chmod 0644 {} +
	archive "$work/chart" plumb | gzip -n -6 >"$work/made/plumb-chart-$version.tgz"
}

# checksums creates the checksum files.
checksums() (
	cd "$work/made"
	for name in *.tgz *.deb *.rpm *.tar *.yaml; do
		sha256sum "$name" >"$name.sha256"
		sha512sum "$name" >"$name.sha512"
	done
)

# again builds everything a second time and compares.
again() {
	local copy=$work/copy
	mkdir "$copy"
	tar --create --directory="$top" --exclude-vcs --exclude=./bin --exclude=./release --exclude=./.patched . | tar --extract --directory="$copy"
	(
		umask 077
		TZ=Asia/Tokyo LC_ALL=C.UTF-8 GOAMD64=v3 GOARM=7 GOFLAGS=-ldflags=-w GOCACHE=${SECOND_GOCACHE:-$work/cache} "$copy/scripts/release.sh" --once --out "$work/again" "$@" >"$work/log"
	) || die "the second build fails: $(cat "$work/log")"
	chmod 0644 "$work/made"/*
	diff --recursive --brief "$work/made" "$work/again" >&2 || die "the second build produced other bytes"
	echo "built twice, with the same bytes"
}

# repeat prints how another person repeats the build.
repeat() {
	cat <<-END
		To repeat this build with $(tar --version | head -n 1) and $(gzip --version | head -n 1), and compare it with published checksums in DIR:
		  git clone https://github.com/plumb-cni/plumb && cd plumb && git checkout $(git -C "$top" rev-parse HEAD 2>/dev/null || echo COMMIT)
		  GOTOOLCHAIN=$(go env GOVERSION) VERSION=$version SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH scripts/release.sh --once --out DIR $*
		  cd DIR && sha256sum --check *.sha256
	END
}

# publish moves the finished files to the directory of --out.
publish() {
	local name names
	mapfile -t names < <(ls "$work/made")
	chmod 0644 "$work/made"/*
	mv "$work/made"/* "$out"
	echo "plumb $version in $out:"
	for name in "${names[@]}"; do
		printf '  %5s  %s\n' "$(du --apparent-size -h "$out/$name" | cut -f 1)" "$name"
	done
}

out=$top/release
once=''
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage && exit ;;
	--once)
		once=1
		shift
		;;
	--out)
		[ $# -ge 2 ] || die "--out needs a directory"
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
tag=${version//+/_}           # of the image; a tag cannot contain a plus sign, which Helm replaces in the same way
packaged=${version/+dev/-dev} # sorts before v2.0.0 in dpkg and rpm
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(commit_time)}
export SOURCE_DATE_EPOCH VERSION=$version
mkdir -p "$out"
out=$(cd "$out" && pwd)
! compgen -G "$out/cni-plugins-*$version.*" >/dev/null ||
	die "$out contains files of $version, which the script does not replace; name another directory with --out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/made"

tool . ./scripts/sbom sbom
tool . ./scripts/image image
GOFLAGS="${GOFLAGS:-} -tags=man" tool . ./cmd/plumb plumb
tool scripts/packages github.com/goreleaser/nfpm/v2/cmd/nfpm nfpm
for arch in "$@"; do
	echo "$arch"
	pack "$arch"
done
schemas
manifests
image "$@"
sbom "$@" >"$work/made/cni-plugins-linux-$version.spdx.json"
checksums
[ -n "$once" ] || again "$@"
publish
[ -n "$once" ] || repeat "$@"
