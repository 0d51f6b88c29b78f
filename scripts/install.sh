#!/bin/bash
# install.sh puts plugins into a folder from which a node in use runs them: one
# executable at a time, each replaced in one step (rename), so that at any moment
# there is a whole one, the old or the new. Containers are not touched.
#
#   scripts/install.sh DIR [--from BIN] [--backup OLD] [--create]
#   scripts/install.sh DIR --restore OLD
#
#   DIR            the folder, such as /opt/cni/bin
#   --from BIN     where the new ones are: an unpacked release, or bin/ (the default)
#   --backup OLD   keep what is replaced in this folder; what it has already is left as
#                  it is, so that the first one kept is the one to go back to
#   --create       make DIR where it does not exist
#   --restore OLD  put back what --backup kept there, in the same way
#
# Only executables of the names in BIN are replaced; all else in DIR stays.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; }
die() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}

# executables FOLDER lists their names; a release has two texts besides.
executables() { find "$1" -mindepth 1 -maxdepth 1 ! -name '.*' -perm -u+x \( -type f -o -type l \) -printf '%f\n' | sort; }

# place FILE FOLDER makes FILE the one of its name in FOLDER, in one step. Its content is
# on the disk before its name is: after a power cut there is a whole one too. A
# temporary file in FOLDER itself gets the security label that files have there.
place() {
	temp=$(mktemp "$2/.${1##*/}.XXXXXX")
	if [ -L "$1" ]; then
		ln --symbolic --force --no-target-directory -- "$(readlink "$1")" "$temp"
	else
		cat -- "$1" >"$temp"
		chmod 0755 "$temp"
		sync "$temp"
	fi
	mv --no-target-directory --force -- "$temp" "$2/${1##*/}"
	temp=''
}

# runs FILE: a plugin without CNI variables prints what it is. One for another
# architecture would end every ADD on the node. (Not by env: what the kernel refuses to
# execute, it gives to sh.)
runs() { (exec -c "$1") </dev/null >/dev/null 2>&1; }

# exists FILE, be it a link to nothing.
exists() { [ -e "$1" ] || [ -L "$1" ]; }

# keep NAME: DIR's goes to the backup, or its name to the list of those that DIR did not
# have, unless an earlier run has seen to it.
keep() {
	if exists "$backup/$1" || grep -qsxF -- "$1" "$backup/.new"; then
		return
	elif exists "$dir/$1"; then
		place "$dir/$1" "$backup"
	else
		echo "$1" >>"$backup/.new"
	fi
}

install_all() {
	local name names
	[ -d "$from" ] || die "no folder $from: run ./build_linux.sh first, or name another by --from"
	mapfile -t names < <(executables "$from")
	[ ${#names[@]} -gt 0 ] || die "no executables in $from"
	for name in "${names[@]}"; do # all are looked at before any is replaced
		[ ! -d "$dir/$name" ] || die "$dir/$name is a folder"
		runs "$from/$name" || die "$from/$name does not run on this machine ($(uname -m)): nothing was replaced"
	done
	for name in "${names[@]}"; do
		local what=added
		! exists "$dir/$name" || what=replaced
		[ -z "$backup" ] || keep "$name"
		place "$from/$name" "$dir"
		printf '  %-12s %s\n' "$name" "$what"
	done
	sync "$dir"
	echo "${#names[@]} plugins are in $dir."
	[ -z "$backup" ] || echo "Back again: $0 $dir --restore $backup"
}

restore_all() {
	local name names
	[ -d "$restore" ] || die "no folder $restore to restore from"
	mapfile -t names < <(executables "$restore")
	[ ${#names[@]} -gt 0 ] || die "nothing is kept in $restore"
	for name in "${names[@]}"; do
		place "$restore/$name" "$dir"
		printf '  %-12s put back\n' "$name"
	done
	sync "$dir"
	echo "${#names[@]} plugins are in $dir as they were."
	[ ! -e "$restore/.new" ] || while read -r name; do
		! exists "$dir/$name" || echo "$dir/$name stays: there was none before, and a container may need it for its DEL."
	done <"$restore/.new"
}

dir='' from=$top/bin backup='' restore='' create='' temp=''
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage && exit ;;
	--create) create=1 && shift && continue ;;
	--from | --backup | --restore) [ $# -ge 2 ] || die "$1 needs a folder (--help tells more)" ;;
	-*) die "unknown argument $1 (--help tells more)" ;;
	*)
		[ -z "$dir" ] || die "one folder only: $dir or $1 (--help tells more)"
		dir=$1 && shift && continue
		;;
	esac
	case $1 in
	--from) from=$2 ;;
	--backup) backup=$2 ;;
	--restore) restore=$2 ;;
	esac
	shift 2
done
[ -n "$dir" ] || die "which folder? Mostly it is /opt/cni/bin (--help tells more)"
if [ ! -d "$dir" ]; then
	[ -n "$create" ] || die "no folder $dir: --create makes it"
	mkdir -p "$dir"
fi
trap '[ -z "$temp" ] || rm -f -- "$temp"' EXIT
if [ -n "$restore" ]; then
	restore_all
else
	[ -z "$backup" ] || mkdir -p "$backup"
	install_all
fi
