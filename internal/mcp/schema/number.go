package schema

import (
	"math/big"
	"strconv"
	"strings"
)

// maxExact is the longest literal, and the highest exponent, of a number that is
// calculated with exactly: 1e999999 would be a megabyte of digits.
const maxExact = 400

// exact is a number as it is written; nil where that would be too long.
func exact(literal string) *big.Rat {
	if len(literal) > maxExact {
		return nil
	}
	if i := strings.IndexAny(literal, "eE"); i >= 0 {
		exponent, err := strconv.Atoi(strings.TrimPrefix(literal[i+1:], "+"))
		if err != nil || exponent > maxExact || exponent < -maxExact {
			return nil
		}
	}
	r, ok := new(big.Rat).SetString(literal)
	if !ok {
		return nil
	}
	return r
}

// compare compares two numbers as they are written: 0.1 with 0.1, and every digit of an
// integer that has more of them than a float.
func compare(a, b *value) int {
	switch {
	case a.float < b.float:
		return -1
	case a.float > b.float:
		return 1
	case len(a.raw) <= 15 && len(b.raw) <= 15: // a float has room for them
		return 0
	}
	x, y := exact(string(a.raw)), exact(string(b.raw))
	if x == nil || y == nil {
		return 0
	}
	return x.Cmp(y)
}

// multiple reports whether a is a multiple of b, which is not 0. In floats 19.99 is none of 0.01.
func multiple(a, b *value) bool {
	x, y := exact(string(a.raw)), exact(string(b.raw))
	if x == nil || y == nil {
		return true // the server may know
	}
	return x.Quo(x, y).IsInt()
}

// equal reports whether two values are the same to JSON Schema (draft 2020-12 core,
// 4.2.2): numbers by what they are worth, objects whatever the order of their members.
// It takes at most as many steps as the smaller of them has values.
func equal(a, b *value) bool {
	if a.kind != b.kind || len(a.items) != len(b.items) {
		return false
	}
	switch a.kind {
	case text:
		return a.text == b.text
	case boolean:
		return a.raw[0] == b.raw[0]
	case integer, fraction:
		return compare(a, b) == 0
	case array:
		for i := range a.items {
			if !equal(a.items[i], b.items[i]) {
				return false
			}
		}
	case object:
		for i, name := range a.names {
			other := b.get(name)
			if other == nil || !equal(a.items[i], other) {
				return false
			}
		}
	}
	return true
}
