#!/bin/bash
# test.sh runs everything that has to be right before a commit: the checks of the
# text, and all tests.
#
#   scripts/test.sh                        all of it
#   scripts/test.sh ./pkg/nl -ginkgo.focus veth     only go test, with these arguments
#   scripts/test.sh --fast                 the loop of a working day, in a minute: format, vet, unit
#                                          tests and tests in process, with a slice of each fault sweep
#   scripts/test.sh --faults               every fault of test/faults, of which "all of it" has a slice
#
# It installs the Debian packages that the tests need where they are missing (as
# root). Tests make network namespaces; each test binary runs in network and mount
# namespaces of its own besides (scripts/sandbox.sh), so that nothing of this machine's
# is touched. A test skips what this kernel cannot do; with CNI_TEST_REQUIRE=all that is
# a failure. What was skipped has to run on Debian's kernel (test/vm/run.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

# What the scripts and tests run that a Debian with Go and git may lack, and the package
# that has it. The race detector needs a C compiler and the headers of the C library.
# test/programs_test.go holds the list against the programs that are run.
needed=(
	ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack ping:iputils-ping sysctl:procps
	git:git gcc:gcc /usr/include/stdio.h:libc6-dev shellcheck:shellcheck
	qemu-s390x-static:qemu-user-static
	/usr/lib/cni/bridge:containernetworking-plugins
)

# The modules of this checkout: each has its own dependencies.
modules=(. test/runtimes)

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

# Everything under the race detector: the executables of test/e2e are built without. The
# limit is for what hangs: a package takes minutes here, and more on a slow machine.
tests() { go test -race -count=1 -timeout 60m -exec "$PWD/scripts/sandbox.sh" "$@"; }

# faults has no race detector: it is the built executables that are tried.
faults() { CNI_TEST_FAULTS=all go test -count=1 -timeout 60m -v -exec "$PWD/scripts/sandbox.sh" ./test/faults "$@"; }

# fast has no race detector, and none of the tests that call executables from outside.
# The packages wait more than they compute: four at a time, the one that waits longest first.
fast() { go test -short -count=1 -p 4 -timeout 60m -exec "$PWD/scripts/sandbox.sh" ./plugins/portmap ./plugins/... ./pkg/... ./test ./test/nstest; }

# silent runs a command that is to print nothing.
silent() {
	local out
	out=$("$@" 2>&1) && [ -z "$out" ] && return
	echo "$out"
	return 1
}

# bench runs a part of the short form: that it works, whatever the figures are.
bench() {
	scripts/bench.sh --quick -n 3 --only start/bridge,loopback,tuning,host-local/0,host-local/1000,bridge/v4,ptp/v4,macvlan/v4,bandwidth,portmap/1,chain,burst/bridge/x8
}

format() { silent gofmt -l pkg plugins scripts test; }

failed=()
# run NAME COMMAND…
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
trap 'rm -rf "$work"' EXIT

run "what the tests need" scripts/need.sh "${needed[@]}"
run "modules" download
run "build" build
if [ ${#failed[@]} -gt 0 ]; then
	echo "test.sh: without these there is nothing to test"
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
	run "shellcheck" shellcheck -x build_linux.sh scripts/*.sh .ci/run test/vm/*.sh test/fresh/*.sh test/runtimes/*.sh test/runtimes/testdata/*.sh
	CNI_TEST_NEEDS=$work/needs run "go test -race" tests ./...
	run "runtimes" test/runtimes/run.sh
	[ "$(uname -m)" != x86_64 ] || CNI_TEST_NEEDS=$work/needs run "vm" test/vm/run.sh
	run "bench" bench
fi

if [ ${#failed[@]} -gt 0 ]; then
	printf '%sFAILED: %s%s (%d s)\n' "$bold" "$(printf '%s, ' "${failed[@]}" | sed 's/, $//')" "$plain" "$SECONDS"
	exit 1
fi
printf '%sall passed%s (%d s)\n' "$bold" "$plain" "$SECONDS"
