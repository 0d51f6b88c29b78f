#!/bin/sh
# relay.sh stands for the plugins in a node's CNI folder, one link to it each. It notes
# each call in the folder's file calls, and leaves the call to the plugin in $PLUMB_BIN.
# Where the folder has a FIFO before-PLUGIN or after-PLUGIN, an ADD writes its PID there
# and stops until the folder's FIFO go has been opened for writing.
dir=${0%/*} plugin=${0##*/}
stdin=$(cat)
printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$plugin" "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_IFNAME" "$CNI_NETNS" \
	"$(printf %s "$stdin" | tr -d '\n\t')" >>"$dir/calls"

stop() {
	[ "$CNI_COMMAND" = ADD ] && [ -p "$dir/$1-$plugin" ] || return 0
	echo $$ >"$dir/$1-$plugin"
	: <"$dir/go"
}

stop before
stdout=$(printf %s "$stdin" | "$PLUMB_BIN/$plugin")
status=$?
stop after
printf '%s\n' "$stdout"
exit $status
