package schema

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"strconv"
)

// checkArray is the keywords about arrays (draft 2020-12 core, 10.3.1; validation, 6.4).
func (w *walk) checkArray(n *node, v *value, at *step, d *verdict) {
	w.bounds(n.minItems, n.maxItems, len(v.items), "item", at, d)
	for i, item := range v.items {
		s := n.items
		if i < len(n.prefix) {
			s = n.prefix[i]
		}
		if s != nil {
			d.add(w.check(s, item, &step{up: at, index: i, item: true}))
		}
	}
	if w.schema.notes {
		d.seen.items = max(d.seen.items, min(len(n.prefix), len(v.items)))
		d.seen.allItems = d.seen.allItems || n.items != nil
	}
	if n.contains != nil {
		w.checkContains(n, v, at, d)
	}
	if n.unique {
		w.checkUnique(v, at, d)
	}
	if n.unevaluatedItems == nil || d.seen.allItems {
		return
	}
	for i := d.seen.items; i < len(v.items); i++ {
		if !d.seen.item[i] {
			d.add(w.check(n.unevaluatedItems, v.items[i], &step{up: at, index: i, item: true}))
		}
	}
	d.seen.allItems = true
}

// checkContains counts the items that fit. A maxContains without contains says nothing,
// and nor does a minContains (draft 2020-12 validation, 6.4.4).
func (w *walk) checkContains(n *node, v *value, at *step, d *verdict) {
	found := 0
	for i, item := range v.items {
		if w.fits(n.contains, item) {
			found++
			if w.schema.notes {
				d.seen.noteItem(i)
			}
		}
	}
	low := 1
	if n.minContains != nil {
		low = *n.minContains
	}
	w.bounds(&low, n.maxContains, found, "matching item", at, d)
}

// checkUnique compares only items of the same hash.
func (w *walk) checkUnique(v *value, at *step, d *verdict) {
	seed := maphash.MakeSeed()
	first := make(map[uint64][]int, len(v.items))
	for i, item := range v.items {
		var h maphash.Hash
		h.SetSeed(seed)
		if !w.spend(item.hash(&h)) {
			return
		}
		sum := h.Sum64()
		for _, j := range first[sum] {
			if !w.spend(1 + len(item.items)) {
				return
			}
			if equal(v.items[j], item) {
				w.find(d, at, finding{}, func() string { return fmt.Sprintf("items %d and %d are equal, all must differ", j, i) })
				return
			}
		}
		first[sum] = append(first[sum], i)
	}
}

// hash is the same for values that are equal. It returns how many values it took.
func (v *value) hash(h *maphash.Hash) int {
	steps := 1
	switch v.kind {
	case integer, fraction:
		_, _ = h.WriteString(strconv.FormatFloat(v.float+0, 'g', -1, 64)) // +0: -0 is 0
	case text:
		_, _ = h.WriteString(v.text)
	case array:
		for _, item := range v.items {
			steps += item.hash(h)
		}
	case object: // the order of its members doesn't count, so their hashes are added up
		var sum uint64
		for i, name := range v.names {
			var member maphash.Hash
			member.SetSeed(h.Seed())
			_, _ = member.WriteString(name)
			steps += v.items[i].hash(&member)
			sum += member.Sum64()
		}
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, sum))
	case null, boolean:
		_ = h.WriteByte(v.raw[0])
	}
	_ = h.WriteByte(byte(v.kind))
	return steps
}
