// Command etcd is the etcd server from its module. The tests build this program, because `go install
// go.etcd.io/etcd/server/v3@VERSION` rejects a module whose go.mod contains replace directives.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
