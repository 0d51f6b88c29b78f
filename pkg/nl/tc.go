package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
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

// AddQdisc attaches a qdisc, and pushes its removal. The error matches fs.ErrExist
// when the place is taken.
func (c *Conn) AddQdisc(u *undo.Stack, l Link, q Qdisc) error {
	step := fmt.Sprintf("add qdisc %s %s to %s %s", q.Kind, q.Handle, l.Name, q.Parent)
	err := c.step(step, func() error { return c.addQdisc(l, q) })
	var failed *Error
	if err == nil || errors.As(err, &failed) && !failed.Refused { // not known to have been refused: it may be there
		u.Push("delete qdisc "+q.Kind+" of "+l.Name, func() error { return c.DelQdisc(l, q) })
	}
	return err
}

func (c *Conn) addQdisc(l Link, q Qdisc) error {
	attrs := q.attrs(l)
	switch q.Kind {
	case "tbf":
		return c.lib.QdiscAdd(&netlink.Tbf{QdiscAttrs: attrs, Rate: q.TBF.Rate, Buffer: q.TBF.Buffer, Limit: q.TBF.Limit})
	case "htb":
		htb := netlink.NewHtb(attrs)
		htb.Defcls, htb.DirectQlen = uint32(q.HTB.Default), &q.HTB.Direct
		return c.lib.QdiscAdd(htb)
	case "ingress":
		return c.lib.QdiscAdd(&netlink.Ingress{QdiscAttrs: attrs})
	}
	_, err := c.execute(bfifoAdd(l, q), 0)
	return err
}

func (q Qdisc) attrs(l Link) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: l.Index, Handle: uint32(q.Handle), Parent: uint32(q.Parent)}
}

// bfifoAdd is a request for a bfifo, which the library does not know.
func bfifoAdd(l Link, q Qdisc) *rawnl.NetlinkRequest {
	req := tcRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, q.attrs(l))
	req.AddData(rawnl.NewRtAttr(unix.TCA_KIND, rawnl.ZeroTerminated("bfifo")))
	req.AddData(rawnl.NewRtAttr(unix.TCA_OPTIONS, rawnl.Uint32Attr(q.Limit))) // struct tc_fifo_qopt
	return req
}

func tcRequest(kind, flags int, at netlink.QdiscAttrs) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(kind, flags)
	req.AddData(&rawnl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(at.LinkIndex), Handle: at.Handle, Parent: at.Parent})
	return req
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
	return c.Apply(change(fmt.Sprintf("delete qdisc %s %s of %s", q.Kind, q.Handle, l.Name), func(c *Conn) error {
		return c.lib.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: q.attrs(l)})
	}).IfPresent())
}

// Qdisc returns what is attached to a place of the link; the zero Qdisc: nothing. The
// error matches fs.ErrNotExist when there is no such link.
func (c *Conn) Qdisc(l Link, parent Handle) (Qdisc, error) {
	return query(c, fmt.Sprintf("find qdisc of %s %s", l.Name, parent), func() (Qdisc, error) {
		msgs, err := c.execute(qdiscAt(l, parent), unix.RTM_NEWQDISC)
		// EINVAL means the same as ENOENT, at the root of a link that is down.
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || err == nil && len(msgs) == 0 {
			return Qdisc{}, nil
		}
		if err != nil {
			return Qdisc{}, err
		}
		return decodeQdisc(msgs[0])
	})
}

// qdiscAt is a request for the qdisc at one place of a link. The library's QdiscList
// lists those of all links of the namespace. An older kernel answers only a request for
// an echo. Where there is no more than a default of the kernel, the acknowledgement may
// be all that comes.
func qdiscAt(l Link, parent Handle) *rawnl.NetlinkRequest {
	at := netlink.QdiscAttrs{LinkIndex: l.Index, Parent: uint32(parent)}
	return tcRequest(unix.RTM_GETQDISC, unix.NLM_F_ACK|unix.NLM_F_ECHO, at)
}

// decodeQdisc reads an RTM_NEWQDISC. A default of the kernel has no handle.
func decodeQdisc(m []byte) (Qdisc, error) {
	msg := rawnl.DeserializeTcMsg(m)
	attrs, err := attributes(m[msg.Len():])
	if err != nil || msg.Handle == 0 {
		return Qdisc{}, err
	}
	q := Qdisc{Kind: unix.ByteSliceToString(attrs[unix.TCA_KIND]), Handle: Handle(msg.Handle), Parent: Handle(msg.Parent)}
	value := attrs[unix.TCA_OPTIONS]
	if q.Kind == "bfifo" && len(value) >= 4 {
		q.Limit = rawnl.NativeEndian().Uint32(value)
	}
	if q.Kind != "tbf" && q.Kind != "htb" {
		return q, nil
	}
	options, err := attributes(value)
	if parms := options[rawnl.TCA_TBF_PARMS]; q.Kind == "tbf" && len(parms) >= rawnl.SizeofTcTbfQopt {
		opt := rawnl.DeserializeTcTbfQopt(parms)
		q.TBF = TBF{Rate: uint64(opt.Rate.Rate), Buffer: opt.Buffer, Limit: opt.Limit}
		if wide := options[rawnl.TCA_TBF_RATE64]; len(wide) == 8 {
			q.TBF.Rate = rawnl.NativeEndian().Uint64(wide)
		}
	}
	if glob := options[rawnl.TCA_HTB_INIT]; q.Kind == "htb" && len(glob) >= rawnl.SizeofTcHtbGlob {
		q.HTB.Default = uint16(rawnl.DeserializeTcHtbGlob(glob).Defcls)
	}
	if direct := options[rawnl.TCA_HTB_DIRECT_QLEN]; q.Kind == "htb" && len(direct) == 4 {
		q.HTB.Direct = rawnl.NativeEndian().Uint32(direct)
	}
	return q, err
}

