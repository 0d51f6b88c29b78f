#!/bin/sh
# setup.sh writes the file that flannel's daemon writes on a node.
set -eu
mkdir -p /run/flannel
cat >/run/flannel/subnet.env <<'END'
FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
END
