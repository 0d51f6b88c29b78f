#!/bin/sh
# need.sh installs the Debian packages of missing programs (as root). If it cannot, it prints the names
# of the packages and fails.
#
#   scripts/need.sh PROGRAM:PACKAGE…    a PROGRAM that begins with a slash is a file
set -eu

missing=''
for pair; do
	case $pair in
	/*) [ -e "${pair%%:*}" ] ;;
	*) command -v "${pair%%:*}" >/dev/null ;;
	esac || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || [ ! -e /etc/debian_version ]; then
	echo "need.sh: install these packages first:$missing" >&2
	exit 1
fi
# Several checks of test.sh may install packages at the same time, but apt-get update fails while another one runs.
exec 9<"$0"
flock 9
echo "installing:$missing"
# Mask the services that these packages start, now and at each boot. firewalld would replace this machine's
# firewall, and Kea would assign addresses in its networks. The tests need only the programs.
for service in firewalld kea-dhcp4-server; do
	case " $missing " in
	*" $service "*)
		unit=/etc/systemd/system/$service.service
		mkdir -p "${unit%/*}"
		[ -e "$unit" ] || ln -s /dev/null "$unit"
		echo "masked the service $service; to undo this: systemctl unmask $service"
		;;
	esac
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # package names
{ apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 || {
	tail -n 5 "$log" >&2
	exit 1
}
