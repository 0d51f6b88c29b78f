// probe tells what the runtime made of the stack that it was started with.
package main

import (
	"encoding/json"
	"os"
	"runtime"

	_ "github.com/plumb-cni/plumb/pkg/skel"
	"golang.org/x/sys/unix"
)

func main() {
	auxv, err := unix.Auxv()
	if err != nil {
		panic(err)
	}
	err = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"Args": os.Args, "Environ": os.Environ(), "Processors": runtime.GOMAXPROCS(0), "Auxv": auxv,
	})
	if err != nil {
		panic(err)
	}
}
