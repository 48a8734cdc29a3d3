package schema

import (
	"math/big"
	"strconv"
	"strings"
)

// kind is a set of JSON types. Both integer and fraction belong to number.
type kind uint8

const (
	null kind = 1 << iota
	boolean
	integer
	fraction // a number that is not an integer
	text
	array
	object

	number = integer | fraction
)

// value is a JSON value with its original bytes. A value is immutable: a repair copies it with new items, marks the
// copy as changed, and shares the unchanged items. appendJSON writes unchanged parts exactly as they were read, so
// numbers keep all their digits.
type value struct {
	kind    kind
	raw     []byte         // the original bytes; a repair does not change them
	text    string         // a string's content, unescaped
	float   float64        // a number's approximate value
	names   []string       // an object's member names, in order
	items   []*value       // an array's items, or an object's member values in the order of names
	byName  map[string]int // index in names; nil for an object of at most linearSearchMax members
	offset  int            // start of the original bytes within the enclosing value's raw
	length  int            // number of original bytes within the enclosing value's raw
	changed bool           // a repair replaced the value or a part of it
}

// linearSearchMax is the largest number of members for which an object has no index byName.
const linearSearchMax = 12

// member returns the value of the member called name, or nil if v is not an object or has no such member. If several
// members have that name, the last one counts.
func (v *value) member(name string) *value {
	if v.byName != nil {
		if i, ok := v.byName[name]; ok {
			return v.items[i]
		}
		return nil
	}
	for i := len(v.names) - 1; i >= 0; i-- {
		if v.names[i] == name {
			return v.items[i]
		}
	}
	return nil
}

// withItems returns a copy of v, marked as changed, with items in place of v.items. Both must have the same length.
func (v *value) withItems(items []*value) *value {
	changed := *v
	changed.items = items
	changed.changed = true
	return &changed
}

// withPositionOf returns a copy of v, marked as changed, that takes the place of before in the enclosing value:
// appendJSON then writes v instead of before's bytes.
func (v *value) withPositionOf(before *value) *value {
	changed := *v
	changed.offset = before.offset
	changed.length = before.length
	changed.changed = true
	return &changed
}

// appendJSON appends v to dst as JSON. It rewrites only changed items and copies the original bytes between them, so
// the order of members, white space and the spelling of numbers survive a repair. An item is marked as changed if
// anything within it has changed, so an item without the mark can be copied whole.
func (v *value) appendJSON(dst []byte) []byte {
	copied := 0 // number of bytes of v.raw that have been copied or replaced
	for _, item := range v.items {
		if item.changed {
			dst = append(dst, v.raw[copied:item.offset]...)
			dst = item.appendJSON(dst)
			copied = item.offset + item.length
		}
	}
	return append(dst, v.raw[copied:]...)
}

// maxExactLength is the maximum length in bytes, and the maximum exponent, of a number's literal for exact arithmetic:
// 1e999999 would have a million digits.
const maxExactLength = 400

// exactRational returns the exact value of a number's literal, or nil if its length or its exponent exceeds
// maxExactLength.
func exactRational(literal string) *big.Rat {
	if len(literal) > maxExactLength {
		return nil
	}
	if i := strings.IndexAny(literal, "eE"); i >= 0 {
		exponent, err := strconv.Atoi(strings.TrimPrefix(literal[i+1:], "+"))
		if err != nil || exponent > maxExactLength || exponent < -maxExactLength {
			return nil
		}
	}
	exact, _ := new(big.Rat).SetString(literal) // nil if it is not a number
	return exact
}

// compareNumbers returns -1 if a is less than b, 0 if they are equal, and 1 if a is greater. It compares exact values,
// because a float64 cannot hold all digits of a large integer. Numbers that are too long for exact arithmetic count as
// equal if their float64 values are equal.
func compareNumbers(a, b *value) int {
	switch {
	case a.float < b.float:
		return -1
	case a.float > b.float:
		return 1
	case len(a.raw) <= 15 && len(b.raw) <= 15: // a float64 distinguishes numbers of up to 15 digits
		return 0
	}
	exactA, exactB := exactRational(string(a.raw)), exactRational(string(b.raw))
	if exactA == nil || exactB == nil {
		return 0
	}
	return exactA.Cmp(exactB)
}

// isMultiple reports whether a is a multiple of b, which must not be 0. It uses exact arithmetic, because with float64
// 19.99 would not be a multiple of 0.01. If a number is too long for exact arithmetic, isMultiple returns true.
func isMultiple(a, b *value) bool {
	exactA, exactB := exactRational(string(a.raw)), exactRational(string(b.raw))
	if exactA == nil || exactB == nil {
		return true // the MCP server will decide
	}
	return new(big.Rat).Quo(exactA, exactB).IsInt()
}

// equalValues reports whether two values are equal (draft 2020-12 core, 4.2.2). Numbers are compared by value, and
// objects regardless of the order of their members. It visits at most as many values as the smaller of a and b
// contains.
func equalValues(a, b *value) bool {
	if a.kind != b.kind || len(a.items) != len(b.items) {
		return false
	}
	switch a.kind {
	case text:
		return a.text == b.text
	case boolean:
		return a.isTrue() == b.isTrue()
	case integer, fraction:
		return compareNumbers(a, b) == 0
	case array:
		for i := range a.items {
			if !equalValues(a.items[i], b.items[i]) {
				return false
			}
		}
	case object:
		for i, name := range a.names {
			other := b.member(name)
			if other == nil || !equalValues(a.items[i], other) {
				return false
			}
		}
	}
	return true // all items or members are equal, or both values are null
}
