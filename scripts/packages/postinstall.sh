#!/bin/sh
# postinstall.sh restarts the services that run after an upgrade. The version of the DHCP daemon must be the version of the
# plugin dhcp. plumb maintain runs as a service if the administrator has overridden the unit. --no-block does not wait for
# a run that the timer started. The script enables no unit, because the administrator decides which units run.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart plumb-dhcp.service || echo "cannot restart plumb-dhcp.service; restart it, because its daemon still has the former version" >&2
	systemctl try-restart --no-block plumb-maintain.service || echo "cannot restart plumb-maintain.service; restart it if it runs as a service" >&2
fi
