package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/undo"
	"golang.org/x/sys/unix"
)

// A Handle names a qdisc ("1:") or a class ("1:30"), both parts hexadecimal, or one
// of the two places on a link where a qdisc is attached.
type Handle uint32

// The places on a link: where it sends, and where it receives.
const (
	Root    Handle = 0xFFFFFFFF // TC_H_ROOT
	Ingress Handle = 0xFFFFFFF1 // TC_H_INGRESS
)

// IngressHandle is the handle of an ingress qdisc; the kernel gives it no other.
const IngressHandle Handle = 0xFFFF0000

// Class is the class with that minor number of the qdisc with handle h.
func (h Handle) Class(minor uint16) Handle { return h&0xFFFF0000 | Handle(minor) }

func (h Handle) String() string {
	switch {
	case h == Root:
		return "root"
	case h == Ingress:
		return "ingress"
	case h&0xFFFF == 0:
		return fmt.Sprintf("%x:", uint32(h>>16))
	}
	return fmt.Sprintf("%x:%x", uint32(h>>16), uint32(h&0xFFFF))
}

// A Qdisc is a queueing discipline on a link: Kind, and what only that kind has. It
// compares with ==.
type Qdisc struct {
	Kind   string // "tbf", "htb", "bfifo", "ingress"; empty: none, or the kernel's default
	Handle Handle
	Parent Handle // Root, Ingress or a class
	TBF    TBF
	HTB    HTB
	Limit  uint32 // of a bfifo, in bytes
}

// TBF is a token bucket filter, tc-tbf(8).
type TBF struct {
	Rate   uint64 // bytes a second
	Buffer uint32 // the burst, as the time that it takes at the rate, in ticks
	Limit  uint32 // bytes that may wait
}

// TickNanoseconds is a tick of the kernel's schedulers (PSCHED_SHIFT, since kernel
// 2.6.31; /proc/net/psched tells it).
const TickNanoseconds = 64

// HTB is a hierarchical token bucket, tc-htb(8).
type HTB struct {
	Default uint16 // minor of the class of what no filter matches; zero: none, sent at once
	Direct  uint32 // packets that may wait outside any class
}

// A Class is a class of an HTB; its ceiling is its rate. It compares with ==.
type Class struct {
	ID      Handle
	Parent  Handle
	Rate    uint64 // bytes a second
	Buffer  uint32 // as TBF.Buffer
	Quantum uint32 // bytes a round
}

// A Filter is a u32 filter, tc-u32(8). It matches what matches all its keys; no keys:
// everything.
type Filter struct {
	Parent   Handle // the qdisc's
	Priority uint16 // one a protocol
	Protocol uint16 // ProtocolAll, …
	Class    Handle
	Keys     []Key
	Redirect int // index of the link that sends what matches, instead; zero: none
}

// Protocols of filters: the EtherTypes, and any.
const (
	ProtocolAll  = unix.ETH_P_ALL
	ProtocolIPv4 = unix.ETH_P_IP
	ProtocolIPv6 = unix.ETH_P_IPV6
)

// Same compares filters.
func (f Filter) Same(g Filter) bool {
	return f.Parent == g.Parent && f.Priority == g.Priority && f.Protocol == g.Protocol && f.Class == g.Class &&
		f.Redirect == g.Redirect && slices.Equal(f.Keys, g.Keys)
}

func (f Filter) String() string {
	s := fmt.Sprintf("filter parent %s pref %d protocol %#04x flowid %s", f.Parent, f.Priority, f.Protocol, f.Class)
	for _, k := range f.Keys {
		s += fmt.Sprintf(" match %08x/%08x at %d", k.Value, k.Mask, k.Offset)
	}
	return s
}

// A Key matches 32 bits of a packet, counted from its network header.
type Key struct {
	Value, Mask uint32
	Offset      int32
}

// Attributes of linux/pkt_sched.h and linux/pkt_cls.h.
const (
	tbfParms      = 1
	tbfRate64     = 4
	htbParms      = 1
	htbInit       = 2
	htbDirectQLen = 5
	htbRate64     = 6
	htbCeil64     = 7
	u32ClassID    = 1
	u32Sel        = 5
	u32Act        = 7
	actKind       = 1
	actOptions    = 2
	mirredParms   = 2

	sizeofTcmsg  = 20
	sizeofU32Sel = 16 // struct tc_u32_sel
	sizeofU32Key = 16
	sizeofMirred = 28 // struct tc_mirred

	htbVersion     = 3
	rateToQuantum  = 10
	u32Terminal    = 1
	actStolen      = 4
	redirectEgress = 1 // TCA_EGRESS_REDIR
	etherLayer     = 1 // TC_LINKLAYER_ETHERNET
)

