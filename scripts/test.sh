#!/bin/bash
# test.sh runs the checks and tests of plumb, in one of three tiers.
#
#   scripts/test.sh                                 every suite that needs only this kernel, with a sample of each fault
#                                                   sweep, in ten minutes on two cores
#   scripts/test.sh --all                           what each change must pass, which adds the race detector, static checks,
#                                                   releases, other runtimes, datastores, a virtual machine and the benchmark
#   scripts/test.sh --nightly                       everything, with complete fault sweeps, in some hours
#   scripts/test.sh ./pkg/nl -ginkgo.focus veth     go test with these arguments
#
# It installs missing Debian packages (as root). Each test binary runs in its own network and mount
# namespaces (scripts/sandbox.sh), and creates more network namespaces, so that it does not change this
# machine. If this kernel lacks a feature, the tests of the feature are skipped. With --all, a test must use the
# feature on Debian's kernel (test/vm/run.sh). With CNI_TEST_REQUIRE=all, the tests fail instead.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/go.sh

# needed lists the programs and files that the tests need and that a Debian with Go and git may lack, each with its
# package. test/programs_test.go checks that the lists are complete.
needed=(
	ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack ping:iputils-ping openssl:openssl jq:jq sysctl:procps
	git:git dbus-daemon:dbus firewalld:firewalld dnsmasq:dnsmasq-base kea-dhcp4:kea-dhcp4-server
	curl:curl python3:python3
	/lib/systemd/systemd-networkd:systemd /usr/lib/cni/bridge:containernetworking-plugins
)
# needed_by_all lists the same for --all and --nightly. The race detector needs a C compiler and the C library's headers.
needed_by_all=(gcc:gcc /usr/include/stdio.h:libc6-dev shellcheck:shellcheck qemu-s390x-static:qemu-user-static lintian:lintian rpm:rpm)

# modules are the Go modules of the executables, and modules_of_all are the modules that only --all tests.
modules=(. plugins/cluster-local/datastore/etcd test/programs/reference)
modules_of_all=(scripts/checks scripts/packages plugins/cluster-local/test test/runtimes test/node)

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
	./build_linux.sh "$PLUMB_BIN" && CNI_REFERENCE=$(scripts/programs.sh reference) && export CNI_REFERENCE
}

# tests runs four packages at a time, because they wait more than they compute. The timeout is only for tests that
# hang. A package takes minutes, and longer on a slow machine.
tests() { go test -vet=all -count=1 -p 4 -timeout 60m -exec "$PWD/scripts/sandbox.sh" "$@"; }

# progress numbers the packages that go test reports. It does not use awk, because mawk reads whole blocks and would
# delay the lines.
progress() {
	local line ended=0
	while IFS= read -r line || [ -n "$line" ]; do
		[[ ! $line =~ ^(ok|FAIL|\?)\ *$'\t' ]] || printf '[%d/%d] ' $((++ended)) "$1"
		printf '%s\n' "$line"
	done
}

# packages prints the packages of this module whose paths match a pattern, or do not match it with -v. The packages
# that take longest come first, so that no processor waits for them at the end.
packages() {
	local long='/(test/(e2e|faults|release)|plugins/(cluster-local|firewall|portmap)|cmd/plumb|doctor)$'
	go list ./... | awk -v long="$long" '$0 ~ long {print; next} {rest = rest $0 "\n"} END {printf "%s", rest}' | grep -E "$@"
}

