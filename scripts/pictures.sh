#!/bin/sh
# pictures.sh draws docs/pictures/*.svg from the files *.dot beside them. A test compares the checksum of the
# source, which each drawing contains.
set -eu
cd "$(dirname "$0")/../docs/pictures"
../../scripts/need.sh dot:graphviz
for source in *.dot; do
	sum=$(sha256sum "$source")
	dot -Tsvg "$source" | sed "/^<!-- Generated/,/-->/d; s|^<svg |<!-- $source: ${sum%% *} -->\n<svg |" >"${source%.dot}.svg"
done