// tcHeader is struct tcmsg.
func tcHeader(index int, handle, parent Handle, info uint32) []byte {
	b := make([]byte, sizeofTcmsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], uint32(handle))
	binary.NativeEndian.PutUint32(b[12:], uint32(parent))
	binary.NativeEndian.PutUint32(b[16:], info)
	return b
}

// rateSpec is struct tc_ratespec. A rate that 32 bits cannot hold goes into an
// attribute of its own as well.
func rateSpec(rate uint64, layer byte) []byte {
	b := make([]byte, 12)
	b[1] = layer
	binary.NativeEndian.PutUint32(b[8:], uint32(min(rate, 1<<32-1)))
	return b
}

func u32s(numbers ...uint32) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.NativeEndian.AppendUint32(b, n)
	}
	return b
}

// AddQdisc attaches a qdisc, and pushes its removal. The error matches fs.ErrExist
// when the place is taken.
func (c *Conn) AddQdisc(u *undo.Stack, l Link, q Qdisc) error {
	step := fmt.Sprintf("add qdisc %s %s to %s %s", q.Kind, q.Handle, l.Name, q.Parent)
	body, err := linkBody(tcHeader(l.Index, q.Handle, q.Parent, 0), func(ae *netlink.Encoder) {
		ae.String(unix.TCA_KIND, q.Kind)
		q.options(ae)
	})
	err = c.Apply(change(step, unix.RTM_NEWQDISC, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_EXCL))
	var refused *Error
	if err == nil || errors.As(err, &refused) && !refused.Refused { // not known to have been refused: it may be there
		u.Push("delete qdisc "+q.Kind+" of "+l.Name, func() error { return c.DelQdisc(l, q) })
	}
	return err
}

func (q Qdisc) options(ae *netlink.Encoder) {
	switch q.Kind {
	case "tbf":
		ae.Nested(unix.TCA_OPTIONS, q.TBF.encode)
	case "htb":
		ae.Nested(unix.TCA_OPTIONS, func(ae *netlink.Encoder) {
			ae.Bytes(htbInit, u32s(htbVersion, rateToQuantum, uint32(q.HTB.Default), 0, 0))
			ae.Uint32(htbDirectQLen, q.HTB.Direct)
		})
	case "bfifo":
		ae.Bytes(unix.TCA_OPTIONS, u32s(q.Limit))
	}
}

// encode writes the rate without a link layer: with one the kernel would count cells
// of ATM or want a rate table.
func (t TBF) encode(ae *netlink.Encoder) {
	ae.Bytes(tbfParms, slices.Concat(rateSpec(t.Rate, 0), rateSpec(0, 0), u32s(t.Limit, t.Buffer, 0)))
	if t.Rate >= 1<<32 {
		ae.Uint64(tbfRate64, t.Rate)
	}
}

// DelQdisc removes the qdisc if one of its kind and handle is where it says.
func (c *Conn) DelQdisc(l Link, q Qdisc) error {
	have, err := c.Qdisc(l, q.Parent)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (have.Kind != q.Kind || have.Handle != q.Handle) {
		return nil
	}
	if err != nil {
		return err
	}
	step := fmt.Sprintf("delete qdisc %s %s of %s", q.Kind, q.Handle, l.Name)
	body := tcHeader(l.Index, q.Handle, q.Parent, 0)
	return c.Apply(change(step, unix.RTM_DELQDISC, body, nil).IfPresent())
}

// Qdisc gives what is attached to a place of the link; the zero Qdisc: nothing. The
// error matches fs.ErrNotExist when there is no such link.
func (c *Conn) Qdisc(l Link, parent Handle) (Qdisc, error) {
	step := fmt.Sprintf("find qdisc of %s %s", l.Name, parent)
	// Older kernels answer only who asks for an echo. Where there is no more than a
	// default of the kernel, the acknowledgement may be all that comes.
	echoes, err := c.applyEcho(change(step, unix.RTM_GETQDISC, tcHeader(l.Index, 0, parent, 0), nil))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // EINVAL: the same, at the root of a link that is down
		return Qdisc{}, nil
	}
	for _, m := range echoes {
		if m.Kind == unix.RTM_NEWQDISC {
			q, err := decodeQdisc(m.Body)
			return q, wrap(step, err)
		}
	}
	return Qdisc{}, err
}

// decodeQdisc reads an RTM_NEWQDISC. A default of the kernel has no handle.
func decodeQdisc(b []byte) (Qdisc, error) {
	header, ad, err := decodeTC(b)
	if err != nil || header.handle == 0 {
		return Qdisc{}, err
	}
	q := Qdisc{Handle: header.handle, Parent: header.parent}
	for ad.Next() {
		switch ad.Kind() {
		case unix.TCA_KIND:
			q.Kind = ad.String()
		case unix.TCA_OPTIONS:
			q.decodeOptions(ad)
		}
	}
	return q, ad.Err()
}

