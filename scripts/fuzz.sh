#!/bin/bash
# fuzz.sh runs each Fuzz… target in the directories (by default in this checkout) for the given time. It fails if a
# target fails, and prints the inputs that it found.
#
#   scripts/fuzz.sh [TIME] [DIR…]     TIME has the form of -fuzztime, such as 30s or 1000x (1m)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/go.sh

case ${1:-} in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
esac
time=${1:-1m}
shift || :
failed=()
while IFS=: read -r file _ target; do
	echo "==> ${file%/*} $target"
	go -C "${file%/*}" test -run '^$' -fuzz "^$target\$" -fuzztime "$time" . || failed+=("${file%/*} $target")
done < <(grep -rnoP --include='*_test.go' '^func \KFuzz\w+(?=\(f \*testing\.F\))' "${@:-.}" | sort)
[ ${#failed[@]} -gt 0 ] || exit 0
printf 'FAILED: %s\n' "${failed[@]}"
git ls-files --others --exclude-standard -- '*/testdata/fuzz/*' | xargs -r tail -n +1
exit 1
