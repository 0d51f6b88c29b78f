// Package kubeconfig reads kubeconfig files, and returns HTTP clients for the API server of Kubernetes.
package kubeconfig

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"sigs.k8s.io/yaml"
)

// kubeconfig contains the keys of a kubeconfig file that the datastore supports or rejects
// (https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/).
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	Clusters []struct {
		Name    string
		Cluster cluster
	}
	Users []struct {
		Name string
		User user
	}
}

type cluster struct {
	Server     string
	ServerName string `json:"tls-server-name"`
	CAFile     string `json:"certificate-authority"`
	CAData     string `json:"certificate-authority-data"`
	Insecure   bool   `json:"insecure-skip-tls-verify"`
}

type user struct {
	Token, TokenFile string
	CertFile         string `json:"client-certificate"`
	CertData         string `json:"client-certificate-data"`
	KeyFile          string `json:"client-key"`
	KeyData          string `json:"client-key-data"`
	Exec             any
	AuthProvider     any `json:"auth-provider"`
	Username         string
}

// A Client sends requests to an API server. The caller must set the header "Authorization: Bearer TOKEN" unless Token is "".
type Client struct {
	Server, Token string
	HTTP          *http.Client
}

// Load reads a kubeconfig file and the files that it names. The error matches fs.ErrNotExist if one of them does not exist.
func Load(file string) (*Client, error) {
	text, err := hostfile.ReadConfig(file, hostfile.MaxSize)
	if err != nil {
		return nil, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, err
	}
	cl, u, err := k.current()
	if err != nil {
		return nil, err
	}
	files := files(filepath.Dir(file))
	if u.TokenFile != "" {
		token, err := files.read(u.TokenFile, "")
		if err != nil {
			return nil, err
		}
		u.Token = strings.TrimSpace(string(token))
	}
	t, err := files.tls(cl, u)
	if err != nil {
		return nil, err
	}
	return &Client{
		Server: strings.TrimSuffix(cl.Server, "/"), Token: u.Token,
		HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: t}}, // without Proxy, it ignores the environment
	}, nil
}

// current returns the cluster and the user of the current context.
func (k *kubeconfig) current() (cl cluster, u user, err error) {
	var foundContext, foundCluster, foundUser bool
	for _, c := range k.Contexts {
		if c.Name != k.CurrentContext {
			continue
		}
		foundContext = true
		for _, each := range k.Clusters {
			if each.Name == c.Context.Cluster {
				cl, foundCluster = each.Cluster, true
			}
		}
		for _, each := range k.Users {
			if each.Name == c.Context.User {
				u, foundUser = each.User, true
			}
		}
	}
	switch {
	case !foundContext:
		return cl, u, fmt.Errorf("there is no context %q (current-context)", k.CurrentContext)
	case !foundCluster || !foundUser:
		return cl, u, fmt.Errorf("the cluster or the user of context %q is missing", k.CurrentContext)
	case u.Exec != nil || u.AuthProvider != nil || u.Username != "":
		return cl, u, fmt.Errorf("the user of context %q must use token, tokenFile or a client certificate; exec, auth-provider and username are not supported", k.CurrentContext)
	case cl.Insecure:
		return cl, u, fmt.Errorf("insecure-skip-tls-verify is not supported; set certificate-authority")
	}
	return cl, u, checkServer(cl.Server)
}

// checkServer accepts https URLs, and http URLs of loopback addresses.
func checkServer(text string) error {
	parsed, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("server %q: %w", text, err)
	}
	loopback := false
	if a, err := netip.ParseAddr(parsed.Hostname()); err == nil {
		loopback = a.IsLoopback()
	}
	if parsed.Hostname() == "" || parsed.Scheme != "https" && !(parsed.Scheme == "http" && loopback) {
		return fmt.Errorf("server %q must be of the form https://host:port", text)
	}
	return nil
}

// files is the directory of relative paths.
type files string

// read returns the decoded data or, if data is "", the content of the file.
func (f files) read(path, data string) ([]byte, error) {
	if data != "" {
		return base64.StdEncoding.DecodeString(data)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(string(f), path)
	}
	return hostfile.ReadConfig(path, hostfile.MaxSize)
}

func (f files) tls(cl cluster, u user) (*tls.Config, error) {
	t := &tls.Config{ServerName: cl.ServerName, MinVersion: tls.VersionTLS12}
	if cl.CAFile != "" || cl.CAData != "" {
		ca, err := f.read(cl.CAFile, cl.CAData)
		if err != nil {
			return nil, fmt.Errorf("certificate-authority: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("certificate-authority contains no certificate in PEM format")
		}
	}
	if u.CertFile == "" && u.CertData == "" {
		return t, nil
	}
	cert, err := f.read(u.CertFile, u.CertData)
	if err != nil {
		return nil, fmt.Errorf("client-certificate: %w", err)
	}
	key, err := f.read(u.KeyFile, u.KeyData)
	if err != nil {
		return nil, fmt.Errorf("client-key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client-certificate: %w", err)
	}
	t.Certificates = []tls.Certificate{pair}
	return t, nil
}