func (q *Qdisc) decodeOptions(ad *netlink.Decoder) {
	switch q.Kind {
	case "tbf":
		ad.Nested(q.TBF.decode)
	case "htb":
		ad.Nested(q.HTB.decode)
	case "bfifo":
		q.Limit = word(ad.Bytes(), 0)
	}
}

func (t *TBF) decode(ad *netlink.Decoder) {
	var wide uint64
	for ad.Next() {
		switch ad.Kind() {
		case tbfParms:
			b := ad.Bytes()
			t.Rate, t.Limit, t.Buffer = uint64(word(b, 8)), word(b, 24), word(b, 28)
		case tbfRate64:
			wide = ad.Uint64()
		}
	}
	t.Rate = max(t.Rate, wide)
}

func (h *HTB) decode(ad *netlink.Decoder) {
	for ad.Next() {
		switch ad.Kind() {
		case htbInit:
			h.Default = uint16(word(ad.Bytes(), 8))
		case htbDirectQLen:
			h.Direct = ad.Uint32()
		}
	}
}

// word is the 32-bit number at an offset; zero where b is too short.
func word(b []byte, offset int) uint32 {
	if len(b) < offset+4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b[offset:])
}

type tcmsg struct {
	index          int
	handle, parent Handle
	info           uint32
}

func decodeTC(b []byte) (tcmsg, *netlink.Decoder, error) {
	if len(b) < sizeofTcmsg {
		return tcmsg{}, nil, fmt.Errorf("traffic control message of %d bytes", len(b))
	}
	return tcmsg{
		index:  int(int32(word(b, 4))),
		handle: Handle(word(b, 8)),
		parent: Handle(word(b, 12)),
		info:   word(b, 16),
	}, netlink.Decode(b[sizeofTcmsg:], binary.NativeEndian), nil
}

