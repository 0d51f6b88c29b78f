// Command apiserver is the API server of Kubernetes from its module. The module replaces its staging modules with
// directories that it does not contain, so that this module replaces them with their releases.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
