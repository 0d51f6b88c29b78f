#!/bin/bash
# machine.sh DIR NAME runs the processes of a Kubernetes node in mount, PID, IPC, UTS and cgroup namespaces, and in the
# caller's network namespace. DIR keeps what survives a reboot, which is /etc, /opt, /var/lib and /var/log. The script needs
# root, and $PLUMB_CGROUP, which is the prefix of its control groups.
#
# It prints "ready". Then each line of its standard input starts a daemon: its name, and the command. The daemon's log is
# /var/log/NAME.log, and its process ID is in /run/NAME.pid. All processes end with the standard input.
set -euo pipefail
dir=$1 name=$2

# hierarchy CONTROLLERS prints the directory of a hierarchy of control groups, as named in /proc/self/cgroup.
hierarchy() {
	case $1 in
	'') if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then echo /sys/fs/cgroup; else echo /sys/fs/cgroup/unified; fi ;;
	*) echo "/sys/fs/cgroup/${1#name=}" ;;
	esac
}

# delegate GROUP enables all controllers of a group of version 2 for the groups below it.
delegate() {
	local controller
	for controller in $(<"$1/cgroup.controllers"); do
		echo "+$controller" >"$1/cgroup.subtree_control" || :
	done
}

if [ "${3:-}" = '' ]; then
	# A new group of each hierarchy becomes the root of the new cgroup namespace. An empty cpuset accepts no process. The file
	# changes with each group that the script enters.
	unified=none
	groups=$(cat /proc/self/cgroup)
	while IFS=: read -r _ controllers path; do
		parent=$(hierarchy "$controllers")${path%/}
		[ -d "$parent" ] || continue
		group=$parent/$PLUMB_CGROUP-$name
		mkdir "$group"
		case $controllers in
		'') delegate "$parent" && unified=$group ;;
		cpuset) cat "$parent/cpuset.cpus" >"$group/cpuset.cpus" && cat "$parent/cpuset.mems" >"$group/cpuset.mems" ;;
		esac
		echo $$ >"$group/cgroup.procs"
	done <<<"$groups"
	exec unshare --cgroup bash "$0" "$dir" "$name" "$unified"
fi
if [ "$3" != inside ]; then
	# A group of version 2 with processes cannot enable controllers for the groups below it.
	[ "$3" = none ] || { mkdir "$3/init" && echo $$ >"$3/init/cgroup.procs"; }
	exec unshare --mount --pid --ipc --uts --fork --kill-child --mount-proc bash "$0" "$dir" "$name" inside
fi

hostname "$name"
version=$(stat -f -c %T /sys/fs/cgroup)
mount -t sysfs sysfs /sys
if [ "$version" = cgroup2fs ]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	delegate /sys/fs/cgroup
else
	mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
	while IFS=: read -r _ controllers path; do
		type=cgroup options=$controllers
		case $controllers in
		'') type=cgroup2 options='' ;;
		name=*) options=none,$controllers ;;
		esac
		at=/sys/fs/cgroup/${controllers#name=}
		[ -n "$controllers" ] || at=/sys/fs/cgroup/unified
		mkdir "$at"
		mount -t "$type" ${options:+-o "$options"} cgroup "$at"
	done </proc/self/cgroup
fi

[ -d "$dir/etc" ] || new=yes
for top in etc opt; do
	mkdir -p "$dir/$top" "$dir/$top.work"
	mount -t overlay -o "lowerdir=/$top,upperdir=$dir/$top,workdir=$dir/$top.work" overlay /$top
done
[ -z "${new:-}" ] || rm -rf /etc/cni /etc/containerd /opt/cni # of the machine that runs the tests
for top in lib log; do
	mkdir -p "$dir/$top"
	mount --bind "$dir/$top" "/var/$top"
done
# kubelet sets these for the whole machine. Here, it reads the values that it would set.
while read -r key value; do
	mkdir -p "$dir/sys"
	echo "$value" >"$dir/sys/${key##*/}"
	mount --bind "$dir/sys/${key##*/}" "/proc/sys/$key"
done <<-END
	vm/overcommit_memory 1
	vm/panic_on_oom 0
	kernel/panic 10
	kernel/panic_on_oops 1
	kernel/keys/root_maxkeys 1000000
	kernel/keys/root_maxbytes 25000000
END
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /dev/shm
export TMPDIR=/run/tmp
mkdir -p $TMPDIR /run/netns /run/lock /etc/cni/net.d /etc/kubernetes /opt/cni/bin
mount --make-rshared /

echo ready
while read -r daemon command; do
	# shellcheck disable=SC2086 # the words of the command
	$command </dev/null >>"/var/log/$daemon.log" 2>&1 &
	echo $! >"/run/$daemon.pid"
done
