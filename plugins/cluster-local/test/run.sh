#!/bin/bash
# run.sh tests the datastores of cluster-local with their stores, in separate namespaces.
#
#   plugins/cluster-local/test/run.sh                       all tests, plugins/cluster-local/quickstart.sh, and static checks of both modules;
#                                               with CNI_TEST_FAULTS=all, complete fault sweeps and a nemesis of half an hour
#   plugins/cluster-local/test/run.sh -short                go test with these arguments
#   plugins/cluster-local/test/run.sh --simulate [NODES]    a simulation of many nodes (5000), each with 100 containers; it prints figures
#   plugins/cluster-local/test/run.sh -nemesis 15m -settings 15m -ginkgo.focus nemesis
#
# It tests the executables in $PLUMB_BIN, or builds them. It builds etcd and the API server of Kubernetes from their Go
# modules, which takes a minute and seven minutes of CPU time once. It keeps the API server in the user's cache directory.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=scripts/go.sh
. ../../../scripts/go.sh

[ -t 1 ] || export GINKGO_NO_COLOR=1
../../../scripts/need.sh ip:iproute2 nft:nftables iptables:iptables sysctl:procps ping:iputils-ping openssl:openssl jq:jq curl:curl
# The scripts and tests build executables in namespaces without a network, where go cannot download modules.
for module in ../../.. ../datastore/etcd . ../../../test/programs/kubernetes; do
	go -C "$module" mod download
done
if [ $# = 0 ]; then
	for module in ../datastore/etcd .; do
		go -C "$module" vet ./...
		(cd "$module" && "$(go -C "$OLDPWD/../../.." tool -n staticcheck)" -checks all ./...)
		go -C "$module" mod tidy -diff
	done
	go -C ../datastore/etcd test -count=1 .
	for store in '' --kubernetes; do
		# shellcheck disable=SC2086 # no argument, or one
		../../../scripts/sandbox.sh unshare --pid --fork --kill-child --mount-proc ../quickstart.sh $store
	done
	[ "${CNI_TEST_FAULTS:-}" != all ] || set -- -nemesis 15m -settings 5m
fi
if [ "${1:-}" = --simulate ]; then
	set -- -v -ginkgo.v -ginkgo.focus 'a simulation' -simulate "${2:-5000}" "${@:3}" -timeout 12h -ginkgo.timeout 12h
fi
# In a PID namespace, all etcd members end with the tests, even if the tests are killed. bash is process 1 of the
# namespace, and reaps the processes whose parents a test has killed. Otherwise, a long nemesis would use up all process IDs.
in_namespace="$PWD/../../../scripts/sandbox.sh unshare --pid --fork --kill-child --mount-proc bash -c '\"\$0\" \"\$@\"; exit'"
go test -count=1 -timeout 3h -exec "$in_namespace" . -ginkgo.timeout 3h "$@"
