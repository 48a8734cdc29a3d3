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

// value is a JSON value with its original bytes. A value is immutable: a repair makes a copy with new items, marked as
// changed, and shares the unchanged items. So unchanged parts are written exactly as they were read, with every digit
// of a number (appendJSON).
type value struct {
	kind    kind
	raw     []byte         // the original bytes, those of changed parts included
	text    string         // content of a string
	float   float64        // approximate value of a number
	names   []string       // of an object's members, in order
	items   []*value       // of an array, or values of an object's members
	byName  map[string]int // index in names; nil for an object of at most linearSearchMax members
	offset  int            // of the original bytes within raw of the enclosing value
	length  int            // of the original bytes within raw of the enclosing value
	changed bool           // the value, or a part of it, differs from these bytes
}

// linearSearchMax is the number of names up to which an object is searched without an index.
const linearSearchMax = 12

// member returns the value of the member called name, or nil if v lacks it or is not an object. Of members with the
// same name it returns the last one.
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

// withItems returns a copy of v with other items, marked as changed. For each item of v there must be one, in order.
func (v *value) withItems(items []*value) *value {
	c := *v
	c.items, c.changed = items, true
	return &c
}

// withPositionOf returns a copy of v, marked as changed, that appendJSON writes in place of the bytes of before in the
// enclosing value.
func (v *value) withPositionOf(before *value) *value {
	c := *v
	c.offset = before.offset
	c.length = before.length
	c.changed = true
	return &c
}

// appendJSON appends v to dst as JSON. It copies the original bytes between changed items, so the order
// of members, white space and the spelling of numbers survive a repair. An item with a changed part is itself marked as
// changed (withItems), so unchanged items are copied whole.
func (v *value) appendJSON(dst []byte) []byte {
	copied := 0 // bytes of v.raw that are in dst, or replaced in it
	for _, item := range v.items {
		if item.changed {
			dst = append(dst, v.raw[copied:item.offset]...)
			dst = item.appendJSON(dst)
			copied = item.offset + item.length
		}
	}
	return append(dst, v.raw[copied:]...)
}

// maxExactLength bounds the length of a number's literal, and its exponent, for exact arithmetic:
// 1e999999 would be a megabyte of digits.
const maxExactLength = 400

// exactRational returns the exact value of a number's literal, or nil if the literal or its exponent exceeds
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
	r, ok := new(big.Rat).SetString(literal)
	if !ok {
		return nil
	}
	return r
}

// compareNumbers returns -1 if a is less than b, 0 if they are equal, and 1 otherwise. It compares exact values,
// because a float cannot represent all digits of a large integer. Numbers that are too long for exact arithmetic are
// equal if their floats are.
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
// floats, 19.99 would not be a multiple of 0.01. If a number is too long for exact arithmetic, it returns true.
func isMultiple(a, b *value) bool {
	x, y := exactRational(string(a.raw)), exactRational(string(b.raw))
	if x == nil || y == nil {
		return true // leave the decision to the server
	}
	return x.Quo(x, y).IsInt()
}

// equalValues reports whether two values are equal (draft 2020-12 core, 4.2.2): numbers by value,
// and objects regardless of the order of their members. It visits at most as many values as the
// smaller of both contains.
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
