package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/kubeconfig"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

// defaultKubeconfig is the file that plumb's DaemonSet writes.
const defaultKubeconfig = "/etc/plumb/kubeconfig"

// config is the object "datastore" of the network configuration.
type config struct {
	server.Common
	Kubeconfig string `json:"kubeconfig"`
}

// Check implements server.Config.
func (c *config) Check() []error {
	errs := c.Common.Check()
	if c.Kubeconfig == "" {
		c.Kubeconfig = defaultKubeconfig
	}
	types.ProblemsInto(&errs)(!filepath.IsAbs(c.Kubeconfig), "ipam.datastore.kubeconfig %q must be an absolute path", c.Kubeconfig)
	return errs
}

// connect returns a client of the API server. A file that does not exist is an error with types.CodeTryAgain, because
// plumb's DaemonSet may still have to write it.
func (c *config) connect() (*kubeconfig.Client, error) {
	client, err := kubeconfig.Load(c.Kubeconfig)
	if err == nil {
		return client, nil
	}
	err = fmt.Errorf("ipam.datastore.kubeconfig %s: %w", c.Kubeconfig, err)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, server.Errorf(types.CodeTryAgain, datastore.ReasonUnreachable, "%w; plumb's DaemonSet writes it if the chart's value clusterLocalKubernetes.enabled is set", err)
	}
	return nil, server.Errorf(types.CodeConfig, datastore.ReasonRequest, "%w", err)
}
