package netlink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Order is the byte order of numbers in attributes: binary.NativeEndian in rtnetlink,
// binary.BigEndian in netfilter.
type Order interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// An Encoder writes attributes (struct nlattr): length, kind, value, and padding to
// four bytes.
type Encoder struct {
	order Order
	b     []byte
	err   error
}

// Encode appends the attributes that fill writes to a header. An attribute that is too
// long is an error.
func Encode(header []byte, order Order, fill func(*Encoder)) ([]byte, error) {
	e := &Encoder{order: order, b: header}
	fill(e)
	return e.b, e.err
}

const attrHeader = unix.SizeofNlAttr

// put writes an attribute whose value comes from fill.
func (e *Encoder) put(kind uint16, fill func()) {
	start := len(e.b)
	e.b = append(e.b, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(e.b[start+2:], kind)
	fill()
	length := len(e.b) - start
	if length > math.MaxUint16 && e.err == nil {
		e.err = fmt.Errorf("netlink attribute %d of %d bytes: %w", kind&^unix.NLA_F_NESTED, length, unix.EMSGSIZE)
	}
	binary.NativeEndian.PutUint16(e.b[start:], uint16(length))
	e.b = append(e.b, make([]byte, align(length)-length)...)
}

// Bytes writes a value as it is.
func (e *Encoder) Bytes(kind uint16, v []byte) { e.put(kind, func() { e.b = append(e.b, v...) }) }

// String writes a text and the zero byte that ends it.
func (e *Encoder) String(kind uint16, v string) {
	e.put(kind, func() { e.b = append(append(e.b, v...), 0) })
}

// Uint8 writes one byte.
func (e *Encoder) Uint8(kind uint16, v uint8) { e.put(kind, func() { e.b = append(e.b, v) }) }

// Uint32 writes a number of four bytes.
func (e *Encoder) Uint32(kind uint16, v uint32) {
	e.put(kind, func() { e.b = e.order.AppendUint32(e.b, v) })
}

// Uint64 writes a number of eight bytes.
func (e *Encoder) Uint64(kind uint16, v uint64) {
	e.put(kind, func() { e.b = e.order.AppendUint64(e.b, v) })
}

// Nested writes an attribute that holds those that fill writes.
func (e *Encoder) Nested(kind uint16, fill func(*Encoder)) {
	e.put(kind|unix.NLA_F_NESTED, func() { fill(e) })
}

// Headed is Nested with a header of the attribute's own before the others.
func (e *Encoder) Headed(kind uint16, header []byte, fill func(*Encoder)) {
	e.put(kind, func() {
		e.b = append(e.b, header...)
		fill(e)
	})
}

// A Decoder reads attributes one by one. A value that is not of the size asked for, and
// attributes that do not fill their message, end the reading; Err says so.
type Decoder struct {
	order Order
	rest  []byte
	kind  uint16
	value []byte
	err   error
}

// Decode reads the attributes in b.
func Decode(b []byte, order Order) *Decoder { return &Decoder{order: order, rest: b} }

// Next goes to the next attribute. It reports false at the end and after an error.
func (d *Decoder) Next() bool {
	if d.err != nil || len(d.rest) == 0 {
		return false
	}
	if len(d.rest) < attrHeader {
		return d.fail("netlink attributes end within a header")
	}
	length := int(binary.NativeEndian.Uint16(d.rest))
	if length < attrHeader || length > len(d.rest) {
		return d.fail(fmt.Sprintf("netlink attribute of %d bytes where there are %d", length, len(d.rest)))
	}
	d.kind = binary.NativeEndian.Uint16(d.rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	d.value = d.rest[attrHeader:length:length]
	d.rest = d.rest[min(align(length), len(d.rest)):]
	return true
}

func (d *Decoder) fail(text string) bool {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w", text, unix.EBADMSG)
	}
	return false
}

// Err is why the reading ended early; nil: it did not. It matches unix.EBADMSG.
func (d *Decoder) Err() error { return d.err }

// Kind is that of the attribute, without flags.
func (d *Decoder) Kind() uint16 { return d.kind }

// Bytes is the value, in the message's own memory.
func (d *Decoder) Bytes() []byte { return d.value }

// String is the value up to its zero byte.
func (d *Decoder) String() string { return Text(d.value) }

// Text is what stands before the first zero byte.
func Text(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// sized is the value if it has n bytes, else n zeros.
func (d *Decoder) sized(n int) []byte {
	if len(d.value) != n {
		d.fail(fmt.Sprintf("netlink attribute %d of %d bytes, not %d", d.kind, len(d.value), n))
		return make([]byte, n)
	}
	return d.value
}

// Uint8 is a value of one byte.
func (d *Decoder) Uint8() uint8 { return d.sized(1)[0] }

// Uint16 is a value of two bytes.
func (d *Decoder) Uint16() uint16 { return d.order.Uint16(d.sized(2)) }

// Uint32 is a value of four bytes.
func (d *Decoder) Uint32() uint32 { return d.order.Uint32(d.sized(4)) }

// Int32 is a value of four bytes with a sign.
func (d *Decoder) Int32() int32 { return int32(d.Uint32()) }

// Uint64 is a value of eight bytes.
func (d *Decoder) Uint64() uint64 { return d.order.Uint64(d.sized(8)) }

// Nested calls read, which goes through the attributes within this one.
func (d *Decoder) Nested(read func(*Decoder)) {
	inner := Decode(d.value, d.order)
	read(inner)
	if d.err == nil {
		d.err = inner.err
	}
}
