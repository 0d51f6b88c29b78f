package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

const (
	group      = "ipam.plumb-cni.github.io"
	apiVersion = "v1alpha1"

	// chunkSize is how many addresses an AddressChunk contains. The first one is a multiple of it. It must never change,
	// because the names of existing objects depend on it.
	chunkSize = 64

	// maxSegment is the largest length of a segment's name, which is the value of labelSegment.
	maxSegment = 63

	labelSegment = group + "/segment"
	labelOwned   = group + "/owned" // the number of owners in an AddressChunk
	labelFull    = group + "/full"  // whether all addresses of an AddressChunk have owners
	labelOpen    = group + "/open"  // whether an AddressChunk is open
)

// The custom resources.
func segments() kind[segmentSpec] { return kind[segmentSpec]{"Segment", "segments"} }
func segmentNodes() kind[segmentNodeSpec] {
	return kind[segmentNodeSpec]{"SegmentNode", "segmentnodes"}
}
func addressChunks() kind[addressChunkSpec] {
	return kind[addressChunkSpec]{"AddressChunk", "addresschunks"}
}

// segmentSpec is one segment. The UID of the object is the ID of the store.
type segmentSpec struct {
	Segment string  `json:"segment"`
	Fence   int64   `json:"fence"` // grows with each change, because an update that changes nothing writes nothing
	Frozen  *frozen `json:"frozen,omitempty"`
}

type frozen struct {
	Since string `json:"since"`
	By    string `json:"by,omitempty"`
	// Complete is set after all chunks have been closed.
	Complete bool `json:"complete,omitempty"`
}

// segmentNodeSpec is the registration of a node in a segment.
type segmentNodeSpec struct {
	Segment  string   `json:"segment"`
	Node     string   `json:"node"`
	Network  string   `json:"network,omitempty"`
	Machine  string   `json:"machine"`
	Boot     string   `json:"boot"`
	Epoch    string   `json:"epoch"` // distinguishes this registration from all others; begins with bootHash
	Store    string   `json:"store"` // the UID of the Segment
	Chunks   []string `json:"chunks,omitempty"`
	LastCall string   `json:"lastCall,omitempty"`
	Removed  bool     `json:"removed,omitempty"` // remove-node has begun
	Sample   sample   `json:"sample"`
}

// addressChunkSpec contains the owners of chunkSize addresses.
type addressChunkSpec struct {
	Segment string           `json:"segment"`
	First   string           `json:"first"`
	Size    int              `json:"size"`
	Open    bool             `json:"open"` // whether a claim needs not read the Segment
	Fence   int64            `json:"fence"`
	Store   string           `json:"store"`
	Sample  sample           `json:"sample"`
	Owners  map[string]owner `json:"owners"` // by offset

	unreadable bool // see inspect
}

// owner is the owner of one address.
type owner struct {
	Node    string `json:"node"`
	Network string `json:"network,omitempty"`
	Epoch   string `json:"epoch"` // the epoch of the registration that claimed the address
	Claim   string `json:"claim"`
	Since   string `json:"since,omitempty"`
}

// sample is an estimate of how many addresses of the segment have owners.
type sample struct {
	Owners uint64 `json:"owners,omitempty"`
}

type (
	segment      = object[segmentSpec]
	segmentNode  = object[segmentNodeSpec]
	addressChunk = object[addressChunkSpec]
)

// name returns the name of the node as a request contains it.
func nodeName(node, network string) string {
	if network == "" {
		return node
	}
	return node + ":" + network
}

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:40]
}

// checkSegment returns an error unless the name of the segment can be a label, and the name of an object or a part of it, so
// that the admission policy can compare them.
func checkSegment(segment string) error {
	if isDNSName(segment) && len(segment) <= maxSegment {
		return nil
	}
	return server.Errorf(types.CodeConfig, datastore.ReasonRequest,
		"segment %q must be at most %d lower-case letters, digits, '-' and '.', because objects of Kubernetes have its name; set the key segment", segment, maxSegment)
}