// AddClass adds a class to an HTB; it goes with it.
func (l Link) AddClass(cl Class) Change {
	body, err := linkBody(tcHeader(l.Index, cl.ID, cl.Parent, 0), func(ae *netlink.Encoder) {
		ae.String(unix.TCA_KIND, "htb")
		ae.Nested(unix.TCA_OPTIONS, func(ae *netlink.Encoder) {
			rate := rateSpec(cl.Rate, etherLayer)
			ae.Bytes(htbParms, slices.Concat(rate, rate, u32s(cl.Buffer, cl.Buffer, cl.Quantum, 0, 0)))
			if cl.Rate >= 1<<32 {
				ae.Uint64(htbRate64, cl.Rate)
				ae.Uint64(htbCeil64, cl.Rate)
			}
		})
	})
	return change(fmt.Sprintf("add class %s to %s", cl.ID, l.Name), unix.RTM_NEWTCLASS, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
}

// Classes lists the classes of the link's HTB.
func (c *Conn) Classes(l Link) ([]Class, error) {
	step := "list classes of " + l.Name
	msgs, err := c.dump(step, unix.RTM_GETTCLASS, tcHeader(l.Index, 0, 0, 0))
	if err != nil {
		return nil, err
	}
	var classes []Class
	for _, m := range msgs {
		header, ad, err := decodeTC(m.Body)
		if err != nil {
			return nil, wrap(step, err)
		}
		if header.index != l.Index {
			continue
		}
		cl := Class{ID: header.handle, Parent: header.parent}
		kind := ""
		for ad.Next() {
			switch {
			case ad.Kind() == unix.TCA_KIND:
				kind = ad.String()
			case ad.Kind() == unix.TCA_OPTIONS && kind == "htb":
				ad.Nested(cl.decode)
			}
		}
		if err := ad.Err(); err != nil {
			return nil, wrap(step, err)
		}
		if kind == "htb" {
			classes = append(classes, cl)
		}
	}
	return classes, nil
}

func (cl *Class) decode(ad *netlink.Decoder) {
	var wide uint64
	for ad.Next() {
		switch ad.Kind() {
		case htbParms:
			b := ad.Bytes()
			cl.Rate, cl.Buffer, cl.Quantum = uint64(word(b, 8)), word(b, 24), word(b, 32)
		case htbRate64:
			wide = ad.Uint64()
		}
	}
	cl.Rate = max(cl.Rate, wide)
}

// AddFilter adds a filter to a qdisc; it goes with it.
func (l Link) AddFilter(f Filter) Change {
	info := uint32(f.Priority)<<16 | uint32(network16(f.Protocol))
	body, err := linkBody(tcHeader(l.Index, 0, f.Parent, info), func(ae *netlink.Encoder) {
		ae.String(unix.TCA_KIND, "u32")
		ae.Nested(unix.TCA_OPTIONS, func(ae *netlink.Encoder) {
			ae.Uint32(u32ClassID, uint32(f.Class))
			ae.Bytes(u32Sel, f.selector())
			if f.Redirect != 0 {
				ae.Nested(u32Act, func(ae *netlink.Encoder) { ae.Nested(1, f.action) })
			}
		})
	})
	return change("add "+f.String()+" to "+l.Name, unix.RTM_NEWTFILTER, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
}

// selector is struct tc_u32_sel with its keys. A filter without keys has the key
// that matches anything, as tc and the reference plugins write it.
func (f Filter) selector() []byte {
	keys := f.Keys
	if len(keys) == 0 {
		keys = []Key{{}}
	}
	b := make([]byte, sizeofU32Sel, sizeofU32Sel+len(keys)*sizeofU32Key)
	b[0], b[2] = u32Terminal, byte(len(keys))
	for _, k := range keys {
		b = binary.BigEndian.AppendUint32(b, k.Mask)
		b = binary.BigEndian.AppendUint32(b, k.Value)
		b = binary.NativeEndian.AppendUint32(b, uint32(k.Offset))
		b = append(b, 0, 0, 0, 0)
	}
	return b
}

func (f Filter) action(ae *netlink.Encoder) {
	ae.String(actKind, "mirred")
	ae.Nested(actOptions, func(ae *netlink.Encoder) {
		ae.Bytes(mirredParms, u32s(0, 0, actStolen, 0, 0, redirectEgress, uint32(f.Redirect)))
	})
}

// network16 is n with its bytes in the order of the network, as a number.
func network16(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// Filters lists the u32 filters of a qdisc of the link.
func (c *Conn) Filters(l Link, parent Handle) ([]Filter, error) {
	step := fmt.Sprintf("list filters of %s %s", l.Name, parent)
	msgs, err := c.dump(step, unix.RTM_GETTFILTER, tcHeader(l.Index, 0, parent, 0))
	if err != nil {
		return nil, err
	}
	var filters []Filter
	for _, m := range msgs {
		header, ad, err := decodeTC(m.Body)
		if err != nil {
			return nil, wrap(step, err)
		}
		f := Filter{Parent: header.parent, Priority: uint16(header.info >> 16), Protocol: network16(uint16(header.info))}
		kind, selects := "", false
		for ad.Next() {
			switch {
			case ad.Kind() == unix.TCA_KIND:
				kind = ad.String()
			case ad.Kind() == unix.TCA_OPTIONS && kind == "u32":
				ad.Nested(func(ad *netlink.Decoder) { selects = f.decode(ad) })
			}
		}
		if err := ad.Err(); err != nil {
			return nil, wrap(step, err)
		}
		if selects { // the others are the tables that the kernel keeps filters in
			filters = append(filters, f)
		}
	}
	return filters, nil
}

// decode reads the options of a u32 filter, and says whether they select anything.
func (f *Filter) decode(ad *netlink.Decoder) (selects bool) {
	for ad.Next() {
		switch ad.Kind() {
		case u32ClassID:
			f.Class = Handle(ad.Uint32())
		case u32Sel:
			f.Keys, selects = decodeKeys(ad.Bytes()), true
		case u32Act:
			ad.Nested(f.decodeActions)
		}
	}
	return selects
}

func decodeKeys(b []byte) []Key {
	var keys []Key
	for at := sizeofU32Sel; at+sizeofU32Key <= len(b); at += sizeofU32Key {
		k := Key{
			Mask:   binary.BigEndian.Uint32(b[at:]),
			Value:  binary.BigEndian.Uint32(b[at+4:]),
			Offset: int32(word(b, at+8)),
		}
		if k != (Key{}) {
			keys = append(keys, k)
		}
	}
	return keys
}

// decodeActions finds the first redirection; what stands after it is never reached.
func (f *Filter) decodeActions(ad *netlink.Decoder) {
	for ad.Next() {
		kind := ""
		ad.Nested(func(ad *netlink.Decoder) {
			for ad.Next() {
				switch {
				case ad.Kind() == actKind:
					kind = ad.String()
				case ad.Kind() == actOptions && kind == "mirred" && f.Redirect == 0:
					ad.Nested(f.decodeMirred)
				}
			}
		})
	}
}

func (f *Filter) decodeMirred(ad *netlink.Decoder) {
	for ad.Next() {
		if b := ad.Bytes(); ad.Kind() == mirredParms && word(b, 20) == redirectEgress {
			f.Redirect = int(int32(word(b, sizeofMirred-4)))
		}
	}
}
