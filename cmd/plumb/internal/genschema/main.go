// Command genschema generates the JSON Schemas of the plugins from the key tables of their pages (plugins/*/README.md), in the
// directory of package schema. Run it with go generate ./cmd/plumb/...
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	files, err := generate(filepath.Join("..", "..", "..", "..", "plugins"))
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(name, text, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "genschema:", err)
		os.Exit(1)
	}
}
