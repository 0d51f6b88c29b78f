package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

const (
	defaultWarmPool = 8   // number of addresses
	maxWarmPool     = 256 // number of addresses
	defaultTimeout  = 3   // in seconds
	maxTimeout      = 60  // in seconds
	separator       = ":" // separates node and network, because no name contains it
)

// rawConf is the configuration before it is checked.
type rawConf struct {
	IPAM *rawIPAM `json:"ipam"`
	pool.RuntimeKeys
}

type rawIPAM struct {
	pool.Keys
	Segment       string          `json:"segment"`
	Node          string          `json:"node"`
	WarmPool      *int            `json:"warmPool"`
	OnRequestOnly []string        `json:"onRequestOnly"`
	Datastore     json.RawMessage `json:"datastore"` // checked by the datastore plugin, except the keys in rawDatastore
}

// rawDatastore contains the keys of the object datastore that this plugin reads.
type rawDatastore struct {
	Type    string `json:"type"`
	Timeout *int   `json:"timeout"` // in seconds
	Prefix  string `json:"prefix"`
}

// A network is the checked configuration of a call, with the pool of its addresses.
type network struct {
	*pool.Pool
	host          host
	request       *skel.Request
	sets          []pool.Set
	segment       string
	node          string // the name of this node in the datastore, which differs between the networks of a segment
	warmPool      int
	onRequestOnly []netip.Prefix
	datastore     json.RawMessage
	program       string // the datastore's executable, from the key datastore.type
	timeout       time.Duration
	scope         string // the program, segment, node and prefix; the recorded state is valid only for one scope (see state)
}

// parse returns the network that the configuration describes. The error names all invalid values.
func (h host) parse(r *skel.Request) (*network, error) {
	var raw rawConf
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	if raw.IPAM == nil {
		_, err := h.NewPool(r, nil, raw.RuntimeKeys)
		return nil, err
	}
	p, poolErr := h.NewPool(r, &raw.IPAM.Keys, raw.RuntimeKeys)
	n := &network{Pool: p, host: h, request: r}
	if err := errors.Join(poolErr, n.setKeys(raw.IPAM)); err != nil {
		return nil, types.Coded(types.CodeConfig, err)
	}
	n.sets = p.Sets(n.onRequestOnly...)
	return n, n.checkSets()
}

// checkSets returns an error if the range sets exceed the limits of a request (datastore/README.md).
func (n *network) checkSets() error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	for _, set := range n.sets {
		for _, r := range set.Ranges {
			reportIf(r.First.Is6() && !netip.PrefixFrom(r.First, 64).Contains(r.Last), "%s: %s-%s must be in one /64", set.Key, r.First, r.Last)
		}
		parts := len(set.Ranges) + len(set.Exclude)
		reportIf(parts > datastore.MaxParts, "%s: want at most %d ranges and exclusions, got %d", set.Key, datastore.MaxParts, parts)
	}
	return types.Coded(types.CodeConfig, errors.Join(errs...))
}

// setKeys checks the keys of cluster-local, and sets the fields of n to their values.
func (n *network) setKeys(raw *rawIPAM) error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	n.segment, n.warmPool, n.datastore = raw.Segment, defaultWarmPool, raw.Datastore
	if n.segment == "" {
		n.segment = n.request.Conf.Name
	}
	reportIf(!datastore.IsName(n.segment), "ipam.segment %q must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit", n.segment)
	if raw.WarmPool != nil {
		n.warmPool = *raw.WarmPool
	}
	reportIf(n.warmPool < 0 || n.warmPool > maxWarmPool, "ipam.warmPool %d must be between 0 and %d", n.warmPool, maxWarmPool)
	var err error
	n.onRequestOnly, err = pool.ParsePrefixes("ipam.onRequestOnly", raw.OnRequestOnly)
	reportIf(err != nil, "%w", err)
	node, err := n.nodeName(raw.Node)
	reportIf(err != nil, "%w", err)
	prefix, err := n.setDatastore()
	reportIf(err != nil, "%w", err)
	n.node = node
	n.scope = fmt.Sprintf("%s %s %s %q", n.program, n.segment, n.node, prefix)
	return errors.Join(errs...)
}

// nodeName returns the name of the node in the datastore. It begins with the value of the key node or, without the key,
// with the host name. If the segment and the network have different names, the network's name follows. Each network on a node owns its addresses
// separately, because it has its own directory of reservations.
func (n *network) nodeName(configured string) (string, error) {
	node := configured
	if node == "" {
		name, err := n.host.hostname()
		if err != nil {
			return "", fmt.Errorf("ipam.node: read the host name: %w; set the key node", err)
		}
		node = name
	}
	fullName := node
	if n.segment != n.request.Conf.Name {
		fullName += separator + n.request.Conf.Name
	}
	if len(fullName) > datastore.MaxName {
		return "", fmt.Errorf("ipam.node %q must be at most %d bytes long; set a shorter value of the key node", fullName, datastore.MaxName)
	}
	if !datastore.IsName(node) {
		return "", fmt.Errorf("ipam.node %q must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit; the default of the key node is the host name", node)
	}
	return fullName, nil
}

// setDatastore checks the keys of rawDatastore, sets n.program and n.timeout, and returns the prefix.
func (n *network) setDatastore() (prefix string, err error) {
	if len(n.datastore) == 0 || string(n.datastore) == "null" {
		return "", errors.New(`ipam.datastore is missing; set it, for example to {"type": "cluster-local-etcd", "endpoints": ["https://10.0.0.1:2379"], …}`)
	}
	var raw rawDatastore
	if err := json.Unmarshal(n.datastore, &raw); err != nil {
		return "", fmt.Errorf("ipam.datastore: %w", err)
	}
	seconds := defaultTimeout
	if raw.Timeout != nil {
		seconds = *raw.Timeout
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(seconds < 1 || seconds > maxTimeout, "ipam.datastore.timeout %d must be between 1 and %d seconds", seconds, maxTimeout)
	reportIf(!datastore.IsName(raw.Type), "ipam.datastore.type %q must be the name of an executable in CNI_PATH, such as cluster-local-etcd", raw.Type)
	n.program, n.timeout = raw.Type, time.Duration(seconds)*time.Second
	return raw.Prefix, errors.Join(errs...)
}

// isOnRequestOnly reports whether only an ADD that requests the address may allocate it.
func (n *network) isOnRequestOnly(ip netip.Addr) bool {
	return slices.ContainsFunc(n.onRequestOnly, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// setIndex returns the index of the set that allocates the address, or noSet.
func (n *network) setIndex(ip netip.Addr) int {
	return slices.IndexFunc(n.sets, func(s pool.Set) bool { return s.Contains(ip) })
}
