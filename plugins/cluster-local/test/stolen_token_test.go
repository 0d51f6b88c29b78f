package datastore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.yaml.in/yaml/v3"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

const (
	labelPrefix = "ipam.plumb-cni.github.io/"
	escape      = "\x1b[2J" // clears a terminal
	someHash    = "0123456789abcdef0123456789abcdef"
)

// An attack lists values of a field that no node may write, values that do no harm to other nodes, and values that the API
// server itself ignores or rejects.
type attack struct{ denied, harmless, ignored []any }

func deny(values ...any) attack             { return attack{denied: values} }
func admit(values ...any) attack            { return attack{harmless: values} }
func ignore(values ...any) attack           { return attack{ignored: values} }
func (a attack) admit(values ...any) attack { return attack{denied: a.denied, harmless: values} }

func object(pairs ...any) map[string]any { return merge(map[string]any{}, pairs...) }
func nested(o map[string]any, key string) map[string]any {
	if o[key] == nil {
		o[key] = map[string]any{}
	}
	return o[key].(map[string]any)
}

func merge(o map[string]any, pairs ...any) map[string]any {
	for i := 0; i < len(pairs); i += 2 {
		o[pairs[i].(string)] = pairs[i+1]
	}
	return o
}

// metadataAttacks lists all fields of ObjectMeta
// (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/).
var metadataAttacks = map[string]attack{
	"metadata.name":                       deny("another", "n1."+someHash, "n2.b."+someHash, "n2.0123", "n2x."+someHash, "10-7-0-0.pods"),
	"metadata.generateName":               ignore("x"),
	"metadata.namespace":                  ignore("default"),
	"metadata.labels":                     deny(object("x", "y"), object(labelPrefix+"segment", "another"), object(labelPrefix+"segment", strings.Repeat("0", 40))),
	"metadata.annotations":                deny(object("x", strings.Repeat("y", 100_000))),
	"metadata.finalizers":                 deny([]any{"x.example/y"}),
	"metadata.ownerReferences":            deny([]any{object("apiVersion", "v1", "kind", "Node", "name", "gone", "uid", "00000000-0000-0000-0000-000000000001")}),
	"metadata.uid":                        ignore("another"),
	"metadata.resourceVersion":            ignore("1"),
	"metadata.generation":                 ignore(99),
	"metadata.creationTimestamp":          ignore("2001-01-01T00:00:00Z"),
	"metadata.deletionTimestamp":          ignore("2001-01-01T00:00:00Z"),
	"metadata.deletionGracePeriodSeconds": ignore(1),
	"metadata.selfLink":                   ignore("x"),
	"metadata.managedFields":              ignore([]any{}),
}

// specAttacks lists all fields of the schemas. The token belongs to node n2. It writes the Segment to freeze it, its own
// registration, and a chunk in which n1 and n2 own addresses, with a new owner of the address with offset 39.
var specAttacks = map[string]map[string]attack{
	"segments": {
		"spec.segment":         deny("another", "A_B"),
		"spec.fence":           deny(0, 100, math.MaxInt64),
		"spec.frozen.since":    deny("", escape, "a b").admit("never"),
		"spec.frozen.by":       deny("n1", "n1:x", "n22", "n2:"+escape).admit("", "n2:pods"),
		"spec.frozen.complete": deny(true),
	},
	"segmentnodes": {
		"spec.segment":       deny("another"),
		"spec.node":          deny("n1", "n22", ""),
		"spec.network":       deny("another", "a b"),
		"spec.machine":       deny("a b", escape).admit("another"),
		"spec.boot":          deny("a b", escape).admit("another"),
		"spec.epoch":         deny("a b", escape).admit("another"),
		"spec.store":         deny("a b", escape).admit("another"),
		"spec.chunks":        admit([]any{"../x", "10-7-0-0.another", escape, "10-7-9-64.SEGMENT"}),
		"spec.lastCall":      deny("a b", escape).admit("never"),
		"spec.removed":       deny(true),
		"spec.sample.owners": admit(1 << 52),
	},
	"addresschunks": {
		"spec.segment":          deny("another"),
		"spec.first":            deny("10.7.0.1", "10.7.0.064", "zzz", "10.7.0.256", "fd00:0:0:0:0:0:0:1", "fd00::", "::ffff:10.7.0.0"),
		"spec.size":             deny(63, 128),
		"spec.open":             admit(true, false),
		"spec.fence":            deny(0, 1000, math.MaxInt64, -1),
		"spec.store":            deny("a b", escape).admit("another"),
		"spec.sample.owners":    admit(1 << 52),
		"spec.owners.*.node":    deny("n1", "n22", ""),
		"spec.owners.*.network": deny("a b", "x:y").admit("another"),
		"spec.owners.*.epoch":   deny("a b", escape, "").admit("another"),
		"spec.owners.*.claim":   deny("a b", escape, "").admit("another"),
		"spec.owners.*.since":   deny("a b", escape).admit("never"),
	},
}