// AddClass adds a class to an HTB; it goes with it.
func (l Link) AddClass(cl Class) Change {
	return change(fmt.Sprintf("add class %s to %s", cl.ID, l.Name), func(c *Conn) error {
		_, err := c.execute(classAdd(l, cl), 0)
		return err
	})
}

// classAdd is a request for a class of an HTB. The library's ClassAdd sends the low 32
// bits of a rate beside the whole, and the kernel refuses zero there.
func classAdd(l Link, cl Class) *rawnl.NetlinkRequest {
	at := netlink.QdiscAttrs{LinkIndex: l.Index, Handle: uint32(cl.ID), Parent: uint32(cl.Parent)}
	req := tcRequest(unix.RTM_NEWTCLASS, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, at)
	req.AddData(rawnl.NewRtAttr(unix.TCA_KIND, rawnl.ZeroTerminated("htb")))
	rate := rawnl.TcRateSpec{Linklayer: rawnl.LINKLAYER_ETHERNET, Rate: uint32(min(cl.Rate, math.MaxUint32))}
	parms := &rawnl.TcHtbCopt{Rate: rate, Ceil: rate, Buffer: cl.Buffer, Cbuffer: cl.Buffer, Quantum: cl.Quantum}
	options := rawnl.NewRtAttr(unix.TCA_OPTIONS, nil)
	options.AddRtAttr(rawnl.TCA_HTB_PARMS, parms.Serialize())
	if cl.Rate > math.MaxUint32 {
		options.AddRtAttr(rawnl.TCA_HTB_RATE64, rawnl.Uint64Attr(cl.Rate))
		options.AddRtAttr(rawnl.TCA_HTB_CEIL64, rawnl.Uint64Attr(cl.Rate))
	}
	req.AddData(options)
	return req
}

// Classes lists the classes of the link's HTB.
func (c *Conn) Classes(l Link) ([]Class, error) {
	return query(c, "list classes of "+l.Name, func() (classes []Class, err error) {
		list, err := c.lib.ClassList(l.device(), 0)
		for _, found := range list {
			if htb, ok := found.(*netlink.HtbClass); ok {
				classes = append(classes, Class{
					ID: Handle(htb.Handle), Parent: Handle(htb.Parent), Rate: htb.Rate, Buffer: htb.Buffer, Quantum: htb.Quantum,
				})
			}
		}
		return classes, err
	})
}

// AddFilter adds a filter to a qdisc; it goes with it.
func (l Link) AddFilter(f Filter) Change {
	u32 := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Index, Parent: uint32(f.Parent), Priority: f.Priority, Protocol: f.Protocol},
		ClassId:     uint32(f.Class),
	}
	if len(f.Keys) > 0 { // none: the library sends a key that matches everything
		u32.Sel = &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL}
	}
	for _, k := range f.Keys {
		u32.Sel.Keys = append(u32.Sel.Keys, netlink.TcU32Key{Mask: k.Mask, Val: k.Value, Off: k.Offset})
	}
	if f.Redirect != 0 {
		u32.Actions = []netlink.Action{netlink.NewMirredAction(f.Redirect)}
	}
	return change("add "+f.String()+" to "+l.Name, func(c *Conn) error { return c.lib.FilterAdd(u32) })
}

// Filters lists the u32 filters of a qdisc of the link.
func (c *Conn) Filters(l Link, parent Handle) ([]Filter, error) {
	return query(c, fmt.Sprintf("list filters of %s %s", l.Name, parent), func() (filters []Filter, err error) {
		list, err := c.lib.FilterList(l.device(), uint32(parent))
		for _, found := range list {
			if u32, ok := found.(*netlink.U32); ok {
				filters = append(filters, describeFilter(u32))
			}
		}
		return filters, err
	})
}

// describeFilter returns a filter of the library's as a Filter. Redirect is that of the
// first redirection; the kernel never reaches an action behind it.
func describeFilter(u32 *netlink.U32) Filter {
	f := Filter{
		Parent: Handle(u32.Parent), Priority: u32.Priority, Protocol: u32.Protocol, Class: Handle(u32.ClassId),
	}
	for _, k := range u32.Sel.Keys {
		if key := (Key{Value: k.Val, Mask: k.Mask, Offset: k.Off}); key != (Key{}) {
			f.Keys = append(f.Keys, key)
		}
	}
	for _, a := range u32.Actions {
		if mirred, ok := a.(*netlink.MirredAction); ok && mirred.MirredAction == netlink.TCA_EGRESS_REDIR && f.Redirect == 0 {
			f.Redirect = mirred.Ifindex
		}
	}
	return f
}
