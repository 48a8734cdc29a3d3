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

	"github.com/go-json-experiment/json/jsontext"
)

// maxShown bounds the bytes of an answer or a value that a failure shows.
const maxShown = 200

// Failure is an expectation that a run did not meet.
type Failure struct {
	Expect string `json:"expect"` // member of expect in the suite; "run" if the run failed
	Detail string `json:"detail"`
}

// failFunc records that a run did not meet the expectation in the given member of expect.
type failFunc func(member, format string, args ...any)

// check returns the expectations that the run did not meet, except the judge's. It checks all of them, so that one run
// shows every failure. The run must have an answer, and compile must have been called.
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

// checkValue checks the answer as JSON: the values at the pointers in e.JSON, and the whole answer against e.schema. It
// compares numbers exactly: 8 equals 8.0, but two large ids that a float64 would round to the same value differ.
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

	e.checkPointers(value, fail)
	if e.schema != nil {
		for _, problem := range e.schema.Validate(raw) {
			fail("schema", "%q: %s", problem.Pointer, problem.Detail)
		}
	}
}

// checkPointers checks the values at the pointers in e.JSON. answer is the decoded answer.
func (e *Expect) checkPointers(answer any, fail failFunc) {
	for _, pointer := range slices.Sorted(maps.Keys(e.JSON)) {
		value, ok := valueAt(answer, pointer)
		if !ok {
			fail("json", "the answer has nothing at %q", pointer)
			continue
		}
		got, err := json.Marshal(value)
		if err != nil || e.values[pointer].Validate(got) != nil {
			fail("json", "%q is %s, not %s", pointer, printable(string(got), maxShown), printable(string(e.JSON[pointer]), maxShown))
		}
	}
}

// valueAt returns the value at a JSON pointer (RFC 6901), and false if the value does not exist. That includes "-", the
// position after an array's last item. The schema of suites has already checked the form of the pointer.
func valueAt(value any, pointer string) (any, bool) {
	for token := range jsontext.Pointer(pointer).Tokens() {
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

// checkCalls checks which tools were called. calls lists their names. A call that the suite does not mention is no
// failure, unless never_calls forbids it.
func (e *Expect) checkCalls(calls []string, fail failFunc) {
	if e.InOrder {
		e.checkCallOrder(calls, fail)
	} else {
		e.checkCallCounts(calls, fail)
	}
	for _, glob := range e.NeverCalls {
		if countMatches(glob, calls) > 0 {
			fail("never_calls", "%s is called; the calls are %s", glob, joinNames(calls))
		}
	}
}

// checkCallOrder checks that the globs in e.Calls match calls in this order. Other calls may come between them.
func (e *Expect) checkCallOrder(calls []string, fail failFunc) {
	matched := 0 // number of globs that have matched so far
	for _, name := range calls {
		if matched < len(e.Calls) && matchesGlob(e.Calls[matched], name) {
			matched++
		}
	}
	if matched == len(e.Calls) {
		return
	}
	after := ""
	if matched > 0 {
		after = " after " + strings.Join(e.Calls[:matched], ", ")
	}
	fail("calls", "%s is not called%s; the calls are %s", e.Calls[matched], after, joinNames(calls))
}

// checkCallCounts checks that each glob matches at least as many calls as e.Calls lists it. One call may count for
// several globs.
func (e *Expect) checkCallCounts(calls []string, fail failFunc) {
	least := make(map[string]int) // by glob: how many calls must match at least
	for _, glob := range e.Calls {
		least[glob]++
	}
	for _, glob := range slices.Sorted(maps.Keys(least)) {
		if got := countMatches(glob, calls); got < least[glob] {
			fail("calls", "%s is called %d times, not %d; the calls are %s", glob, got, least[glob], joinNames(calls))
		}
	}
}

// joinNames joins the names of calls for a failure. For no calls it returns "none".
func joinNames(calls []string) string {
	if len(calls) == 0 {
		return "none"
	}
	return printable(strings.Join(calls, ", "), maxShown)
}

// countMatches counts the names that glob matches.
func countMatches(glob string, names []string) (n int) {
	for _, name := range names {
		if matchesGlob(glob, name) {
			n++
		}
	}
	return n
}

// matchesGlob reports whether glob matches the tool name.
func matchesGlob(glob, name string) bool {
	ok, _ := path.Match(glob, name) // compile has checked the glob
	return ok
}
