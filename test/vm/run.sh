#!/bin/bash
# run.sh runs tests on Debian's own kernel, in a virtual machine that has this machine's
# files: what the kernel at hand may lack is tested there.
#
#   test/vm/run.sh                       all specs that are labelled nstest.Kernel, in one boot
#   test/vm/run.sh ./pkg/nl -run TestNL  go test with these arguments, a boot a package
#   test/vm/run.sh --exec COMMAND…       the command
#   test/vm/run.sh --kernel bookworm-backports …   any of them on that suite's kernel
#
# It emulates the processor (TCG), which takes no /dev/kvm and is ten to twenty times
# slower. It installs the Debian packages that it needs where they are missing (as
# root), and keeps the kernel, which it does not install, under
# ${XDG_CACHE_HOME:-/var/cache}/plumb-vm; a folder removed there is fetched anew. The guest sees this machine's / read-only
# below a layer in memory, and has no network device. What is tested lacks nothing
# there: CNI_TEST_REQUIRE=all.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=${here%/test/vm}
suite=bookworm
cache=${XDG_CACHE_HOME:-/var/cache}/plumb-vm
seconds=7200 # at most, a boot: a limit for what hangs, not for slow machines
memory=2048 # MiB; what the guest writes is in it
cpus=2

die() {
	echo "run.sh: $*" >&2
	exit 1
}

# fetch unpacks the suite's kernel into $kernel. apt has lists of its own for it: the
# machine's packages, lists and sources stay as they are.
fetch() {
	local mirror image
	# shellcheck disable=SC2016 # for apt-get
	mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
		awk -v release="$(. /etc/os-release && echo "$VERSION_CODENAME")" '$1 == release && $2 == "main" {print $3; exit}')
	[ -n "$mirror" ] || die "apt has no Debian mirror here"
	echo "fetching the kernel of Debian $suite into $kernel"
	mkdir -p "$cache"
	fetching=$(mktemp -d "$cache/fetch.XXXXXX")
	local work=$fetching
	mkdir -p "$work"/{lists,cache/archives}/partial "$work/root"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources"
	local apt=(-qq -o "Dir::Etc::SourceList=$work/sources" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
		-o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
	apt-get "${apt[@]}" update
	image=$(apt-cache "${apt[@]}" depends linux-image-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
	(cd "$work" && apt-get "${apt[@]}" download "$image")
	dpkg-deb -x "$work/$image"_*.deb "$work/root"
	depmod -b "$work/root" "$(ls "$work/root/lib/modules")"
	mv -T "$work/root" "$kernel" 2>/dev/null || [ -d "$kernel" ] # another run was first
	rm -rf "$work"
}

# initramfs packs busybox, init.sh and the modules that the shared files need.
initramfs() {
	local into=$1 version=$2 module i=10
	mkdir -p "$into"/{bin,proc,sys,dev,below,above,new,modules}
	cp "$(command -v busybox)" "$into/bin/busybox"
	for program in sh cat insmod ln mkdir mount switch_root umount uname; do
		ln -s busybox "$into/bin/$program"
	done
	install -m 755 "$here/init.sh" "$into/init"
	for module in virtio_pci 9pnet_virtio 9p overlay; do
		modprobe -d "$kernel" -S "$version" --show-depends "$module"
	done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r module; do
		i=$((i + 1))
		case $module in
		*.xz) xz -dc "$module" >"$into/modules/$i.ko" ;;
		*) cp "$module" "$into/modules/$i.ko" ;;
		esac
	done
	(cd "$into" && find . | cpio -o -H newc --quiet)
}

