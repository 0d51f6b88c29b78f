# shellcheck shell=sh
# go.sh adds Go's usual directory to PATH if go is not in PATH, as after sudo. Other scripts source it.
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
