package types

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// ParsePrevResult decodes the result of an earlier plugin of the chain. Marshal prints the unchanged parts verbatim,
// including keys and values that plumb does not know, because the earlier plugin may read them in its DEL.
// ParsePrevResult accepts two kinds of values that ParseResult rejects, because a chained plugin does not need them. An
// IP whose interface index is not in the list gets NoInterface, and Routes lacks invalid routes.
func ParsePrevResult(v Version, data []byte) (*Result, error) {
	r, _, err := parse(v, data, (*Result).checkPrev)
	if err != nil {
		return nil, err
	}
	r.prev = data
	return r, nil
}

// checkPrev normalizes the IPs and routes for ParsePrevResult.
func (r *Result) checkPrev() error {
	for i := range r.IPs {
		ip := &r.IPs[i]
		if err := ip.normalize(); err != nil {
			return err
		}
		if ip.Interface < 0 || ip.Interface >= len(r.Interfaces) {
			ip.Interface = NoInterface
		}
	}
	all := r.Routes
	r.Routes = nil
	for _, route := range all {
		if route.Normalize() == nil {
			r.Routes = append(r.Routes, route)
		}
	}
	return nil
}

// mergeIntoPrev returns the prevResult from which r was decoded, in the form of version v, with the changes to r. after
// is r in that form. A conversion between 0.2.0 and 0.3.0 drops unknown keys.
func (r *Result) mergeIntoPrev(v Version, after []byte) ([]byte, error) {
	original, own, err := parse(v, r.prev, (*Result).checkPrev)
	if err != nil {
		return nil, err
	}
	before, _ := original.Marshal(own) // nil if the version cannot express original, so that everything counts as a change
	all, ok := decodeAll[object](r.prev, before, after)
	switch {
	case !ok, all[0] == nil, (own <= V020) != (v <= V020): // an unknown key of one form can be known in the other
		return after, nil
	case bytes.Equal(before, after) && bytes.Equal(all[0]["cniVersion"], all[2]["cniVersion"]):
		return encode(json.RawMessage(r.prev)) // the keys stay in their order
	}
	delete(all[1], "cniVersion") // a prevResult may lack it, a result must have it
	return encode(mergeObjects(all[0], all[1], all[2]))
}

type (
	object map[string]json.RawMessage
	list   []json.RawMessage
)

// merge returns received with the differences between before and after applied. before is received without what a
// Result cannot express. merge returns after if received is null, or of another type than after.
func merge(received, before, after json.RawMessage) json.RawMessage {
	var merged any
	if o, ok := decodeAll[object](received, before, after); ok && o[0] != nil {
		merged = mergeObjects(o[0], o[1], o[2])
	} else if l, ok := decodeAll[list](received, before, after); ok {
		merged = mergeLists(l[0], l[1], l[2])
	} else {
		return after
	}
	text, _ := json.Marshal(merged) // JSON texts can be encoded
	return text
}

// decodeAll decodes texts. An empty text becomes nil. ok is false if the type of a text is not T.
func decodeAll[T any](texts ...json.RawMessage) (all [3]T, ok bool) {
	for i, text := range texts {
		if len(text) > 0 && json.Unmarshal(text, &all[i]) != nil {
			return all, false
		}
	}
	return all, true
}

func mergeObjects(received, before, after object) object {
	for key := range before {
		if after[key] == nil {
			delete(received, received.match(key))
		}
	}
	for key, value := range after {
		if !bytes.Equal(before[key], value) {
			own := received.match(key)
			received[own] = merge(received[own], before[key], value)
		}
	}
	return received
}

// match returns the key of o that equals key without regard to case, as in package json, or else key itself.
func (o object) match(key string) string {
	if o[key] != nil {
		return key
	}
	for k := range o {
		if strings.EqualFold(k, key) {
			return k
		}
	}
	return key
}

// mergeLists merges item by item. If before lacks items of received, mergeLists appends the items by which after is
// longer than before, or returns after if other items differ.
func mergeLists(received, before, after list) list {
	n := len(before)
	switch {
	case n > len(after), n != len(received) && !slices.EqualFunc(before, after[:n], func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }):
		return after
	case n == len(received):
		for i := range before {
			if !bytes.Equal(before[i], after[i]) {
				received[i] = merge(received[i], before[i], after[i])
			}
		}
	}
	return append(received, after[n:]...)
}
