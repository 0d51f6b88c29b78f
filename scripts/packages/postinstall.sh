#!/bin/sh
# After an upgrade, the daemon of dhcp must be of the same version as the plugin. No unit is enabled here.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart plumb-dhcp.service || echo "plumb-dhcp.service could not be restarted; restart it, because its daemon is that of before" >&2
fi
