#!/bin/bash
# install.sh installs plugins into a folder of a node in use. It replaces one executable after the
# other, each with a rename, so that a complete one exists at any time. It does not change
# containers.
#
#   scripts/install.sh DIR [--from BIN] [--backup OLD] [--create]
#   scripts/install.sh DIR --restore OLD
#
#   DIR            the folder, such as /opt/cni/bin
#   --from BIN     the folder of the new plugins: an unpacked release, or bin/ (the default)
#   --backup OLD   copy each executable to this folder before it is replaced; a file that the folder
#                  has already is kept, so that it has the files from before the first installation
#   --create       make DIR if it does not exist
#   --restore OLD  replace the plugins by those in this backup; plugins that were added stay, because a
#                  container may need them for its DEL, and the command that removes them is printed
#
# It replaces only executables with the same name as one in BIN. With dhcp it restarts its daemon,
# cni-dhcp.service, if systemd runs it: plugin and daemon must be of the same version.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
die() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}

# executables FOLDER prints the names of the executables. A release also has text files.
executables() { find "$1" -mindepth 1 -maxdepth 1 ! -name '.*' -perm -u+x \( -type f -o -type l \) -printf '%f\n' | sort; }

# place FILE FOLDER copies FILE to FOLDER, and replaces the file with its name there atomically. It
# syncs the content before the rename, so that the file is complete after a power failure, too. The
# temporary file is in FOLDER so that it gets the security label of files there.
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

# runs FILE succeeds if this machine can run the plugin, which prints its version if there are no CNI
# variables. With a plugin for another architecture, every ADD would fail. (env would start sh for a
# file that the kernel cannot execute.)
runs() { (exec -c "$1") </dev/null >/dev/null 2>&1; }

# exists FILE succeeds if there is a file, or a symbolic link with any target.
exists() { [ -e "$1" ] || [ -L "$1" ]; }

# back_up NAME copies the file in DIR to the backup. If DIR has no such file, it adds the name to the
# list .new. It does nothing if an earlier run has done one of both.
back_up() {
	if exists "$backup/$1" || grep -qsxF -- "$1" "$backup/.new"; then
		return
	elif exists "$dir/$1"; then
		place "$dir/$1" "$backup"
	else
		echo "$1" >>"$backup/.new"
	fi
}

# restart_daemon NAME… restarts the daemon of dhcp, if dhcp is one of the names and the daemon runs.
restart_daemon() {
	local unit=cni-dhcp.service
	printf '%s\n' "$@" | grep -qxF dhcp || return 0
	systemctl is-active --quiet "$unit" 2>/dev/null || return 0
	systemctl restart "$unit" || die "$unit could not be restarted; restart it, because its daemon is that of before"
	echo "$unit is restarted."
}

install_all() {
	local name names
	[ -d "$from" ] || die "no folder $from: run ./build_linux.sh first, or name another folder with --from"
	mapfile -t names < <(executables "$from")
	[ ${#names[@]} -gt 0 ] || die "no executables in $from"
	for name in "${names[@]}"; do # check all of them before one is replaced
		[ ! -d "$dir/$name" ] || die "$dir/$name is a folder"
		runs "$from/$name" || die "$from/$name does not run on this machine ($(uname -m)): nothing was replaced"
	done
	for name in "${names[@]}"; do
		local what=added
		! exists "$dir/$name" || what=replaced
		[ -z "$backup" ] || back_up "$name"
		place "$from/$name" "$dir"
		printf '  %-12s %s\n' "$name" "$what"
	done
	sync "$dir"
	echo "${#names[@]} plugins are installed in $dir."
	restart_daemon "${names[@]}"
	[ -z "$backup" ] || echo "To restore the former state: $0 $dir --restore $backup"
}

restore_all() {
	local name names added=()
	[ -d "$restore" ] || die "no folder $restore to restore from"
	mapfile -t names < <(executables "$restore")
	[ ${#names[@]} -gt 0 ] || [ -e "$restore/.new" ] || die "no executables to restore in $restore"
	for name in "${names[@]}"; do
		place "$restore/$name" "$dir"
		printf '  %-12s restored\n' "$name"
	done
	sync "$dir"
	echo "${#names[@]} plugins are restored in $dir."
	restart_daemon "${names[@]}"
	[ ! -e "$restore/.new" ] || while read -r name; do
		exists "$dir/$name" || continue
		echo "$dir/$name stays: it was added, and a container may need it for its DEL."
		added+=("$dir/$name")
	done <"$restore/.new"
	[ ${#added[@]} -eq 0 ] || echo "When no container needs them any more: rm ${added[*]@Q}"
}

dir='' from=$top/bin backup='' restore='' create='' temp=''
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage && exit ;;
	--create) create=1 && shift && continue ;;
	--from | --backup | --restore) [ $# -ge 2 ] || die "$1 needs a folder (see --help)" ;;
	-*) die "unknown argument $1 (see --help)" ;;
	*)
		[ -z "$dir" ] || die "one folder only: $dir or $1 (see --help)"
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
[ -n "$dir" ] || die "which folder? Usually it is /opt/cni/bin (see --help)"
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
