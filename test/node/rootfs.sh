#!/bin/bash
# rootfs.sh prints the directory of a root file system with the programs that Kubernetes' own tests run in containers. It
# installs Debian there, unless it is installed already. It needs root and debootstrap.
set -euo pipefail
dir=${XDG_CACHE_HOME:-$HOME/.cache}/plumb-test/rootfs-2
if [ ! -d "$dir" ]; then
	new=$(mktemp -d "$dir.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	debootstrap --variant=minbase --include=bash,bind9-dnsutils,busybox-static,conntrack,curl,hostname,iperf,iproute2,iputils-ping,netcat-openbsd,socat,wget \
		bookworm "$new" "$("$(dirname "$0")/../fresh/run.sh" --mirror)" >&2
	# The tests use bash's syntax, and programs of busybox that Debian's packages lack.
	ln -sf bash "$new/bin/sh"
	for applet in $("$new/bin/busybox" --list); do
		[ -e "$new/bin/$applet" ] || [ -L "$new/bin/$applet" ] || [ -e "$new/sbin/$applet" ] || ln -s /bin/busybox "$new/bin/$applet"
	done
	rm -rf "${new:?}"/{dev,proc,sys}/* "$new"/usr/share/{doc,man,locale} "$new"/var/{cache,lib/apt}/*
	echo 'user-defined-in-image:x:1000:1000::/:/bin/sh' >>"$new/etc/passwd"
	chmod 755 "$new"
	mv -T "$new" "$dir"
fi
echo "$dir"
