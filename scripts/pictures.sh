#!/bin/sh
# pictures.sh draws docs/pictures/*.svg from the files *.dot beside them. Each drawing contains the checksum of its
# source, which a test compares.
set -eu
cd "$(dirname "$0")/../docs/pictures"
../../scripts/need.sh dot:graphviz
for source in *.dot; do
	sum=$(sha256sum "$source")
	dot -Tsvg "$source" | sed "/^<!-- Generated/,/-->/d; s|^<svg |<!-- $source: ${sum%% *} -->\n<svg |" >"${source%.dot}.svg"
done
