package eval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// maxShown bounds what a failure shows of an answer or a value, in bytes.
const maxShown = 200

// Failure is an expectation that a run did not meet.
type Failure struct {
	Expect string `json:"expect"` // the member of expect, or "run" if the run failed
	Detail string `json:"detail"`
}

// failFunc reports that a run did not meet the expectation of the member with that name.
type failFunc func(member, format string, args ...any)

// check returns what a run did not meet of the expectations, all but the judge's. It continues after the first
// failure: a report with all of them needs no second run. The run has an answer, and compile was called.
func (e *Expect) check(r *outcome) (failures []Failure) {
	fail := func(member, format string, args ...any) {
		failures = append(failures, Failure{member, fmt.Sprintf(format, args...)})
	}
	for _, text := range e.Contains {
		if !strings.Contains(r.answer, text) {
			fail("contains", "the answer does not contain %q: %q", printable(text, maxShown), printable(r.answer, maxShown))
		}
	}
	for _, pattern := range e.patterns {
		if !pattern.MatchString(r.answer) {
			fail("matches", "the answer does not match %s: %q", printable(pattern.String(), maxShown), printable(r.answer, maxShown))
		}
	}
	e.checkValue(r, fail)
	e.checkCalls(r.calls, fail)
	switch {
	case e.MaxCost == nil:
	case r.cost == nil:
		fail("max_cost", "the cost is unknown, because the model has no price")
	case *r.cost > *e.MaxCost:
		fail("max_cost", "the cost is %g, more than %g", *r.cost, *e.MaxCost)
	}
	if e.MaxSeconds > 0 && r.elapsed.Seconds() > e.MaxSeconds {
		fail("max_seconds", "the run took %.1f s, more than %g s", r.elapsed.Seconds(), e.MaxSeconds)
	}
	return failures
}

// checkValue checks the answer as JSON: the values at the pointers of e.JSON, and the whole against e.schema. Numbers
// are compared by their exact values: 8 is 8.0, and a large id is not the one next to it, which is the same float64.
func (e *Expect) checkValue(r *outcome, fail failFunc) {
	if e.JSON == nil && e.schema == nil {
		return
	}
	raw := r.output
	if raw == nil {
		raw = json.RawMessage(strings.TrimSpace(r.answer))
	}
	var value any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if !json.Valid(raw) || dec.Decode(&value) != nil {
		member := "json"
		if e.JSON == nil {
			member = "schema"
		}
		fail(member, "the answer is not JSON: %q", printable(r.answer, maxShown))
		return
	}

	for _, pointer := range slices.Sorted(maps.Keys(e.JSON)) {
		found, ok := valueAt(value, pointer)
		if !ok {
			fail("json", "the answer has nothing at %q", pointer)
			continue
		}
		got, err := json.Marshal(found)
		if err != nil || e.values[pointer].Validate(got) != nil {
			fail("json", "%q is %s, not %s", pointer, printable(string(got), maxShown), printable(string(e.JSON[pointer]), maxShown))
		}
	}

	if e.schema != nil {
		for _, p := range e.schema.Validate(raw) {
			fail("schema", "%q: %s", p.Pointer, p.Detail)
		}
	}
}

// valueAt returns the value at a JSON pointer (RFC 6901), whose form the schema of suites has checked. ok is false
// if there is none, also for the "-" behind the end of an array.
func valueAt(value any, pointer string) (any, bool) {
	if pointer == "" {
		return value, true
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~") // in this order: "~01" is "~1"
		switch v := value.(type) {
		case map[string]any:
			below, ok := v[token]
			if !ok {
				return nil, false
			}
			value = below
		case []any:
			i, err := strconv.ParseUint(token, 10, 31)
			hasLeadingZero := token != strconv.FormatUint(i, 10)
			if err != nil || int(i) >= len(v) || hasLeadingZero {
				return nil, false
			}
			value = v[i]
		default:
			return nil, false
		}
	}
	return value, true
}

// checkCalls checks which tools were called; calls are their names. Calls that are not expected do not matter, unless
// never_calls has them.
func (e *Expect) checkCalls(calls []string, fail failFunc) {
	if e.InOrder {
		e.checkCallOrder(calls, fail)
	} else {
		e.checkCallCounts(calls, fail)
	}
	for _, glob := range e.NeverCalls {
		if countMatches(glob, calls) > 0 {
			fail("never_calls", "%s is called; the calls are %s", glob, list(calls))
		}
	}
}

// checkCallOrder checks that the globs of e.Calls match calls in this order. Other calls may be between them.
func (e *Expect) checkCallOrder(calls []string, fail failFunc) {
	matched := 0 // how many globs have a call so far
	for _, name := range calls {
		if matched < len(e.Calls) && matchesGlob(e.Calls[matched], name) {
			matched++
		}
	}
	if matched < len(e.Calls) {
		fail("calls", "%s is not called%s; the calls are %s", e.Calls[matched], afterCalls(e.Calls[:matched]), list(calls))
	}
}

// checkCallCounts checks that each glob of e.Calls matches at least as many calls as it is listed times. One call may
// count for several globs.
func (e *Expect) checkCallCounts(calls []string, fail failFunc) {
	wanted := make(map[string]int)
	for _, glob := range e.Calls {
		wanted[glob]++
	}
	for _, glob := range slices.Sorted(maps.Keys(wanted)) {
		if got := countMatches(glob, calls); got < wanted[glob] {
			fail("calls", "%s is called %d times, not %d; the calls are %s", glob, got, wanted[glob], list(calls))
		}
	}
}

// afterCalls names the calls after which another one is missing.
func afterCalls(before []string) string {
	if len(before) == 0 {
		return ""
	}
	return " after " + strings.Join(before, ", ")
}

// list names the calls of a run.
func list(calls []string) string {
	if len(calls) == 0 {
		return "none"
	}
	return printable(strings.Join(calls, ", "), maxShown)
}

// countMatches counts the names that a glob matches.
func countMatches(glob string, names []string) (n int) {
	for _, name := range names {
		if matchesGlob(glob, name) {
			n++
		}
	}
	return n
}

// matchesGlob reports whether a glob matches the name of a tool.
func matchesGlob(glob, name string) bool {
	ok, _ := path.Match(glob, name) // the glob was checked
	return ok
}