# boot runs a command in the guest, in this folder, with this environment, and ends with
# its status.
boot() {
	local dir=$work/vm version
	version=$(ls "$kernel/lib/modules")
	mkdir -p "$dir"
	initramfs "$work/initramfs" "$version" >"$work/initrd"
	{
		echo 'exec </dev/null >/dev/ttyS1 2>&1; stty -F /dev/ttyS1 -opost'
		export -p
		echo 'ip link set lo up; modprobe br_netfilter' # which no use of it loads
		printf 'cd %q; ( %s ); echo $? >%q\n' "$PWD" "$(printf '%q ' "$@")" "$dir/status"
		echo 'sync; exec busybox poweroff -f'
	} >"$dir/job"
	# Starting a program costs half where its addresses are the same each time, for then
	# its translation is there already.
	# shellcheck disable=SC2054 # the commas are qemu's
	local machine=(-accel tcg,thread=multi -cpu max -machine q35 -m "$memory" -smp "$cpus"
		-nodefaults -no-user-config -display none -no-reboot -device virtio-rng-pci
		-kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd"
		-append "console=ttyS0 quiet panic=-1 mitigations=off nopti no5lvl norandmaps random.trust_cpu=1 vm.dir=$dir vm.kernel=$kernel"
		-serial "file:$work/console" -serial stdio)
	shared() {
		machine+=(-fsdev "local,id=$1,security_model=none,multidevs=remap,$2" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
	}
	shared root path=/,readonly=on
	shared dir "path=$dir"
	timeout -k 5 "$seconds" qemu-system-x86_64 "${machine[@]}" </dev/null || echo "run.sh: qemu ended with status $?" >&2
	if [ ! -s "$dir/status" ]; then
		echo "run.sh: the virtual machine did not finish within $seconds s; the end of its console:" >&2
		tail -n 20 "$work/console" >&2
		return 125
	fi
	return "$(cat "$dir/status")"
}

# plugins makes the executables that tests call, for they are not to be built in the
# guest.
plugins() {
	[ -z "${PLUMB_BIN:-}" ] || return 0
	export PLUMB_BIN=$work/bin
	"$root/build_linux.sh" "$PLUMB_BIN" >&2
}

# suites builds the packages that have labelled specs and runs those, all in one boot.
suites() {
	local package list=$work/packages
	grep -rl --include='*_test.go' 'Label(nstest\.Kernel)' pkg plugins | xargs -n 1 dirname | sort -u >"$list"
	while read -r package; do
		CGO_ENABLED=0 go test -c -o "$work/${package//\//-}.test" "./$package"
	done <"$list"
	mkdir -p "$work/vm"
	local lacking=${CNI_TEST_NEEDS:-} answers=$work/vm/needs
	: >"$answers"
	export CNI_TEST_REQUIRE=all CNI_TEST_NEEDS=$answers
	local status=0
	# shellcheck disable=SC2016 # for the guest's shell
	boot bash -c '
		status=0
		while read -r package; do
			echo "--- $package"
			suite=$(awk "/^func Test/ {name = \$2} /RunSpecs/ {print name}" "$package"/*_suite_test.go)
			(cd "$package" && ../../scripts/sandbox.sh "$0/${package//\//-}.test" -test.run "^${suite%%(*}$" \
				-test.timeout 60m -ginkgo.label-filter kernel -ginkgo.fail-on-empty) || status=1
		done <"$0/packages"
		exit $status' "$work" || status=$?
	[ -z "$lacking" ] || counterparts "$lacking" "$answers" || status=1
	return $status
}

# counterparts fails if a test skipped on this machine for want of something that no
# test had in the guest.
counterparts() {
	local missing
	missing=$(comm -23 <(sed -n 's/^lacks //p' "$1" | sort -u) <(sed -n 's/^has //p' "$2" | sort -u))
	[ -n "$missing" ] || return 0
	echo "run.sh: skipped on this machine, and not run in the virtual one (they need Label(nstest.Kernel)):" >&2
	echo "$missing" >&2
	return 1
}

if [ "${1:-}" = --kernel ]; then
	[ $# -ge 2 ] || die "--kernel needs a suite"
	suite=$2
	shift 2
fi
[ "$(uname -m)" = x86_64 ] || die "only amd64 has been tried"
"$root/scripts/need.sh" qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod cpio:cpio xz:xz-utils \
	ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack ping:iputils-ping sysctl:procps # for the tests in the machine
work=$(mktemp -d)
fetching=''
trap 'rm -rf "$work" "$fetching"' EXIT
kernel=$cache/$suite
[ -d "$kernel" ] || fetch >&2
case ${1:-} in
--exec)
	shift
	boot "$@"
	;;
*)
	plugins
	cd "$root"
	if [ $# = 0 ]; then
		suites
	else
		export CNI_TEST_REQUIRE=all CGO_ENABLED=0
		go test -count=1 -timeout 120m -exec "$here/run.sh --kernel $suite --exec $root/scripts/sandbox.sh" "$@"
	fi
	;;
esac
