#!/bin/sh
# postinstall.sh restarts the DHCP daemon after an upgrade if it runs, because its version must be the version of the
# plugin dhcp. The script enables no unit, because the administrator decides which units run.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart plumb-dhcp.service || echo "cannot restart plumb-dhcp.service; restart it, because its daemon still has the former version" >&2
fi
