package server

import (
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

func TestCheckStoreNamesTheStoreThatTheNodeHasSeen(t *testing.T) {
	for _, tc := range []struct{ store, want string }{
		{"", "want etcd at revision 7 or later, as node a has seen it, got revision 3 and ID \"e1\": "},
		{"e0", "want etcd at revision 7 or later with the ID \"e0\", as node a has seen it, got revision 3 and ID \"e1\": "},
	} {
		r := &Request{Request: datastore.Request{Node: "a", LastRevision: 7, Store: tc.store}}
		if err := r.CheckStore("etcd", 3, "e1"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("store %q: want an error with %q, got %v", tc.store, tc.want, err)
		}
	}
}
