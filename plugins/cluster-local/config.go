package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/engine"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

const (
	defaultStock   = 8
	maxStock       = 256
	defaultTimeout = 3   // seconds
	maxTimeout     = 60  // seconds
	maxName        = 253 // bytes: of segments and nodes, as engine/README.md says
	separator      = ":" // between node and network; no name has it
)

// rawConf is the configuration before it is checked.
type rawConf struct {
	IPAM *rawIPAM `json:"ipam"`
	pool.RuntimeKeys
}

type rawIPAM struct {
	pool.Keys
	Segment string          `json:"segment"`
	Node    string          `json:"node"`
	Stock   *int            `json:"stock"`
	Fixed   []string        `json:"fixed"`
	Engine  json.RawMessage `json:"engine"` // the engine checks the keys that are its own
}

// rawEngine has the keys of engine that this plugin reads.
type rawEngine struct {
	Type    string `json:"type"`
	Timeout *int   `json:"timeout"` // seconds
	Prefix  string `json:"prefix"`
}

// A network is a checked configuration of an ADD, CHECK, DEL, GC or STATUS, with the addresses of its network.
type network struct {
	*pool.Pool
	host    host
	request *skel.Request
	sets    []pool.Set
	segment string
	node    string // the name by which the engine knows the addresses of this network on this node
	stock   int
	fixed   []netip.Prefix
	engine  json.RawMessage
	program string // the key engine.type: the executable of the engine
	timeout time.Duration
	scope   string // what the owned addresses depend on: see state
}

// parse returns the network that the configuration describes. The error names all problems of the
// values, but those of the keys of the pool alone if there are any.
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
	n.sets = p.Sets(n.fixed...)
	return n, n.checkSets()
}

// checkSets returns an error if no engine takes the range sets: engine/README.md has the limits of a request.
func (n *network) checkSets() error {
	var errs []error
	problem := types.ProblemsInto(&errs)
	for i, set := range n.sets {
		for _, r := range set.Ranges {
			problem(r.First.Is6() && !netip.PrefixFrom(r.First, 64).Contains(r.Last), "range set %d: %s-%s must be in one /64", i+1, r.First, r.Last)
		}
		parts := len(set.Ranges) + len(set.Exclude)
		problem(parts > engine.MaxParts, "range set %d: want %d ranges and exclusions at most, got %d", i+1, engine.MaxParts, parts)
	}
	return types.Coded(types.CodeConfig, errors.Join(errs...))
}

// setKeys checks the plugin's own keys, and sets the fields for them.
func (n *network) setKeys(raw *rawIPAM) error {
	var errs []error
	problem := types.ProblemsInto(&errs)
	n.segment, n.stock, n.engine = raw.Segment, defaultStock, raw.Engine
	if n.segment == "" {
		n.segment = n.request.Conf.Name
	}
	problem(!isName(n.segment), "segment %q is no name: use letters, digits, '.', '_' and '-', and begin with a letter or digit", n.segment)
	if raw.Stock != nil {
		n.stock = *raw.Stock
	}
	problem(n.stock < 0 || n.stock > maxStock, "stock %d is not between 0 and %d", n.stock, maxStock)
	var err error
	n.fixed, err = pool.ParsePrefixes("fixed", raw.Fixed)
	problem(err != nil, "%w", err)
	node, err := n.nodeName(raw.Node)
	problem(err != nil, "%w", err)
	prefix, err := n.setEngine()
	problem(err != nil, "%w", err)
	n.node = node
	n.scope = fmt.Sprintf("%s %s %s %q", n.program, n.segment, n.node, prefix)
	return errors.Join(errs...)
}

// nodeName returns the name of the node for the engine: the key node, or else the host name. Where the
// segment is not named after the network, the network's name follows: each network of a segment has
// addresses of its own on the node, because its reservations are in a folder of their own.
func (n *network) nodeName(configured string) (string, error) {
	node := configured
	if node == "" {
		name, err := n.host.hostname()
		if err != nil {
			return "", fmt.Errorf("node: the host name cannot be read: %w; set the key node", err)
		}
		node = name
	}
	full := node
	if n.segment != n.request.Conf.Name {
		full += separator + n.request.Conf.Name
	}
	if !isName(node) || len(full) > maxName {
		return "", fmt.Errorf("node %q is no name: use letters, digits, '.', '_' and '-', and begin with a letter or digit; the default of the key node is the host name", node)
	}
	return full, nil
}

// setEngine reads the keys of engine that are not the engine's own, and returns its prefix.
func (n *network) setEngine() (prefix string, err error) {
	if len(n.engine) == 0 || string(n.engine) == "null" {
		return "", errors.New(`engine is missing: name it, such as {"type": "cluster-local-etcd", "endpoints": ["https://10.0.0.1:2379"], …}`)
	}
	var raw rawEngine
	if err := json.Unmarshal(n.engine, &raw); err != nil {
		return "", fmt.Errorf("engine: %w", err)
	}
	seconds := defaultTimeout
	if raw.Timeout != nil {
		seconds = *raw.Timeout
	}
	var errs []error
	problem := types.ProblemsInto(&errs)
	problem(seconds < 1 || seconds > maxTimeout, "engine.timeout %d is not between 1 and %d seconds", seconds, maxTimeout)
	problem(!isName(raw.Type), "engine.type %q must be the name of an executable in CNI_PATH, such as cluster-local-etcd", raw.Type)
	n.program, n.timeout = raw.Type, time.Duration(seconds)*time.Second
	return raw.Prefix, errors.Join(errs...)
}

// isName reports whether s can be the name of a segment, a node or an engine.
func isName(s string) bool {
	for i, r := range s {
		alphanumeric := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !alphanumeric && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// isFixed reports whether the address is given only on request.
func (n *network) isFixed(ip netip.Addr) bool {
	return slices.ContainsFunc(n.fixed, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// setOf returns the index of the set that allocates the address, or noSet.
func (n *network) setOf(ip netip.Addr) int {
	return slices.IndexFunc(n.sets, func(s pool.Set) bool { return s.Contains(ip) })
}
