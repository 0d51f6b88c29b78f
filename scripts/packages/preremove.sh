#!/bin/sh
# preremove.sh stops and disables the units of this package at a removal, but not at an upgrade. dpkg calls it with the
# argument remove, and rpm with the number of packages that remain.
set -e

case ${1:-} in
remove | 0) ;;
*) exit 0 ;;
esac
[ -d /run/systemd/system ] || exit 0
for unit in plumb-dhcp.service plumb-dhcp.socket plumb-firewalld.service plumb-maintain.timer plumb-maintain.service; do
	[ -e "/etc/systemd/system/$unit" ] || systemctl disable --now --quiet "$unit" # a unit there is the administrator's
done
