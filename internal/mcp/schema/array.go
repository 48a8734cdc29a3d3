package schema

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
)

// checkArray applies the keywords for arrays (draft 2020-12 core, 10.3.1; validation, 6.4).
// unevaluatedItems comes last, because it applies to the items that no other keyword has evaluated
// (core, 11.2).
func (w *validator) checkArray(n *node, v *value, loc *location, r *result) {
	w.checkCount(n.minItems, n.maxItems, len(v.items), "item", loc, r)
	for i, item := range v.items {
		s := n.items
		if i < len(n.prefix) {
			s = n.prefix[i]
		}
		if s != nil {
			r.add(w.validate(s, item, &location{up: loc, index: i, item: true}))
		}
	}
	if w.schema.tracksEvaluated {
		r.evaluated.items = max(r.evaluated.items, min(len(n.prefix), len(v.items)))
		r.evaluated.allItems = r.evaluated.allItems || n.items != nil
	}
	if n.contains != nil {
		w.checkContains(n, v, loc, r)
	}
	if n.unique {
		w.checkUnique(v, loc, r)
	}
	if n.unevaluatedItems == nil || r.evaluated.allItems {
		return
	}
	for i := r.evaluated.items; i < len(v.items); i++ {
		if !r.evaluated.item[i] {
			r.add(w.validate(n.unevaluatedItems, v.items[i], &location{up: loc, index: i, item: true}))
		}
	}
	r.evaluated.allItems = true
}

// checkContains counts the items that are valid against contains. Without contains, neither
// minContains nor maxContains applies (draft 2020-12 validation, 6.4.4).
func (w *validator) checkContains(n *node, v *value, loc *location, r *result) {
	found := 0
	for i, item := range v.items {
		if w.isValid(n.contains, item) {
			found++
			if w.schema.tracksEvaluated {
				r.evaluated.addItem(i)
			}
		}
	}
	low := 1
	if n.minContains != nil {
		low = *n.minContains
	}
	w.checkCount(&low, n.maxContains, found, "matching item", loc, r)
}

// checkUnique applies uniqueItems. It compares only items with the same hash, because comparing
// all pairs is quadratic. The seed is random, so that nobody can predict hashes. Numbers of more digits
// than a float has can still be chosen to have equal hashes. So each comparison counts as steps, which
// bounds the time in that case too.
func (w *validator) checkUnique(v *value, loc *location, r *result) {
	seed := maphash.MakeSeed()
	first := make(map[uint64][]int, len(v.items))
	for i, item := range v.items {
		var h maphash.Hash
		h.SetSeed(seed)
		if !w.spend(item.hashInto(&h)) {
			return
		}
		sum := h.Sum64()
		for _, j := range first[sum] {
			if !w.spend(1 + len(item.items)) {
				return
			}
			if equalValues(v.items[j], item) {
				w.report(r, loc, violation{}, func() string { return fmt.Sprintf("items %d and %d are equal, all must differ", j, i) })
				return
			}
		}
		first[sum] = append(first[sum], i)
	}
}

// hashInto writes v to hash such that equal values have equal hashes. It returns the number of values
// that it visited. What is of variable length follows its length. Otherwise ["ab","c"] and ["a","bc"] would be
// the same bytes, and have equal hashes whatever the seed is.
func (v *value) hashInto(hash *maphash.Hash) int {
	steps := 1
	_ = hash.WriteByte(byte(v.kind))
	switch v.kind {
	case integer, fraction:
		hashNumber(hash, math.Float64bits(v.float+0)) // +0: -0 is 0
	case text:
		hashText(hash, v.text)
	case array:
		hashNumber(hash, uint64(len(v.items)))
		for _, item := range v.items {
			steps += item.hashInto(hash)
		}
	case object: // the order of members is irrelevant, so their hashes are added
		var sum uint64
		for i, name := range v.names {
			var member maphash.Hash
			member.SetSeed(hash.Seed())
			hashText(&member, name)
			steps += v.items[i].hashInto(&member)
			sum += member.Sum64()
		}
		hashNumber(hash, sum)
	case null, boolean:
		_ = hash.WriteByte(v.raw[0])
	}
	return steps
}

// hashText writes a string with its length to h.
func hashText(h *maphash.Hash, s string) {
	hashNumber(h, uint64(len(s)))
	_, _ = h.WriteString(s)
}

// hashNumber writes n to h.
func hashNumber(h *maphash.Hash, n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	_, _ = h.Write(b[:])
}
