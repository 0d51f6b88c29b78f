#!/bin/sh
# Restarts the DHCP daemon after an upgrade, if it runs: the daemon must have the same version as the plugin dhcp. The
# script enables no unit, because the administrator decides which ones run.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart plumb-dhcp.service || echo "plumb-dhcp.service could not be restarted; restart it, because its daemon still has the former version" >&2
fi
