package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

// openWithElements returns a connection into a new namespace that contains a table with n elements,
// the table, and references to the elements.
func openWithElements(t *testing.T, n int) (*Conn, Table, []ElementRef) {
	t.Helper()
	c, err := Open(nstest.NewHost(t).Open(t, nil))
	nstest.Must(t, err)
	l := Layout{Table: Table{Inet, "t"}, Sets: []Set{{Name: "addresses", Key: []Type{IPv4Addr}}}}
	var tx Tx
	tx.createTable(l.Table)
	tx.EnsureSet(l.Table, l.Sets[0])
	var refs []ElementRef
	for i := range n {
		ref := ElementRef{"addresses", AddrKey(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))}
		tx.AddElement(l.Table, ref.Set, Element{Key: ref.Key, Comment: "c"})
		refs = append(refs, ref)
	}
	nstest.Must(t, c.Commit("create the table", &tx))
	return c, l.Table, refs
}

func requireFound(t *testing.T, c *Conn, table Table, refs []ElementRef) {
	t.Helper()
	elements, err := c.Lookup(table, refs)
	if err != nil {
		t.Fatalf("look up %d elements: %v", len(refs), err)
	}
	for i, e := range elements {
		if e.Key != refs[i].Key || e.Comment != "c" {
			t.Errorf("element %d is %+v, want key %q", i, e, refs[i].Key)
		}
	}
}

func TestLookupIgnoresAnswersToEarlierRequests(t *testing.T) {
	c, table, refs := openWithElements(t, 40)
	missing, err := ElementRef{"missing", refs[0].Key}.encode(table)
	nstest.Must(t, err)
	existing, err := refs[7].encode(table)
	nstest.Must(t, err)
	for _, attributes := range [][]byte{missing, existing} {
		if _, err := c.socket.Send(newRequest(table, netlink.Header{Type: unix.NFT_MSG_GETSETELEM}, attributes)); err != nil {
			t.Fatal(err)
		}
	}
	requireFound(t, c, table, refs)
}

// The kernel has queued all answers when the system call that sends the requests returns.
func TestReceiveReturnsAnErrorWhenAnAnswerIsLost(t *testing.T) {
	c, _, _ := openWithElements(t, 0)
	if err := c.socket.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil { // of a receive that waits
		t.Fatal(err)
	}
	err := c.receive(func(netlink.Message, error) (bool, error) { return true, nil })
	if !errors.Is(err, errNoAnswer) {
		t.Fatalf("receive returned %v, want %v", err, errNoAnswer)
	}
}

func TestLookupFailsWhenTheReceiveBufferIsFullAndTheNextOneSucceeds(t *testing.T) {
	c, table, refs := openWithElements(t, 40)
	if err := c.socket.SetReadBuffer(1); err != nil { // the kernel raises it to its minimum
		t.Fatal(err)
	}
	if _, err := c.Lookup(table, refs); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("Lookup returned %v, want %v", err, unix.ENOBUFS)
	}
	requireFound(t, c, table, refs)
}

func TestRefusal(t *testing.T) {
	for name, tc := range map[string]struct {
		answer netlink.Message
		want   string
	}{
		"data":            {netlink.Message{Data: []byte{1, 2, 3, 4}}, "<nil>"},
		"acknowledgement": {netlink.Message{Header: netlink.Header{Type: netlink.Error}, Data: make([]byte, 4)}, "<nil>"},
		"error number":    {netlink.Message{Header: netlink.Header{Type: netlink.Error}, Data: binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1)}, unix.ENOENT.Error()},
		"too short":       {netlink.Message{Header: netlink.Header{Type: netlink.Error}, Data: []byte{1}}, "the kernel's error message has no error number"},
	} {
		if got := fmt.Sprint(refusal(tc.answer)); got != tc.want {
			t.Errorf("%s: refusal returned %s, want %s", name, got, tc.want)
		}
	}
}
