package schema

import (
	"fmt"
	"hash/maphash"
)

// checkArray applies n's keywords for arrays to v (draft 2020-12 core, 10.3.1; validation, 6.4). It adds the problems
// and the evaluated items to r. unevaluatedItems is applied last, because it concerns only the items that no other
// keyword has evaluated (core, 11.2).
func (w *validator) checkArray(n *node, v *value, loc *location, r *result) {
	w.checkCount(n.minItems, n.maxItems, len(v.items), "item", loc, r)
	for i, item := range v.items {
		itemSchema := n.items
		if i < len(n.prefix) {
			itemSchema = n.prefix[i]
		}
		if itemSchema != nil {
			r.add(w.validate(itemSchema, item, loc.item(i)))
		}
	}
	if w.schema.tracksEvaluated {
		r.evaluated.firstItems = max(r.evaluated.firstItems, min(len(n.prefix), len(v.items)))
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
	for i := r.evaluated.firstItems; i < len(v.items); i++ {
		if !r.evaluated.furtherItems[i] {
			r.add(w.validate(n.unevaluatedItems, v.items[i], loc.item(i)))
		}
	}
	r.evaluated.allItems = true
}

// checkContains applies contains, minContains and maxContains. n.contains must not be nil: without contains, the other
// two keywords have no effect (draft 2020-12 validation, 6.4.4 and 6.4.5).
func (w *validator) checkContains(n *node, v *value, loc *location, r *result) {
	matches := 0
	for i, item := range v.items {
		if w.isValid(n.contains, item) {
			matches++
			if w.schema.tracksEvaluated {
				r.evaluated.addItem(i)
			}
		}
	}
	minContains := 1 // the default (6.4.5)
	if n.minContains != nil {
		minContains = *n.minContains
	}
	w.checkCount(&minContains, n.maxContains, matches, "matching item", loc, r)
}

// checkUnique applies uniqueItems, and reports only the first pair of equal items. Comparing all pairs would be
// quadratic, so it compares only items with the same hash. The seed is random, so that an attacker cannot choose
// strings with equal hashes. Numbers are hashed as float64, so many different long numbers can still have the same
// hash. Each comparison therefore counts as steps.
func (w *validator) checkUnique(v *value, loc *location, r *result) {
	seed := maphash.MakeSeed()
	indexes := make(map[uint64][]int, len(v.items)) // of the items so far, by their hash
	for i, item := range v.items {
		var hash maphash.Hash
		hash.SetSeed(seed)
		valueCount := item.hashInto(&hash)
		if !w.countSteps(valueCount) {
			return
		}
		sum := hash.Sum64()
		for _, earlier := range indexes[sum] {
			if !w.countSteps(1 + len(item.items)) {
				return
			}
			if equalValues(v.items[earlier], item) {
				w.report(r, loc, violation{}, func() string {
					return fmt.Sprintf("items %d and %d are equal, all must differ", earlier, i)
				})
				return
			}
		}
		indexes[sum] = append(indexes[sum], i)
	}
}

// hashInto writes v to hash, so that equal values get equal hashes. It returns the number of values in v, including v
// itself. It writes the length of each array first. Otherwise [["a"],"b"] and [["a","b"]] would write the same data, and
// an attacker could choose values with equal hashes without knowing the seed.
func (v *value) hashInto(hash *maphash.Hash) (valueCount int) {
	valueCount = 1
	_ = hash.WriteByte(byte(v.kind))
	switch v.kind {
	case integer, fraction:
		maphash.WriteComparable(hash, v.float)
	case text:
		maphash.WriteComparable(hash, v.text)
	case array:
		maphash.WriteComparable(hash, len(v.items))
		for _, item := range v.items {
			valueCount += item.hashInto(hash)
		}
	case object:
		var sum uint64 // of the members' hashes, because a sum does not depend on their order
		for i, name := range v.names {
			var member maphash.Hash
			member.SetSeed(hash.Seed())
			maphash.WriteComparable(&member, name)
			valueCount += v.items[i].hashInto(&member)
			sum += member.Sum64()
		}
		maphash.WriteComparable(hash, sum)
	case boolean:
		maphash.WriteComparable(hash, v.isTrue())
	}
	return valueCount
}
