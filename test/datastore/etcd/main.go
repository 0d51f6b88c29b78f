// etcd is the server of etcd, as its module has it. `go install go.etcd.io/etcd/server/v3@VERSION` refuses
// a module whose go.mod has replace lines, so the tests build this program instead.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