# sample runs the suites that need no other kernel and no other processor. Without cgo, go test can use the packages
# that the build of the executables has compiled.
sample() {
	local list
	mapfile -t list < <(packages -v '/test/(bigendian|release)$')
	CGO_ENABLED=0 tests -short -trimpath "${list[@]}" 2>&1 | progress ${#list[@]}
}

# suites runs the tests of all packages. The race detector doubles the time of a test. Only the nightly tier uses it for
# packages that start no goroutines, and never for tests that start executables. The packages' tests are short, except in the
# nightly tier. The tests that start executables run beside the others, because both wait more than they compute.
suites() {
	local list starter status=0 short=-short starters='/v2/(test|cmd/cni-conformance$)' concurrent='/v2/(pkg|cmd/plumb/internal/watch|plugins/cluster-local/datastore|plugins/dhcp/(daemon|internal))(/|$)'
	if [ "$tier" = nightly ]; then
		short=-short=false concurrent='/v2/'
	fi
	mapfile -t list < <(packages "$starters")
	{ CGO_ENABLED=0 tests -p 3 "$short" -trimpath "${list[@]}" 2>&1 | progress ${#list[@]}; } &
	starter=$!
	mapfile -t list < <(packages -v "$starters" | grep -E "$concurrent")
	tests -p 3 -race "$short" "${list[@]}" 2>&1 | progress ${#list[@]} || status=$?
	mapfile -t list < <(packages -v "$starters|$concurrent")
	[ ${#list[@]} = 0 ] || CGO_ENABLED=0 tests -p 3 "$short" -trimpath "${list[@]}" 2>&1 | progress ${#list[@]} || status=$?
	wait "$starter" || status=$?
	return "$status"
}

# silent runs a command, and fails if the command prints something.
silent() {
	local out
	out=$("$@" 2>&1) && [ -z "$out" ] && return
	echo "$out"
	return 1
}

# bench checks with some scenarios that bench.sh works. The figures do not matter.
bench() {
	scripts/bench.sh --quick -n 3 --only start/bridge,loopback,tuning,cluster-local,host-local/0,host-local/1000,bridge/v4,ptp/v4,macvlan/v4,bandwidth,portmap/1,firewall/iptables,chain,burst/bridge/x8
}

# nodes tests with a Kubernetes node. Only the nightly tier builds Kubernetes.
nodes() {
	(cd test/node && go vet ./... && "$(go -C ../.. tool -n staticcheck)" -checks all ./... && go mod tidy -diff) || return
	if [ "$tier" = nightly ]; then
		test/node/nightly.sh
	else
		test/node/run.sh --cached checks wiped
	fi
}

format() { silent gofmt -l cmd pkg plugins scripts test; }

failed=()
declare -A started=()
# begin NAME COMMAND… starts a check, which runs beside the next checks, in its own process group.
begin() {
	local name=$1
	shift
	set -m
	"$@" </dev/null >"$work/$name.log" 2>&1 &
	set +m
	started[$name]=$!
}

# end NAME waits for a check that begin has started, and prints its output.
end() {
	local status=0
	wait "${started[$1]}" || status=$?
	unset "started[$1]"
	cat "$work/$1.log"
	return "$status"
}

# clean ends what begin has started, and removes the script's files.
clean() {
	local group
	for group in "${started[@]}"; do
		kill -- "-$group" 2>/dev/null || :
	done
	rm -rf "$work"
}

# run NAME COMMAND… runs a check, and adds its name to failed if it fails.
run() {
	local name=$1 begin=$SECONDS
	shift
	printf '%s==> %s%s (after %d s)\n' "$bold" "$name" "$plain" "$SECONDS"
	if "$@"; then
		echo "ok $name ($((SECONDS - begin)) s)"
	else
		echo "FAILED $name"
		failed+=("$name")
	fi
}

tier=''
case ${1:-} in
'') echo "test.sh takes ten minutes on two cores, including installation and compilation" ;;
--all) tier=all && echo "test.sh --all takes 50 minutes on two cores" ;;
--nightly) tier=nightly && echo "test.sh --nightly takes hours" && export CNI_TEST_FAULTS=all ;;
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
--*) echo "test.sh: unknown flag $1; see test.sh --help" >&2 && exit 2 ;;
esac
if [ -n "$tier" ]; then
	needed+=("${needed_by_all[@]}")
	modules+=("${modules_of_all[@]}")
fi

work=$(mktemp -d)
trap clean EXIT

run "required programs" scripts/need.sh "${needed[@]}"
run "modules" download
run "build" build
if [ ${#failed[@]} -gt 0 ]; then
	echo "test.sh: the tests cannot run"
	exit 1
fi
if [ $# -gt 0 ] && [ -z "$tier" ]; then
	run "go test $*" tests "$@"
elif [ -z "$tier" ]; then
	run "gofmt" format
	run "go test" sample
	echo "only with --all: the race detector, staticcheck, shellcheck, releases, a big-endian processor, other runtimes," \
		"Kubernetes, datastores, Debian's kernel, the benchmark; only with --nightly: complete fault sweeps, the long nemesis, fuzzing"
else
	run "gofmt" format
	run "staticcheck" go tool staticcheck -checks all ./...
	run "go mod tidy" go mod tidy -diff
	run "actionlint" go tool -modfile=scripts/checks/go.mod actionlint
	run "shellcheck" shellcheck -x build_linux.sh scripts/*.sh scripts/packages/*.sh .ci/run test/vm/*.sh plugins/cluster-local/*.sh plugins/cluster-local/test/*.sh test/fresh/*.sh test/runtimes/*.sh test/runtimes/testdata/*.sh test/node/*.sh
	CNI_TEST_NEEDS=$work/needs run "go test" suites
	run "node" nodes
	# The virtual machine takes as long as the runtimes and the datastores together, which mostly wait. Kubernetes would need
	# more than is left of the processors.
	[ "$(uname -m)" != x86_64 ] || CNI_TEST_NEEDS=$work/needs begin "vm" test/vm/run.sh
	run "runtimes" test/runtimes/run.sh
	run "datastore" plugins/cluster-local/test/run.sh
	[ -z "${started[vm]:-}" ] || run "vm" end "vm"
	run "bench" bench
	[ "$tier" = all ] || run "fuzz" scripts/fuzz.sh
fi

if [ ${#failed[@]} -gt 0 ]; then
	printf '%sFAILED: %s%s (%d s)\n' "$bold" "$(printf '%s, ' "${failed[@]}" | sed 's/, $//')" "$plain" "$SECONDS"
	exit 1
fi
printf '%sall passed%s (%d s)\n' "$bold" "$plain" "$SECONDS"
