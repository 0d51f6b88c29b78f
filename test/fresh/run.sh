#!/bin/bash
# run.sh runs the README's two commands on a new Debian with only Go, git and iproute2, in a clean clone
# of HEAD. Run it before a release.
#
#   test/fresh/run.sh                    scripts/quickstart.sh, then scripts/test.sh
#   test/fresh/run.sh --all              the same, with the arguments for scripts/test.sh
#   test/fresh/run.sh ./pkg/nl           the same for one package
#   test/fresh/run.sh --exec COMMAND…    the command, in the clone
#   test/fresh/run.sh --mirror           print the address of the Debian mirror
#
# It needs root, debootstrap (which it installs on Debian) and some GB in /var/tmp. The new Debian is a
# directory, which is the root in new mount and PID namespaces, so that all mounts and processes end with
# the run. The script removes the directory at the end. The new Debian uses this machine's Go toolchain
# (read-only), apt mirror (or, on Ubuntu, $DEBIAN_MIRROR), apt's Acquire settings, certificate authorities,
# resolver and Go module proxy settings. The Go caches are empty.
set -euo pipefail

top=$(cd "$(dirname "$0")/../.." && pwd)
suite=bookworm

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
die() {
	echo "run.sh: $*" >&2
	exit 1
}

# mirror prints the address of the Debian mirror that apt uses on this machine.
mirror() {
	[ -z "${DEBIAN_MIRROR:-}" ] || {
		echo "$DEBIAN_MIRROR"
		return
	}
	# shellcheck disable=SC2016 # expanded by apt-get
	apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
		awk -v release="$(. /etc/os-release && echo "$VERSION_CODENAME")" '$1 == release && $2 == "main" && !seen++ {print $3}'
}

# install_debian installs the new Debian in $root.
install_debian() {
	local from proxy=''
	from=$(mirror)
	[ -n "$from" ] || die "apt has no Debian mirror here"
	eval "$(apt-config shell proxy Acquire::http::Proxy)"
	echo "==> installing Debian $suite with git and iproute2 in $root"
	env ${proxy:+"http_proxy=$proxy"} debootstrap --variant=minbase --include=git,iproute2 "$suite" "$root" "$from" >"$work/debootstrap.log" || {
		tail -n 5 "$work/debootstrap.log" >&2
		die "debootstrap failed"
	}
	apt-config dump | grep '^Acquire::' | grep -v '^Acquire::IndexTargets' >"$root/etc/apt/apt.conf.d/50this-machine" || :
	cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
	mkdir -p "$root/etc/ssl" "$root/usr/local/go"
	cp --dereference "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/this-machine.crt"
	git clone --quiet "$top" "$root/root/plumb"
}

# inside runs a command in the clone on the new Debian, with a new environment.
inside() {
	local settings=(HOME=/root "TERM=${TERM:-dumb}" SSL_CERT_FILE=/etc/ssl/this-machine.crt
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin) name
	for name in GOPROXY GOSUMDB GONOSUMDB GONOPROXY GOPRIVATE GOINSECURE GOFLAGS GOTOOLCHAIN; do
		settings+=("$name=$(go env "$name")")
	done
	for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
		[ -z "${!name:-}" ] || settings+=("$name=${!name}")
	done
	# This uses pivot_root, because in a chroot the kernel refuses user namespaces, and the pivot_root with
	# which runc creates containers.
	# shellcheck disable=SC2016 # expanded by the inner shells
	unshare --mount --pid --fork --kill-child --propagation private sh -ec '
		root=$1 && shift
		mount --bind "$root" "$root"
		mount --bind --read-only "$1" "$root/usr/local/go" && shift
		mount -t proc proc "$root/proc"
		mount --rbind /sys "$root/sys"
		mount --rbind /dev "$root/dev"
		mount -t tmpfs -o mode=755 tmpfs "$root/run"
		cd "$root"
		pivot_root . .
		umount -l .
		cd /root/plumb
		exec env -i "$@"' sh "$root" "$(go env GOROOT)" "${settings[@]}" "$@"
}

# report NAME COMMAND… runs a command on the new Debian, and prints whether it succeeded.
report() {
	local name=$1 begin=$SECONDS
	shift
	echo "==> $name"
	inside "$@" || {
		echo "FAILED on a new Debian: $name"
		exit 1
	}
	echo "ok on a new Debian: $name ($((SECONDS - begin)) s)"
}

case ${1:-} in
-h | --help) usage && exit ;;
--mirror) mirror && exit ;;
esac
[ "$(id -u)" = 0 ] || die "run this as root"
"$top/scripts/need.sh" debootstrap:debootstrap git:git /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
work=$(mktemp -d /var/tmp/plumb-fresh.XXXXXX)
root=$work/root
# The directory contains no mounts, because inside mounts only in its own mount namespace.
trap 'rm -rf --one-file-system "$work"' EXIT
install_debian
if [ "${1:-}" = --exec ]; then
	shift
	report "$*" "$@"
else
	report "scripts/quickstart.sh" scripts/quickstart.sh
	report "scripts/test.sh $*" scripts/test.sh "$@"
fi
