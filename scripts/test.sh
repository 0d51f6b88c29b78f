#!/bin/bash
# test.sh runs the checks and tests that must pass before a commit: static checks, and all tests.
#
#   scripts/test.sh                        all checks and tests
#   scripts/test.sh ./pkg/nl -ginkgo.focus veth     go test with these arguments
#   scripts/test.sh --fast                 a minute: format, vet, unit tests and tests in process, with a
#                                          part of each fault sweep
#   scripts/test.sh --faults               all faults of test/faults and plugins/dhcp; the full run has a part of them
#
# It installs missing Debian packages (as root). Each test binary runs in its own network and mount
# namespaces (scripts/sandbox.sh), and makes more network namespaces, so that it does not change this
# machine. A test is skipped if this kernel lacks a feature; with CNI_TEST_REQUIRE=all it fails. A
# skipped test must run on Debian's kernel (test/vm/run.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

# Programs and files that the scripts and tests need and that a Debian with Go and git may lack, each
# with its package. The race detector needs a C compiler and the headers of the C library.
# test/programs_test.go checks that the list is complete.
needed=(
	ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack ping:iputils-ping openssl:openssl jq:jq sysctl:procps
	git:git gcc:gcc /usr/include/stdio.h:libc6-dev shellcheck:shellcheck
	qemu-s390x-static:qemu-user-static dbus-daemon:dbus firewalld:firewalld dnsmasq:dnsmasq-base
	kea-dhcp4:kea-dhcp4-server lintian:lintian rpm:rpm
	/usr/lib/cni/bridge:containernetworking-plugins
)

# The Go modules of this checkout.
modules=(. engine/etcd scripts/checks scripts/packages test/engine test/runtimes)

bold='' plain=''
if [ -t 1 ]; then
	bold=$'\033[1m' plain=$'\033[0m'
else
	export GINKGO_NO_COLOR=1
fi

# download fetches the sources of all dependencies, so that later steps print no progress.
download() {
	local module
	for module in "${modules[@]}"; do
		go -C "$module" mod download || return
	done
}

build() {
	PLUMB_BIN=$work/bin
	export PLUMB_BIN
	./build_linux.sh "$PLUMB_BIN"
}

# tests uses the race detector. The executables that the tests run are built without it. It runs four
# packages at a time, because they wait more than they compute. The timeout is for tests that hang: a package
# takes minutes, and more on a slow machine.
tests() { go test -race -count=1 -p 4 -timeout 60m -exec "$PWD/scripts/sandbox.sh" "$@"; }

# suites are the tests of packages with the race detector, and then those in test/ without it: these
# start executables, and the race detector would double the time of the rest.
suites() {
	local packages status=0
	mapfile -t packages < <(go list ./... | grep -v /plumb/test)
	tests "${packages[@]}" || status=$?
	go test -count=1 -p 4 -timeout 60m -exec "$PWD/scripts/sandbox.sh" ./test/... || status=$?
	return "$status"
}

# faults does not use the race detector, because it tests the built executables.
faults() { CNI_TEST_FAULTS=all go test -count=1 -timeout 3h -v -exec "$PWD/scripts/sandbox.sh" ./test/faults ./plugins/dhcp "$@"; }

# fast does not use the race detector, and leaves out the tests of the executables. It runs four
# packages at a time, too, and starts with the one that waits longest.
fast() { go test -short -count=1 -p 4 -timeout 60m -exec "$PWD/scripts/sandbox.sh" ./plugins/firewall ./plugins/... ./pkg/... ./test ./test/nstest; }

# silent runs a command, and fails if the command prints something.
silent() {
	local out
	out=$("$@" 2>&1) && [ -z "$out" ] && return
	echo "$out"
	return 1
}

# bench runs some scenarios, to check that bench.sh works. The figures do not matter.
bench() {
	scripts/bench.sh --quick -n 3 --only start/bridge,loopback,tuning,host-local/0,host-local/1000,bridge/v4,ptp/v4,macvlan/v4,bandwidth,portmap/1,firewall/iptables,chain,burst/bridge/x8
}

# start_engine starts the tests of the engines. They wait most of the time, and run beside the virtual machine.
start_engine() {
	setsid test/engine/run.sh >"$work/engine" 2>&1 &
	engine=$!
}

# engine waits for the tests of the engines, and prints what they printed.
engine() {
	local status=0
	wait "$engine" || status=$?
	engine=''
	cat "$work/engine"
	return "$status"
}

# clean_up ends what the script has started, and removes its files.
clean_up() {
	[ -z "$engine" ] || kill -- "-$engine" 2>/dev/null || :
	rm -rf "$work"
}

format() { silent gofmt -l cmd engine pkg plugins scripts test; }

failed=()
# run NAME COMMAND… runs a check, and adds its name to failed if it fails.
run() {
	local name=$1 begin=$SECONDS
	shift
	printf '%s==> %s%s\n' "$bold" "$name" "$plain"
	if "$@"; then
		echo "ok $name ($((SECONDS - begin)) s)"
	else
		echo "FAILED $name"
		failed+=("$name")
	fi
}

work=$(mktemp -d)
engine=''
trap clean_up EXIT

run "required programs" scripts/need.sh "${needed[@]}"
run "modules" download
run "build" build
if [ ${#failed[@]} -gt 0 ]; then
	echo "test.sh: the tests cannot run"
	exit 1
fi
if [ "${1:-}" = --fast ]; then
	run "gofmt" format
	run "go vet" go vet ./...
	run "go test -short" fast
elif [ "${1:-}" = --faults ]; then
	shift
	run "faults" faults "$@"
elif [ $# -gt 0 ]; then
	run "go test $*" tests "$@"
else
	run "gofmt" format
	run "go vet" go vet ./...
	run "staticcheck" go tool staticcheck -checks all ./...
	run "go mod tidy" go mod tidy -diff
	run "actionlint" go tool -modfile=scripts/checks/go.mod actionlint
	run "shellcheck" shellcheck -x build_linux.sh scripts/*.sh scripts/packages/*.sh .ci/run test/vm/*.sh test/engine/*.sh test/fresh/*.sh test/runtimes/*.sh test/runtimes/testdata/*.sh
	CNI_TEST_NEEDS=$work/needs run "go test" suites
	run "runtimes" test/runtimes/run.sh
	start_engine
	[ "$(uname -m)" != x86_64 ] || CNI_TEST_NEEDS=$work/needs run "vm" test/vm/run.sh
	run "engine" engine
	run "bench" bench
fi

if [ ${#failed[@]} -gt 0 ]; then
	printf '%sFAILED: %s%s (%d s)\n' "$bold" "$(printf '%s, ' "${failed[@]}" | sed 's/, $//')" "$plain" "$SECONDS"
	exit 1
fi
printf '%sall passed%s (%d s)\n' "$bold" "$plain" "$SECONDS"
