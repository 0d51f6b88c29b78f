#!/bin/sh
# init.sh is the first program in the virtual machine of run.sh, started from the initramfs. It mounts the
# host's files read-only, with an overlay in memory as the root, and executes the job.
#
# Its parameters are on the kernel command line. vm.dir is a directory that is shared for writing, and
# vm.kernel is the host's directory that contains the kernel modules.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module"; done
# shellcheck disable=SC2013 # split into words
for word in $(cat /proc/cmdline); do
	case $word in
	vm.dir=*) dir=${word#*=} ;;
	vm.kernel=*) kernel=${word#*=} ;;
	esac
done

share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"; }
share root /below ro,cache=loose
mount -t tmpfs -o mode=755 tmpfs /above
mkdir /above/files /above/work
mount -t overlay -o lowerdir=/below,upperdir=/above/files,workdir=/above/work overlay /new

mkdir -p "/new$dir" /new/lib/modules /new/run
share dir "/new$dir" rw,cache=none
ln -sfn "$kernel/lib/modules/$(uname -r)" /new/lib/modules/
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs tmpfs /new/dev/shm
mount -t tmpfs -o mode=755 tmpfs /new/run
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
umount -l /sys /proc
exec switch_root /new /bin/bash "$dir/job"
