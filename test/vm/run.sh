#!/bin/bash
# run.sh runs tests on Debian's kernel, in a virtual machine with this machine's files. Use it for tests
# of features that this machine's kernel may lack.
#
#   test/vm/run.sh                       all specs with the label nstest.Kernel, in one boot
#   test/vm/run.sh ./pkg/nl -run TestNL  go test with these arguments, one boot per package
#   test/vm/run.sh --exec COMMAND…       the command
#   test/vm/run.sh --kernel bookworm-backports …   any of these on the kernel of this suite
#
# It emulates the processor (TCG), which does not need /dev/kvm and is ten to twenty times slower. It
# installs missing Debian packages (as root). It does not install the kernel, but unpacks it in
# ${XDG_CACHE_HOME:-/var/cache}/plumb-vm, and downloads it again if it is missing there. The virtual
# machine mounts this machine's / read-only, with an overlay in memory. Its two network cards (e1000e and
# virtio) are connected only with each other. With CNI_TEST_REQUIRE=all, no test may be skipped in it.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=${here%/test/vm}
# shellcheck source=scripts/go.sh
. "$root/scripts/go.sh"
suite=bookworm
cache=${XDG_CACHE_HOME:-/var/cache}/plumb-vm
seconds=7200 # limit per boot, for a virtual machine that hangs
memory=2048 # MiB, including the files of the overlay
cpus=2

die() {
	echo "run.sh: $*" >&2
	exit 1
}

# fetch downloads and unpacks the suite's kernel into $kernel. It uses apt with separate lists, and does
# not change this machine's packages, lists and sources.
fetch() {
	local mirror image
	# shellcheck disable=SC2016 # expanded by apt-get
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
	mv -T "$work/root" "$kernel" 2>/dev/null || [ -d "$kernel" ] # or another run has done so meanwhile
	rm -rf "$work"
}

# initramfs prints an initramfs with busybox, init.sh and the modules for the shared directories.
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

