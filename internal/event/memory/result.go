package memory

// results holds the results of one run's calls.
type results struct {
	byCall map[string][]byte // nil for a result that was dropped
	order  []string          // the calls whose results are kept, oldest first
}

// setResult stores a call's result, in place of an earlier one, and returns how many bytes the run grew.
func (r *results) setResult(call string, result []byte) (grown int64) {
	if earlier := r.byCall[call]; earlier != nil {
		grown = -int64(cap(earlier))
	} else {
		grown = entryOverhead
		r.order = append(r.order, call)
	}
	if r.byCall == nil {
		r.byCall = make(map[string][]byte)
	}
	r.byCall[call] = result
	return grown + int64(cap(result))
}

// dropOldest drops the oldest results until it has freed wanted bytes or no result is left. It returns how many bytes
// it freed.
func (r *results) dropOldest(wanted int64) (freed int64) {
	for len(r.order) > 0 && freed < wanted {
		call := r.order[0]
		r.order = r.order[1:]
		freed += int64(cap(r.byCall[call])) + entryOverhead
		r.byCall[call] = nil
	}
	return freed
}
