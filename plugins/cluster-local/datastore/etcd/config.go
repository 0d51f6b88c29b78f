package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

const defaultPrefix = "/plumb/v1"

// config is the object "datastore" of the network configuration.
type config struct {
	server.Common
	Endpoints []string `json:"endpoints"`
	CAFile    string   `json:"caFile"`
	CertFile  string   `json:"certFile"`
	KeyFile   string   `json:"keyFile"`
	Prefix    string   `json:"prefix"`

	tls *tls.Config // nil if all endpoints are http
}

// Check implements server.Config.
func (c *config) Check() []error {
	errs := c.Common.Check()
	reportIf := types.ProblemsInto(&errs)
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	reportIf(!strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") || !server.IsWord(c.Prefix),
		"ipam.datastore.prefix %q must begin with '/', must not end with it, and must not contain white space", c.Prefix)
	reportIf(len(c.Endpoints) == 0, "ipam.datastore.endpoints is missing; set at least one, such as https://10.0.0.1:2379")
	encrypted := false
	for i, e := range c.Endpoints {
		scheme, err := checkEndpoint(e)
		reportIf(err != nil, "ipam.datastore.endpoints[%d]: %w", i, err)
		encrypted = encrypted || scheme == "https"
	}
	if !encrypted {
		return errs
	}
	var err error
	c.tls, err = c.loadTLS()
	reportIf(err != nil, "%w", err)
	return errs
}

// checkEndpoint returns the scheme of an endpoint. It accepts http for loopback addresses only.
func checkEndpoint(endpoint string) (scheme string, err error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", fmt.Errorf("parse %q: %w", endpoint, err)
	}
	if u.Hostname() == "" || u.Port() == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q must be of the form https://host:port", endpoint)
	}
	switch u.Scheme {
	case "https":
	case "http":
		if a, err := netip.ParseAddr(u.Hostname()); err != nil || !a.IsLoopback() {
			return "", fmt.Errorf("%q is not encrypted; use https, because http is for loopback addresses only", endpoint)
		}
	default:
		return "", fmt.Errorf("%q must begin with https://", endpoint)
	}
	return u.Scheme, nil
}

func (c *config) loadTLS() (*tls.Config, error) {
	if c.CAFile == "" || c.CertFile == "" || c.KeyFile == "" {
		return nil, fmt.Errorf("ipam.datastore: an https endpoint needs caFile, certFile and keyFile")
	}
	ca, err := hostfile.ReadConfig(c.CAFile, hostfile.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("ipam.datastore.caFile: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("ipam.datastore.caFile: %s contains no certificate in PEM format", c.CAFile)
	}
	certificate, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("ipam.datastore.certFile: %w", err)
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, nil
}
