#!/bin/bash
# vuln.sh looks for known vulnerabilities in the modules and the standard library that the executables contain. It
# fails if an executable calls vulnerable code. It needs the database at vuln.go.dev, or a copy of it at the URL in
# the environment variable VULNDB.
#
#   scripts/vuln.sh               prints a report
#   scripts/vuln.sh --openvex     prints an OpenVEX document for the version of this checkout, which also lists
#                                 the vulnerabilities in code that no executable calls
set -euo pipefail
cd "$(dirname "$0")/.."

db=${VULNDB:-https://vuln.go.dev}
product=pkg:golang/github.com/plumb-cni/plumb/v2@$(scripts/version.sh | sed 's/+/%2B/')

# check ARG… runs govulncheck for the executables of the two modules. build_linux.sh builds the same ones.
check() {
	local program status=0
	program=$(go tool -modfile="$PWD/scripts/checks/go.mod" -n govulncheck)
	"$program" -db "$db" "$@" ./plugins/*/ ./cmd/plumb ./plugins/cluster-local/datastore/kubernetes || status=1
	"$program" -C plugins/cluster-local/datastore/etcd -db "$db" "$@" ./... || status=1
	return "$status"
}

case ${1:-} in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
--openvex)
	check -format openvex | jq --slurp --arg product "$product" '.[0] + {
		author: "plumb contributors",
		statements: (map(.statements // []) | add | map(.products |= map(.["@id"] = $product)))
	}'
	;;
*) check ;;
esac
