package schema

import (
	"math/big"
	"strconv"
	"strings"
)

// kind is a set of JSON types. An integer is also a number.
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

// value is a JSON value with its original bytes. Parts that do not change are written exactly as
// they were read, with every digit of a number. A value is immutable, so that repairs can share
// parts of it.
type value struct {
	kind    kind
	raw     []byte         // the original bytes
	text    string         // content of a string
	float   float64        // approximate value of a number
	names   []string       // of an object's members, in order
	items   []*value       // of an array, or values of an object's members
	byName  map[string]int // index in names; nil for a small object
	at, len int            // position within the raw bytes of the enclosing value
	changed bool           // the value, or a part of it, differs from the bytes at that position
}

// linearSearchMax is the number of names up to which an object is searched without an index.
const linearSearchMax = 12

// member returns a member of an object, or nil if there is none. Of members with the same name it
// returns the last one.
func (v *value) member(name string) *value {
	if v.byName != nil {
		if i, ok := v.byName[name]; ok {
			return v.items[i]
		}
		return nil
	}
	for i := len(v.names) - 1; i >= 0; i-- { // the last of the same name wins
		if v.names[i] == name {
			return v.items[i]
		}
	}
	return nil
}

// withItems returns a copy of v with other items.
func (v *value) withItems(items []*value) *value {
	c := *v
	c.items, c.changed = items, true
	return &c
}

// withPositionOf returns a copy of v that takes the position of before in the enclosing value.
func (v *value) withPositionOf(before *value) *value {
	c := *v
	c.at = before.at
	c.len = before.len
	c.changed = true
	return &c
}

// appendJSON appends v to dst as JSON. It copies the original bytes between changed parts, so the order
// of members, white space and the spelling of numbers survive a repair. It looks into changed values
// only: a value with a changed part is itself marked as changed (withItems).
func (v *value) appendJSON(dst []byte) []byte {
	from := 0
	for _, item := range v.items {
		if item.changed {
			dst = append(dst, v.raw[from:item.at]...)
			dst = item.appendJSON(dst)
			from = item.at + item.len
		}
	}
	return append(dst, v.raw[from:]...)
}

// maxExactLength bounds the length of a number's literal, and its exponent, for exact arithmetic:
// 1e999999 would be a megabyte of digits.
const maxExactLength = 400

// exactRational returns the exact value of a literal, or nil if it exceeds maxExactLength.
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
	r, ok := new(big.Rat).SetString(literal)
	if !ok {
		return nil
	}
	return r
}

// compareNumbers compares the exact values of two numbers, because a float cannot represent all
// digits of a large integer.
func compareNumbers(a, b *value) int {
	switch {
	case a.float < b.float:
		return -1
	case a.float > b.float:
		return 1
	case len(a.raw) <= 15 && len(b.raw) <= 15: // a float distinguishes up to 15 digits
		return 0
	}
	x, y := exactRational(string(a.raw)), exactRational(string(b.raw))
	if x == nil || y == nil {
		return 0
	}
	return x.Cmp(y)
}

// isMultiple reports whether a is a multiple of b, which is not 0. It computes exactly: with
// floats, 19.99 would not be a multiple of 0.01.
func isMultiple(a, b *value) bool {
	x, y := exactRational(string(a.raw)), exactRational(string(b.raw))
	if x == nil || y == nil {
		return true // too long to compute: leave the decision to the server
	}
	return x.Quo(x, y).IsInt()
}

// equalValues reports whether two values are equal (draft 2020-12 core, 4.2.2): numbers by value,
// and objects regardless of the order of their members. It visits at most as many values as the
// smaller one has.
func equalValues(a, b *value) bool {
	if a.kind != b.kind || len(a.items) != len(b.items) {
		return false
	}
	switch a.kind {
	case text:
		return a.text == b.text
	case boolean:
		return a.raw[0] == b.raw[0]
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
	return true
}
