package life

import (
	"strings"
	"testing"
)

// TestJudge checks the verdict for each fact, and the order of the facts.
func TestJudge(t *testing.T) {
	dead, all := List{IDs: map[string]bool{"other": true}}, List{IDs: map[string]bool{"c": true}}
	for _, tc := range []struct {
		why    string
		facts  Facts
		list   List
		want   Life
		reason string
	}{
		{"the list contains it", Facts{Namespace: Gone}, all, Alive, ""},
		{"nerdctl passes its namespace with the ID", Facts{ContainerID: "default-" + strings.Repeat("ab", 32)},
			List{IDs: map[string]bool{strings.Repeat("ab", 32): true}}, Alive, ""},
		{"a process runs, although the list lacks it", Facts{Process: 7}, dead, Alive, "process 7 runs"},
		{"no list, and the namespace exists", Facts{Namespace: Exists, NetNS: "/n"}, List{}, Alive, ""},
		{"no list, a result, and an unknown namespace", Facts{HasResult: true}, List{}, Alive, ""},
		{"a list, and the namespace exists", Facts{Namespace: Exists, NetNS: "/n"}, dead, Suspect, "/n still exists"},
		{"the host end exists", Facts{HostEnd: "veth1"}, dead, Suspect, "veth1 still exists"},
		{"the host end exists, but the operator named the container", Facts{HostEnd: "veth1"}, List{Dead: map[string]bool{"c": true}}, Dead, "not in the list"},
		{"only an interface names it", Facts{Named: 8}, dead, Suspect, "process 8 may run"},
		{"the runtime lacks it", Facts{Network: "n"}, List{IDs: map[string]bool{"other": true}, RuntimeNetworks: map[string]bool{"n": true}}, Suspect, "the runtime does not list"},
		{"the runtime lacks it, and its namespace is gone", Facts{Network: "n", Namespace: Gone},
			List{IDs: map[string]bool{"other": true}, RuntimeNetworks: map[string]bool{"n": true}}, Dead, "not in the list"},
		{"no list, and another process has the PID", Facts{Namespace: Reused, Path: "/proc/7/ns/net"}, List{}, Suspect, "/proc/7/ns/net started after"},
		{"no list, and the namespace is gone", Facts{Namespace: Gone, Path: "/n", HasResult: true}, List{}, Dead, "/n does not exist"},
		{"no list and no result", Facts{}, List{}, Suspect, "no result"},
	} {
		if tc.facts.ContainerID == "" {
			tc.facts.ContainerID = "c"
		}
		if got, reason := Judge(tc.facts, tc.list); got != tc.want || !strings.Contains(reason, tc.reason) || (reason == "") != (tc.reason == "") {
			t.Errorf("%s: want %s (%s), got %s (%s)", tc.why, tc.want, tc.reason, got, reason)
		}
	}
}
