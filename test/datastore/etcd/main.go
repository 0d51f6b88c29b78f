// etcd runs the etcd server from etcd's module. The tests build this program, because `go install
// go.etcd.io/etcd/server/v3@VERSION` rejects a module whose go.mod contains replace lines.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