// schemaFields returns the paths of all fields of the custom resources, by plural.
func schemaFields() map[string][]string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(manifests, "crds.yaml"))
	Expect(err).NotTo(HaveOccurred())
	all := map[string][]string{}
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var crd struct {
			Spec struct {
				Names    struct{ Plural string }
				Versions []struct {
					Schema struct {
						Root struct {
							Properties map[string]map[string]any
						} `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		if err = documents.Decode(&crd); err == io.EOF {
			return all
		}
		Expect(err).NotTo(HaveOccurred())
		for name, schema := range crd.Spec.Versions[0].Schema.Root.Properties {
			all[crd.Spec.Names.Plural] = append(all[crd.Spec.Names.Plural], leaves(name, schema)...)
		}
	}
}

func leaves(path string, schema map[string]any) (all []string) {
	properties, _ := schema["properties"].(map[string]any)
	for name, s := range properties {
		all = append(all, leaves(path+"."+name, s.(map[string]any))...)
	}
	if s, ok := schema["additionalProperties"].(map[string]any); ok {
		all = append(all, leaves(path+".*", s)...)
	}
	if len(all) == 0 {
		all = []string{path}
	}
	return all
}

// set sets a field. The star in the path of an owner is the offset 39, and metadata.labels adds labels.
func set(o map[string]any, path string, value any) {
	words := strings.Split(strings.Replace(path, "*", "39", 1), ".")
	for _, word := range words[:len(words)-1] {
		o = nested(o, word)
	}
	if labels, ok := value.(map[string]any); ok && path == "metadata.labels" {
		o, words = nested(o, "labels"), nil
		maps.Copy(o, labels)
		return
	}
	o[words[len(words)-1]] = value
}

// A thief has the token of node n2.
type thief struct {
	*kubernetes
	segment, token string
}

// chunkLabels sets the labels of a chunk as the datastore does.
func chunkLabels(o map[string]any) {
	spec, labels := o["spec"].(map[string]any), nested(nested(o, "metadata"), "labels")
	count := len(spec["owners"].(map[string]any))
	merge(labels, labelPrefix+"owned", fmt.Sprint(count), labelPrefix+"full", fmt.Sprint(count == 64), labelPrefix+"open", fmt.Sprint(spec["open"]))
}

// existing returns the object that the thief may change, with a change that the policy admits, except edit.
func (t *thief) existing(plural string, edit func(map[string]any)) (string, map[string]any) {
	GinkgoHelper()
	for _, item := range t.as(adminToken, http.MethodGet, resources+plural, nil)["items"].([]any) {
		o := item.(map[string]any)
		spec, name := o["spec"].(map[string]any), o["metadata"].(map[string]any)["name"].(string)
		if spec["segment"] != t.segment || plural == "segmentnodes" && spec["node"] != "n2" || plural == "addresschunks" && spec["first"] != "10.7.0.0" {
			continue
		}
		if plural == "segments" && spec["frozen"] != nil {
			delete(spec, "frozen")
			o = t.as(adminToken, http.MethodPut, resources+plural+"/"+name, o)
			spec = o["spec"].(map[string]any)
		}
		if fence, ok := spec["fence"].(float64); ok {
			spec["fence"] = fence + 1
		}
		switch plural {
		case "segments":
			spec["frozen"] = object("since", "today", "by", "n2")
		case "addresschunks":
			nested(spec, "owners")["39"] = object("node", "n2", "epoch", "e", "claim", "c")
		}
		edit(o)
		if plural == "addresschunks" {
			chunkLabels(o)
		}
		return resources + plural + "/" + name, o
	}
	Fail("there is no object of " + plural)
	return "", nil
}

// fresh returns an object that the thief may create, except edit.
func (t *thief) fresh(plural string, edit func(map[string]any)) (string, map[string]any) {
	o := object("apiVersion", "ipam.plumb-cni.github.io/v1alpha1", "metadata", object("labels", object(labelPrefix+"segment", t.segment)))
	metadata := o["metadata"].(map[string]any)
	switch plural {
	case "segments":
		merge(o, "kind", "Segment", "spec", object("segment", t.segment+"-new", "fence", 0))
		merge(metadata, "name", t.segment+"-new", "labels", object())
	case "segmentnodes":
		metadata["name"] = "n2." + someHash
		merge(o, "kind", "SegmentNode", "spec", object("segment", t.segment, "node", "n2", "network", "more", "machine", "m", "boot", "b", "epoch", "e", "store", "s"))
	case "addresschunks":
		merge(o, "kind", "AddressChunk", "spec", object("segment", t.segment, "first", "10.7.9.0", "size", 64, "open", false, "fence", 0, "store", "s", "owners", object()))
		chunkLabels(o)
	}
	edit(o)
	if spec := o["spec"].(map[string]any); plural == "addresschunks" && metadata["name"] == nil {
		metadata["name"] = strings.NewReplacer(".", "-", ":", "-").Replace(spec["first"].(string)) + "." + t.segment
		chunkLabels(o)
	}
	return resources + plural, o
}

// try writes an object with one field changed. It first sends a dry run, in which the policy decides as well.
func (t *thief) try(method, plural, field string, value any) error {
	GinkgoHelper()
	build := t.existing
	if method == http.MethodPost {
		build = t.fresh
	}
	edit := func(o map[string]any) {
		if field != "" {
			set(o, field, value)
		}
	}
	path, o := build(plural, edit)
	if _, err := t.send(t.token, method, path+"?dryRun=All", o); err != nil || method == http.MethodPost {
		return err
	}
	_, err := t.send(t.token, method, path, o)
	return err
}

// describeStolenToken describes what the holder of a node's token can do.
func describeStolenToken(open func() *kubernetes) {
	It("tries all fields of all kinds, and does no harm to other nodes", func() {
		t := &thief{open(), "stolen", ""}
		n1, n2 := t.newCaller(t.segment, "n1", "10.7.0.1-10.7.0.100"), t.newCaller(t.segment, "n2", "10.7.0.1-10.7.0.100")
		registered := n1.succeed(datastore.Register)
		n2.succeed(datastore.Register)
		mine := n1.succeed(datastore.Claim, requested("10.7.0.5", "10.7.0.6"))
		n2.succeed(datastore.Claim, requested("10.7.0.7"))
		text, err := os.ReadFile(t.kubeconfig("n2") + ".token")
		Expect(err).NotTo(HaveOccurred())
		t.token = string(text)

		for plural, fields := range schemaFields() {
			Expect(slices.Collect(maps.Keys(specAttacks[plural]))).To(ConsistOf(fields), "specAttacks must contain all fields of %s", plural)
			for _, method := range []string{http.MethodPut, http.MethodPost} {
				Expect(t.try(method, plural, "", nil)).To(Succeed(), "%s %s without a changed field", method, plural)
				for _, attacks := range []map[string]attack{metadataAttacks, specAttacks[plural]} {
					for _, field := range slices.Sorted(maps.Keys(attacks)) {
						t.attack(method, plural, field, attacks[field])
					}
				}
			}
		}
		t.changeForeign()

		n1.base.Store = registered.Store
		frozen := requireError(t.clients, n1.request(datastore.Register), types.CodeTryAgain, datastore.ReasonFrozen)
		Expect(frozen.Warnings).To(BeEmpty())
		freeze := n1.request(datastore.Freeze)
		freeze.Datastore = config(t.kubeconfig(""))
		Expect(call(t.clients, freeze).Error).To(BeNil())
		for _, chunk := range t.chunks(t.segment) {
			Expect(chunk["spec"]).To(HaveKeyWithValue("open", false))
		}
		n1.succeed(datastore.Thaw)
		list := n1.succeed(datastore.List)
		Expect(list.Owners).To(And(HaveKeyWithValue(netip.MustParseAddr("10.7.0.5"), HaveField("Node", "n1")), HaveKeyWithValue(netip.MustParseAddr("10.7.0.6"), HaveField("Node", "n1"))))
		Expect(owned(t, t.segment, "n1")).To(Equal(mine.Addresses))
		t.claimAll(list.Owners, &n1)
		removed := n1.request(datastore.RemoveNode, func(r *datastore.Request) {
			r.Target, r.Machine, r.Boot = "n2", list.Nodes["n2"].Machine, list.Nodes["n2"].Boot
		})
		Expect(call(t.clients, removed).Error).To(BeNil())
		Expect(n1.succeed(datastore.List).Warnings).To(BeEmpty())
	})
}

// attack tries all values of a field. Values that do no harm are written only to existing objects.
func (t *thief) attack(method, plural, field string, a attack) {
	GinkgoHelper()
	for _, value := range a.denied {
		// A new object may have another network, and the fence 0.
		if method == http.MethodPost && (field == "spec.network" && value == "another" || field == "spec.fence" && value == 0) {
			continue
		}
		Expect(t.try(method, plural, field, value)).NotTo(Succeed(), "%s %s: %s = %q", method, plural, field, value)
	}
	if method == http.MethodPost {
		return
	}
	for _, value := range a.ignored {
		_ = t.try(method, plural, field, value)
	}
	for _, value := range a.harmless {
		if list, ok := value.([]any); ok {
			for i := range list {
				if text, ok := list[i].(string); ok {
					list[i] = strings.Replace(text, "SEGMENT", t.segment, 1)
				}
			}
		}
		Expect(t.try(method, plural, field, value)).To(Succeed(), "%s %s: %s = %q", method, plural, field, value)
	}
}

// changeForeign tries to change the addresses and registration of n1.
func (t *thief) changeForeign() {
	GinkgoHelper()
	for what, edit := range map[string]func(owners map[string]any){
		"remove":         func(owners map[string]any) { delete(owners, "5") },
		"take":           func(owners map[string]any) { owners["5"] = object("node", "n2", "epoch", "e", "claim", "c") },
		"change":         func(owners map[string]any) { owners["5"].(map[string]any)["claim"] = "c" },
		"remove all":     func(owners map[string]any) { clear(owners) },
		"offset 64":      func(owners map[string]any) { owners["64"] = object("node", "n2", "epoch", "e", "claim", "c") },
		"offset 070":     func(owners map[string]any) { owners["070"] = object("node", "n2", "epoch", "e", "claim", "c") },
		"offset -1":      func(owners map[string]any) { owners["-1"] = object("node", "n2", "epoch", "e", "claim", "c") },
		"offset a space": func(owners map[string]any) { owners[" "] = object("node", "n2", "epoch", "e", "claim", "c") },
	} {
		path, o := t.existing("addresschunks", func(o map[string]any) { edit(o["spec"].(map[string]any)["owners"].(map[string]any)) })
		_, err := t.send(t.token, http.MethodPut, path, o)
		Expect(err).To(MatchError(ContainSubstring("plumb-cluster-local")), what)
	}
	for _, item := range t.as(adminToken, http.MethodGet, resources+"segmentnodes", nil)["items"].([]any) {
		if spec := item.(map[string]any)["spec"].(map[string]any); spec["segment"] == t.segment && spec["node"] == "n1" {
			_, err := t.send(t.token, http.MethodPut, resources+"segmentnodes/"+item.(map[string]any)["metadata"].(map[string]any)["name"].(string), item)
			Expect(err).To(MatchError(ContainSubstring("a node can register only itself")))
		}
	}
	path, frozen := t.existing("segments", func(map[string]any) {})
	t.as(t.token, http.MethodPut, path, frozen)
	for what, edit := range map[string]func(spec map[string]any){
		"thaw": func(spec map[string]any) { delete(spec, "frozen") },
		"date": func(spec map[string]any) { spec["frozen"].(map[string]any)["since"] = "never" },
		"name": func(spec map[string]any) { spec["frozen"].(map[string]any)["by"] = "n1" },
	} {
		o := t.as(t.token, http.MethodGet, path, nil)
		spec := o["spec"].(map[string]any)
		spec["fence"] = spec["fence"].(float64) + 1
		edit(spec)
		_, err := t.send(t.token, http.MethodPut, path, o)
		Expect(err).To(MatchError(ContainSubstring("plumb-cluster-local")), what)
	}
	o := t.as(t.token, http.MethodGet, path, nil) // a freeze of the operator closes the chunks nevertheless
	spec := o["spec"].(map[string]any)
	spec["fence"], spec["frozen"].(map[string]any)["complete"] = spec["fence"].(float64)+1, true
	t.as(t.token, http.MethodPut, path, o)
	for _, method := range []string{http.MethodDelete, http.MethodPatch} {
		path, _ := t.existing("addresschunks", func(map[string]any) {})
		_, err := t.send(t.token, method, path, object())
		Expect(err).To(HaveOccurred(), method)
	}
	_, err := t.send(t.token, http.MethodDelete, resources+"addresschunks", nil) // all objects
	Expect(err).To(HaveOccurred())
}

// claimAll claims all free addresses for n1 and n3, and fails if one of them had an owner.
func (t *thief) claimAll(owners map[netip.Addr]datastore.Owner, n1 *caller) {
	GinkgoHelper()
	n3 := t.newCaller(t.segment, "n3", "10.7.0.1-10.7.0.100")
	n3.succeed(datastore.Register)
	given := map[netip.Addr]bool{}
	for a := range owners {
		given[a] = true
	}
	for i := 0; ; i++ {
		n := []*caller{n1, &n3}[i%2]
		answer := call(t.clients, n.request(datastore.Claim, want(7)))
		if answer.Error != nil {
			Expect(answer.Error.Reason).To(Equal(datastore.ReasonFull), answer.Error.Msg)
			break
		}
		Expect(answer.Warnings).To(BeEmpty())
		n.base.Store = answer.Store
		for a := range answer.Addresses {
			Expect(given).NotTo(HaveKey(a))
			given[a] = true
		}
	}
	Expect(given).To(HaveLen(100))
}

// describeNonsense describes what the datastore does with values that no datastore has written.
func describeNonsense(open func() *kubernetes) {
	// edit changes the objects of a segment as an operator, to whom the policy does not apply.
	edit := func(k *kubernetes, segment, plural string, change func(spec map[string]any)) {
		GinkgoHelper()
		for _, item := range k.as(adminToken, http.MethodGet, resources+plural, nil)["items"].([]any) {
			o := item.(map[string]any)
			if spec := o["spec"].(map[string]any); spec["segment"] == segment && (plural != "addresschunks" || spec["first"] == "10.7.0.0") {
				change(spec)
				k.as(adminToken, http.MethodPut, resources+plural+"/"+o["metadata"].(map[string]any)["name"].(string), o)
			}
		}
	}
	owner := func(key string, values ...any) func(map[string]any) {
		return func(spec map[string]any) {
			nested(spec, "owners")[key] = merge(object("node", "n2", "epoch", "e", "claim", "c"), values...)
		}
	}
	DescribeTable("continues as if it were taken, and reports it:", func(change func(map[string]any), lost int, text string) {
		k := open()
		segment := fmt.Sprint("nonsense", time.Now().UnixNano())
		n1, n2 := k.newCaller(segment, "n1", "10.7.0.0-10.7.0.127"), k.newCaller(segment, "n2", "10.7.0.0-10.7.0.127")
		n1.base.Store = n1.succeed(datastore.Register).Store
		n1.succeed(datastore.Claim, requested("10.7.0.5", "10.7.0.70"))
		edit(k, segment, "addresschunks", change)

		n2.succeed(datastore.Register)
		given := map[netip.Addr]bool{netip.MustParseAddr("10.7.0.5"): true, netip.MustParseAddr("10.7.0.70"): true}
		for {
			answer := call(k.clients, n2.request(datastore.Claim, want(64)))
			if answer.Error != nil {
				Expect(answer.Error.Reason).To(Equal(datastore.ReasonFull), answer.Error.Msg)
				break
			}
			for a := range answer.Addresses {
				Expect(given).NotTo(HaveKey(a))
				given[a] = true
			}
		}
		Expect(given).To(HaveLen(128 - lost))
		list := n2.succeed(datastore.List)
		Expect(list.Warnings).To(ContainElement(ContainSubstring(text)))
		Expect(n1.succeed(datastore.Register).Addresses).To(HaveKey(netip.MustParseAddr("10.7.0.70")))
		Expect(n1.succeed(datastore.Freeze).Warnings).To(ContainElement(ContainSubstring(text)))
		for _, chunk := range k.chunks(segment) {
			Expect(chunk["spec"]).To(HaveKeyWithValue("open", false))
		}
		n1.succeed(datastore.Thaw)
		remove := n1.succeed(datastore.RemoveNode, removed("n2"))
		Expect(len(remove.Addresses)).To(Equal(128 - lost - 2))
	},
		Entry("an owner without an address", owner("64"), 1, `owner "64"`),
		Entry("an offset with a zero", owner("070"), 1, `owner "070"`),
		Entry("an epoch with white space", owner("9", "node", "n4", "epoch", "a b"), 1, `epoch "a b"`),
		Entry("a node that controls a terminal", owner("9", "node", escape), 1, `node "\x1b[2J"`),
		Entry("another first address", func(spec map[string]any) { spec["first"] = "10.7.9.9" }, 63, `first address "10.7.9.9"`),
		Entry("no first address", func(spec map[string]any) { spec["first"] = "zzz" }, 63, `first address "zzz"`),
	)

	It("does not report a freeze as complete if it cannot close a chunk, and closes the others", func() {
		k := open()
		n1 := k.newCaller("unclosed", "n1", "10.7.0.0-10.7.0.127")
		n1.base.Store = n1.succeed(datastore.Register).Store
		n1.succeed(datastore.Claim, requested("10.7.0.5", "10.7.0.70"))
		edit(k, "unclosed", "addresschunks", func(spec map[string]any) { spec["fence"] = json.Number(fmt.Sprint(math.MaxInt64)) })
		freeze := requireError(k.clients, n1.request(datastore.Freeze), types.CodeInternal, datastore.ReasonInternal, "10-7-0-0.unclosed")
		Expect(freeze.Warnings).To(ContainElement(ContainSubstring("10-7-0-0.unclosed counts as full")))
		edit(k, "unclosed", "segments", func(spec map[string]any) {
			Expect(spec["frozen"]).To(And(HaveKey("since"), Not(HaveKey("complete"))))
		})
		for _, chunk := range k.chunks("unclosed") {
			spec := chunk["spec"].(map[string]any)
			Expect(spec["open"]).To(Equal(spec["first"] == "10.7.0.0"))
		}
	})

	It("takes the ID of the store from the Segment if a chunk contains another one", func() {
		k := open()
		n1 := k.newCaller("forged", "n1", "10.7.0.1-10.7.0.40")
		n1.base.Store = n1.succeed(datastore.Register).Store
		n1.base.Store = n1.succeed(datastore.Claim, want(2)).Store
		edit(k, "forged", "addresschunks", func(spec map[string]any) { spec["store"] = "another" })
		uid, _, _ := strings.Cut(n1.base.Store, ",")
		Expect(n1.succeed(datastore.Claim, want(2)).Store).To(HavePrefix(uid + ","))
		Expect(k.chunks("forged")[0]["spec"]).To(HaveKeyWithValue("store", uid))
		n1.base.Store = ""
		edit(k, "forged", "addresschunks", func(spec map[string]any) { spec["store"] = "another" })
		Expect(n1.succeed(datastore.Claim, want(2)).Store).To(HavePrefix(uid + ","))
	})
}
