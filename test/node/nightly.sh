#!/bin/bash
# nightly.sh runs all tests with Kubernetes nodes, and the most important ones in other combinations of containerd and
# kube-proxy's mode. It also runs kube-proxy in its mode ipvs on Debian's kernel, without the rest of Kubernetes. It writes
# docs/reference/compatibility.md with the results of Kubernetes' own tests.
set -euo pipefail
cd "$(dirname "$0")"
REPORT=$(mktemp)
export REPORT
trap 'rm -f "$REPORT"' EXIT
status=0
./run.sh || status=1
./run.sh --proxy iptables --containerd 2 checks wiped reboot conformance || status=1
[ "$(uname -m)" != x86_64 ] || ../vm/run.sh ./test/e2e -ginkgo.label-filter ipvs || status=1
[ ! -d /sys/module/ip_vs ] || ./run.sh --proxy ipvs --containerd 2 checks conformance || status=1
cp "$REPORT" results.jsonl
go -C ../.. test ./test -run TestKubernetesPage -update
exit $status
