#!/bin/sh
# wrapper.sh replaces the plugins in a host's CNI directory, which contains links to it. It appends
# each call to the file "calls" in the directory, and then runs the plugin in $PLUMB_BIN. If the
# directory contains a FIFO before-PLUGIN or after-PLUGIN, an ADD writes its PID there, and waits until the
# FIFO "go" in the directory is opened for writing. With a file fail-PLUGIN, ADD and DEL fail, and do nothing.
dir=${0%/*} plugin=${0##*/}
stdin=$(cat)
printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$plugin" "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_IFNAME" "$CNI_NETNS" \
	"$(printf %s "$stdin" | tr -d '\n\t')" >>"$dir/calls"

stop() {
	[ "$CNI_COMMAND" = ADD ] && [ -p "$dir/$1-$plugin" ] || return 0
	echo $$ >"$dir/$1-$plugin"
	: <"$dir/go"
}

if [ -e "$dir/fail-$plugin" ]; then
	case $CNI_COMMAND in ADD | DEL)
		echo '{"cniVersion": "1.0.0", "code": 100, "msg": "the test makes this plugin fail"}'
		exit 1
		;;
	esac
fi
stop before
stdout=$(printf %s "$stdin" | "$PLUMB_BIN/$plugin")
status=$?
stop after
printf '%s\n' "$stdout"
exit $status
