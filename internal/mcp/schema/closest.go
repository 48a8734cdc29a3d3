package schema

// closest says what is wrong with a value that fits none of the alternatives: what the
// one says that it comes nearest to, or what all say together.
func (w *walk) closest(alternatives []verdict, v *value, at *step, d *verdict) {
	var kinds kind
	var names []string
	here, ofKind, nearest := at.depth(), 0, 0
	for i, a := range alternatives {
		switch first := a.problems[0]; {
		case first.rank == ofType && first.depth == here:
			kinds |= first.kinds
			ofKind++
		case first.rank == ofMissing && first.depth == here+1 && len(a.problems) == 1:
			names = append(names, first.name)
		}
		if a.nearer(alternatives[nearest], here) {
			nearest = i
		}
	}
	switch len(alternatives) {
	case ofKind: // or there are none, which nothing fits
		w.wrongKind(d, at, kinds, v)
	case len(names):
		w.missingOneOf(d, at, names)
	default:
		d.add(alternatives[nearest])
	}
}

// nearer reports whether the value that lies at depth here comes nearer to d than to o.
func (d verdict) nearer(o verdict, here int) bool {
	mine, other := d.against(here), o.against(here)
	if mine != other {
		return mine < other
	}
	return len(d.problems) < len(o.problems)
}

// against is how much speaks against the alternative of which d is the verdict. Another
// type, or another value of the field that tells alternatives apart, says that it isn't
// meant; what is wrong further down says little.
func (d verdict) against(here int) int {
	most := 0
	for _, p := range d.problems {
		weight := 0
		switch deeper := p.depth - here; {
		case p.rank == ofType && deeper == 0:
			weight = 5
		case p.rank == ofChoice && deeper <= 1:
			weight = 4
		case p.rank == ofType && deeper == 1:
			weight = 3
		case p.rank == ofUnexpected && deeper == 1:
			weight = 2
		case p.rank == ofMissing && deeper == 1:
			weight = 1
		}
		most = max(most, weight)
	}
	return most
}