// isDNSName reports whether s can be a part of an object's name.
func isDNSName(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		letter := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' }
		if label == "" || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") ||
			strings.ContainsFunc(label, func(r rune) bool { return !letter(r) && r != '-' }) {
			return false
		}
	}
	return len(s) <= 200
}

// segmentNodeObject returns the name of the SegmentNode of a node, which contains a hash. It begins with the name of the node
// if possible, as the name of a Node always can, so that the admission policy can compare them.
func segmentNodeObject(segment, node string) string {
	node, network, _ := strings.Cut(node, ":")
	if isDNSName(node) {
		return node + "." + hash(segment, node, network)[:32]
	}
	return hash(segment, node, network)
}

// chunkOf returns the first address of the chunk that contains a, and the offset of a in it.
func chunkOf(a netip.Addr) (first netip.Addr, offset int) {
	b := a.AsSlice()
	offset = int(b[len(b)-1]) % chunkSize
	b[len(b)-1] -= byte(offset)
	first, _ = netip.AddrFromSlice(b)
	return first, offset
}

// addrAt returns the address at an offset of the chunk that begins with first.
func addrAt(first netip.Addr, offset int) netip.Addr {
	b := first.AsSlice()
	b[len(b)-1] += byte(offset)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// longText returns an address as text that contains a separator between all its parts.
func longText(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	b := a.As16()
	var parts []string
	for i := 0; i < len(b); i += 2 {
		parts = append(parts, strconv.FormatUint(uint64(b[i])<<8|uint64(b[i+1]), 16))
	}
	return strings.Join(parts, ":")
}

func chunkObject(segment string, first netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(longText(first)) + "." + segment
}

// firstOf returns the first address of the chunk with this object name.
func firstOf(object string) (netip.Addr, error) {
	text, _, _ := strings.Cut(object, ".")
	separator := "."
	if strings.Count(text, "-") == 7 {
		separator = ":"
	}
	return netip.ParseAddr(strings.ReplaceAll(text, "-", separator))
}

// selector returns the query for the objects of the segment.
func (s *session) selector() url.Values {
	return url.Values{"labelSelector": {labelSegment + "=" + s.Segment}}
}

// bootHash returns the beginning of the epochs of this machine and boot.
func (s *session) bootHash() string { return hash(s.Machine, s.Boot)[:16] + "-" }

// nonsense returns the error for an object that was not written by a datastore. Nothing is guessed from it.
func nonsense(kind, name, format string, args ...any) error {
	return server.Errorf(types.CodeInternal, datastore.ReasonInternal, "%s %s: %w; correct the object or restore it from a backup",
		kind, name, fmt.Errorf(format, args...))
}

// warn adds a warning to the answer.
func (s *session) warn(text string) {
	if !slices.Contains(s.warnings, text) {
		s.warnings = append(s.warnings, text)
	}
}

// segment reads the Segment. It returns nil if there is none.
func (s *session) segment(ctx context.Context) (*segment, error) {
	o, err := segments().get(ctx, s, s.Segment)
	if err != nil || o == nil {
		return nil, err
	}
	if o.Spec.Segment != s.Segment {
		return nil, nonsense("Segment", o.Metadata.Name, "spec.segment is %q, not %q", o.Spec.Segment, s.Segment)
	}
	s.storeID = o.Metadata.UID
	return o, nil
}

// frozenText returns when the segment was frozen and by which node, or "" if it is not frozen.
func frozenText(o *segment) string {
	if o == nil || o.Spec.Frozen == nil {
		return ""
	}
	return server.FrozenText(cmp.Or(word(o.Spec.Frozen.Since), "an unknown time"), word(o.Spec.Frozen.By))
}

// registration reads the SegmentNode of a node. It returns nil if there is none.
func (s *session) registration(ctx context.Context, node string) (*segmentNode, error) {
	o, err := segmentNodes().get(ctx, s, segmentNodeObject(s.Segment, node))
	if err != nil || o == nil {
		return nil, err
	}
	return o, s.checkNode(o, node)
}

// checkNode checks a registration. It removes names from its list of chunks that no chunk of the segment can have, and warns
// of them. The node owns nothing there.
func (s *session) checkNode(o *segmentNode, node string) error {
	n := o.Spec
	switch {
	case n.Segment != s.Segment || node != "" && nodeName(n.Node, n.Network) != node:
		return nonsense("SegmentNode", o.Metadata.Name, "it is of node %q and segment %q", nodeName(n.Node, n.Network), n.Segment)
	case !server.IsWord(n.Machine) || !server.IsWord(n.Boot) || !server.IsWord(n.Epoch):
		return nonsense("SegmentNode", o.Metadata.Name, "machine %q, boot %q and epoch %q must not be empty", n.Machine, n.Boot, n.Epoch)
	}
	o.Spec.Chunks = slices.DeleteFunc(n.Chunks, func(name string) bool {
		first, err := firstOf(name)
		if err == nil && chunkObject(s.Segment, first) == name {
			return false
		}
		s.warn(fmt.Sprintf("SegmentNode %s: %q is not the name of a chunk, and is ignored", o.Metadata.Name, name))
		return true
	})
	return nil
}

// identityOf returns the machine and boot of a registration, or "" if there is none.
func identityOf(o *segmentNode) string {
	if o == nil || o.Spec.Removed {
		return ""
	}
	return o.Spec.Machine + " " + o.Spec.Boot
}

// chunk reads the AddressChunk that begins with first. It returns nil if there is none.
func (s *session) chunk(ctx context.Context, first netip.Addr) (*addressChunk, error) {
	o, err := addressChunks().get(ctx, s, chunkObject(s.Segment, first))
	if err == nil && o == nil {
		return nil, s.checkFence(first, 0)
	}
	if err != nil {
		return nil, err
	}
	s.inspect(o)
	return o, s.checkFence(first, o.Spec.Fence)
}

// inspect warns of what no datastore has written into a chunk. The datastore continues as if it were taken: a chunk that
// inspect marks as unreadable counts as full, and an owner that is not valid counts as the owner of an address.
func (s *session) inspect(o *addressChunk) {
	c := &o.Spec
	first, err := netip.ParseAddr(c.First)
	if err != nil || c.Segment != s.Segment || o.Metadata.Name != chunkObject(s.Segment, first) || c.Size != chunkSize || c.Fence < 0 || c.Fence == math.MaxInt64 {
		c.unreadable = true
		s.warn(fmt.Sprintf("AddressChunk %s counts as full: it is of segment %q, first address %q, size %d and fence %d; correct the object",
			o.Metadata.Name, c.Segment, c.First, c.Size, c.Fence))
		return
	}
	for _, offset := range slices.Sorted(maps.Keys(c.Owners)) {
		owner := c.Owners[offset]
		if _, ok := offsetOf(offset); !ok || !isReadable(owner) || !server.IsWord(owner.Claim) || !server.IsWord(owner.Epoch) {
			s.warn(fmt.Sprintf("AddressChunk %s: owner %q with node %q, epoch %q and claim %q is not valid, and counts as the owner of an address; correct the object",
				o.Metadata.Name, offset, owner.Node, owner.Epoch, owner.Claim))
		}
	}
}

// offsetOf returns the offset in a key of the owners.
func offsetOf(key string) (int, bool) {
	n, err := strconv.Atoi(key)
	return n, err == nil && n >= 0 && n < chunkSize && strconv.Itoa(n) == key
}

// isReadable reports whether the owner names a node.
func isReadable(o owner) bool { return server.IsWord(nodeName(o.Node, o.Network)) }

// word returns a text that only people read, or "" if it is not a word and could therefore, for example, control a terminal.
func word(s string) string {
	if server.IsWord(s) {
		return s
	}
	return ""
}

// learnStore sets the ID of the store. An object contains the ID that its writer has seen. If this node has seen another one,
// the UID of the Segment decides.
func (s *session) learnStore(ctx context.Context, written string) error {
	if written == s.Store {
		s.storeID = written
		return nil
	}
	o, err := s.segment(ctx)
	if err == nil && o == nil {
		err = s.CheckRegistered("") // the Segment was deleted
	}
	return err
}

// newChunk returns a chunk that is not open and has no owner.
func (s *session) newChunk(first netip.Addr, n *segmentNode) *addressChunk {
	return &addressChunk{
		Metadata: metadata{Name: chunkObject(s.Segment, first)},
		Spec:     addressChunkSpec{Segment: s.Segment, First: longText(first), Size: chunkSize, Store: s.storeID, Sample: n.Spec.Sample, Owners: map[string]owner{}},
	}
}

// createChunk creates a chunk, and reports false if it exists.
func (s *session) createChunk(ctx context.Context, c *addressChunk) (bool, error) {
	label(c)
	return addressChunks().create(ctx, s, c)
}

// updateChunk counts the fence up, and writes the chunk. It reports false if the chunk has changed since it was read.
func (s *session) updateChunk(ctx context.Context, c *addressChunk) (bool, error) {
	c.Spec.Fence++
	label(c)
	ok, err := addressChunks().update(ctx, s, c)
	if first, parseErr := netip.ParseAddr(c.Spec.First); ok && parseErr == nil {
		s.fences[first] = c.Spec.Fence
	}
	return ok, err
}

// label sets the labels of a chunk.
func label(c *addressChunk) {
	if c.Metadata.Labels == nil {
		c.Metadata.Labels = map[string]string{}
	}
	c.Metadata.Labels[labelSegment] = c.Spec.Segment
	c.Metadata.Labels[labelOwned] = strconv.Itoa(len(c.Spec.Owners))
	c.Metadata.Labels[labelFull] = strconv.FormatBool(len(c.Spec.Owners) == chunkSize)
	c.Metadata.Labels[labelOpen] = strconv.FormatBool(c.Spec.Open)
}

// owners returns all owners in the chunk that are nodes.
func owners(c *addressChunk) map[netip.Addr]owner {
	all := map[netip.Addr]owner{}
	if c.Spec.unreadable {
		return all
	}
	first, _ := netip.ParseAddr(c.Spec.First) // inspect has checked it
	for key, o := range c.Spec.Owners {
		if n, ok := offsetOf(key); ok && isReadable(o) {
			all[addrAt(first, n)] = o
		}
	}
	return all
}

// owned returns the addresses of the chunk that the node owns.
func owned(c *addressChunk, node string) map[netip.Addr]owner {
	all := owners(c)
	maps.DeleteFunc(all, func(_ netip.Addr, o owner) bool { return nodeName(o.Node, o.Network) != node })
	return all
}

// ownerOf returns the owner of an address of the chunk, and false if it has none.
func ownerOf(c *addressChunk, a netip.Addr) (owner, bool) {
	_, offset := chunkOf(a)
	o, ok := c.Spec.Owners[strconv.Itoa(offset)]
	return o, ok || c.Spec.unreadable
}

// give assigns an address of the chunk to the node of the request, and returns the new claim. since may be "".
func (s *session) give(c *addressChunk, a netip.Addr, epoch, since string) string {
	if since == "" {
		since = server.Now()
	}
	if c.Spec.Owners == nil {
		c.Spec.Owners = map[string]owner{}
	}
	node, network, _ := strings.Cut(s.Node, ":")
	_, offset := chunkOf(a)
	o := owner{Node: node, Network: network, Epoch: epoch, Claim: server.NewClaim(), Since: since}
	c.Spec.Owners[strconv.Itoa(offset)] = o
	return o.Claim
}

// take removes the owner of an address of the chunk.
func take(c *addressChunk, a netip.Addr) {
	_, offset := chunkOf(a)
	delete(c.Spec.Owners, strconv.Itoa(offset))
}

// chunksOf returns the first addresses of the chunks that contain the addresses, in order.
func chunksOf(addresses []netip.Addr) (firsts []netip.Addr) {
	for _, a := range addresses {
		if first, _ := chunkOf(a); !slices.Contains(firsts, first) {
			firsts = append(firsts, first)
		}
	}
	slices.SortFunc(firsts, netip.Addr.Compare)
	return firsts
}