# boot runs a command in the virtual machine, in the same directory and with the same environment, and
# returns its status.
boot() {
	local dir=$work/vm version
	version=$(ls "$kernel/lib/modules")
	mkdir -p "$dir"
	initramfs "$work/initramfs" "$version" >"$work/initrd"
	{
		echo 'exec </dev/null >/dev/ttyS1 2>&1; stty -F /dev/ttyS1 -opost'
		export -p
		echo 'ip link set lo up; modprobe -a br_netfilter e1000e virtio_net' # these are not loaded automatically
		printf 'cd %q; ( %s ); echo $? >%q\n' "$PWD" "$(printf '%q ' "$@")" "$dir/status"
		echo 'sync; exec busybox poweroff -f'
	} >"$dir/job"
	# norandmaps gives a program the same addresses each time. It then starts in half the time, because
	# qemu can use the translated code again.
	# no_timer_check skips the kernel's test of timer interrupts, which come too late on a busy machine.
	# shellcheck disable=SC2054 # the commas are part of qemu's arguments
	local machine=(-accel tcg,thread=multi -cpu max -machine q35 -m "$memory" -smp "$cpus"
		-nodefaults -no-user-config -display none -no-reboot -device virtio-rng-pci
		-netdev hubport,id=net0,hubid=0 -device e1000e,netdev=net0,mac=52:54:00:00:00:01,romfile=
		-netdev hubport,id=net1,hubid=0 -device virtio-net-pci,netdev=net1,mac=52:54:00:00:00:02,romfile=
		-kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd"
		-append "console=ttyS0 quiet panic=-1 mitigations=off nopti no5lvl norandmaps no_timer_check random.trust_cpu=1 vm.dir=$dir vm.kernel=$kernel"
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

# plugins builds the executables that tests call, so that they are not built in the virtual machine.
plugins() {
	if [ -z "${PLUMB_BIN:-}" ]; then
		export PLUMB_BIN=$work/bin
		"$root/build_linux.sh" "$PLUMB_BIN" >&2
	fi
	[ -n "${CNI_REFERENCE:-}" ] || CNI_REFERENCE=$("$root/scripts/programs.sh" reference)
	export CNI_REFERENCE
	# a spec of test/e2e starts kube-proxy, which run.sh does not build, because this takes minutes
	KUBERNETES=$("$root/scripts/programs.sh" --cached kubernetes kube-proxy 2>/dev/null) || KUBERNETES=''
	export KUBERNETES
}

# packages prints the packages with labelled specs. The packages that take longest come first. If the file $lacking says which
# specs this machine skipped, packages omits the packages without such a spec, because their labelled specs have run on
# this machine.
packages() {
	local package long='/(bridge|faults|firewall|ipvlan|portmap|vlan|vrf)$'
	grep -rl --include='*_test.go' 'Label(nstest\.Kernel)' cmd pkg plugins test/e2e test/faults | xargs -n 1 dirname | sort -u |
		while read -r package; do
			if [ -z "$lacking" ] || grep -q "^lacks $package: " "$lacking"; then
				echo "$package"
			fi
		done | awk -v long="$long" '$0 ~ long {print; next} {rest = rest $0 "\n"} END {printf "%s", rest}'
}

# focus prints flags that select the specs of a package that this machine skipped. Ginkgo compares them with the name of the
# suite and the name of the spec. The name of a row of a table may contain the address of a function, which differs between
# two test binaries.
focus() {
	# shellcheck disable=SC2016 # a character of a regular expression
	sed -n "s|^lacks $1: \\(.*\\): [^:]*$|\\1|p" "$lacking" | sed 's/[][\.*^$()+?{|}]/\\&/g; s/0x[0-9a-f]\{5,\}/0x[0-9a-f]+/g; s/.*/-ginkgo.focus=^\\S+ &$/' | sort -u
}

# suites runs the labelled specs of packages in one boot, one package per processor at a time.
suites() {
	local list lacking=${CNI_TEST_NEEDS:-} skipped=${CNI_TEST_NEEDS:-} features=$work/vm/needs status=0
	[ "${CNI_TEST_FAULTS:-}" != all ] || lacking=''
	mapfile -t list < <(packages)
	mkdir -p "$work/vm"
	: >"$features"
	if [ ${#list[@]} -gt 0 ]; then
		CNI_TEST_REQUIRE=all CNI_TEST_NEEDS=$features run_suites "${list[@]}" || status=$?
	fi
	[ -z "$skipped" ] || check_skipped "$skipped" "$features" || status=1
	return $status
}

# run_suites builds the packages' test binaries, and runs their labelled specs in the virtual machine, or those of them that
# this machine skipped.
run_suites() {
	local package
	CGO_ENABLED=0 go test -c -o "$work/tests/" "${@/#/./}" || return
	printf '%s\n' "$@" >"$work/packages"
	for package; do
		if [ -n "$lacking" ]; then
			echo -test.short
			focus "$package"
		else
			echo -ginkgo.fail-on-empty
		fi >"$work/tests/${package##*/}.flags"
	done
	# shellcheck disable=SC2016 # expanded in the virtual machine
	boot xargs -a "$work/packages" -P "$cpus" -n 1 bash -c '
		status=0
		suite=$(awk "/^func Test/ {name = \$2} /RunSpecs/ {print name}" "$1"/*_suite_test.go)
		sandbox=$PWD/scripts/sandbox.sh
		mapfile -t flags <"$0/tests/${1##*/}.flags"
		out=$(cd "$1" && "$sandbox" "$0/tests/${1##*/}.test" -test.run "^${suite%%(*}$" \
			-test.timeout 60m -ginkgo.label-filter kernel "${flags[@]}" 2>&1) || status=1
		printf "%s\n" "--- $1" "$out"
		exit $status' "$work"
}

# check_skipped fails if this machine skipped a test because its kernel lacks a feature, and no test used that
# feature in the virtual machine.
check_skipped() {
	local missing
	missing=$(comm -23 <(sed -n 's/^lacks //p' "$1" | sort -u) <(sed -n 's/^has //p' "$2" | sort -u))
	[ -n "$missing" ] || return 0
	echo "run.sh: no test used these features, neither on this machine nor in the virtual machine (add Label(nstest.Kernel) to a spec):" >&2
	echo "$missing" >&2
	return 1
}

if [ "${1:-}" = --kernel ]; then
	[ $# -ge 2 ] || die "--kernel needs a suite"
	suite=$2
	shift 2
fi
[ "$(uname -m)" = x86_64 ] || die "this works on amd64 only"
[ -z "${CNI_TEST_NEEDS:-}" ] || [ -f "$CNI_TEST_NEEDS" ] || die "CNI_TEST_NEEDS: $CNI_TEST_NEEDS does not exist"
"$root/scripts/need.sh" qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod cpio:cpio xz:xz-utils \
	ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack ping:iputils-ping sysctl:procps dnsmasq:dnsmasq-base ipvsadm:ipvsadm ipset:ipset # for the tests in the virtual machine
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
