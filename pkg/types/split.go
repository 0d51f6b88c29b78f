package types

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// What is here takes JSON apart that encoding/json has read before, so that only the
// ends of values are looked for: encoding/json itself takes ten times as long for that,
// which a hundred port mappings feel. Of what is no JSON it gives some beginning.

// A member is one of a JSON object.
type member struct {
	key   string
	value []byte
}

// members are those of the object, in its order; of anything else there are none.
func members(object []byte) []member {
	var all []member
	rest, ok := enter(object, '{')
	for ok {
		var m member
		key, after := first(rest)
		colon := bytes.IndexByte(after, ':')
		if colon < 0 {
			break
		}
		m.key = unquote(key)
		m.value, rest = first(after[colon+1:])
		if len(m.value) == 0 {
			break
		}
		all = append(all, m)
		rest, ok = enter(rest, ',')
	}
	return all
}

// items are those of the list; of anything else there are none.
func items(list []byte) [][]byte {
	var all [][]byte
	rest, ok := enter(list, '[')
	for ok {
		var item []byte
		if item, rest = first(rest); len(item) == 0 {
			break
		}
		all = append(all, item)
		rest, ok = enter(rest, ',')
	}
	return all
}

// enter is what follows the character that b begins with, space apart.
func enter(b []byte, c byte) (rest []byte, ok bool) {
	b = bytes.TrimLeft(b, space)
	if len(b) == 0 || b[0] != c {
		return nil, false
	}
	return b[1:], true
}

const space = " \t\r\n"

// first cuts off the value that b begins with, space apart; empty: there is none.
func first(b []byte) (value, rest []byte) {
	b = bytes.TrimLeft(b, space)
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			if i = closing(b, i); depth == 0 {
				return b[:i+1], b[i+1:]
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 { // the end of what the value is in
				return b[:i], b[i:]
			}
			if depth == 0 {
				return b[:i+1], b[i+1:]
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return b[:i], b[i:]
			}
		}
	}
	return b, nil
}

// closing is where the string that begins at i ends.
func closing(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(b) - 1
}

// unquote is the text of a string.
func unquote(quoted []byte) string {
	if len(quoted) >= 2 && bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	_ = json.Unmarshal(quoted, &s) // what is no string has no text
	return s
}
