package responses

import (
	"strconv"
	"strings"

	"answerd/internal/event"
)

// Ids tell where they belong: clients send back nothing else. A run that waits for
// approvals is several responses, one after the other; each is known by the run, by the
// event after which it begins, and, where the run took its approvals one by one and waited
// in between, by the last of them.

const runPrefix = "run_"

// Span is the part of a run that a response tells.
type Span struct {
	After int64 // the event after which it begins, 0 being the start
	// Until is an event before which it does not end, although the run waits; 0 for none.
	Until int64
}

// EndsWith reports whether that part of a run comes to its end with e, before the run does.
func (s Span) EndsWith(e event.Event) bool {
	_, waits := e.Body.(event.Suspended)
	return waits && e.Seq > s.After && e.Seq >= s.Until
}

// ID returns the id of the response that tells that part of a run.
func ID(run string, s Span) string {
	id := "resp_" + strings.TrimPrefix(run, runPrefix)
	if s.After > 0 {
		id += "_" + strconv.FormatInt(s.After, 10)
	}
	if s.Until > 0 {
		id += "_" + strconv.FormatInt(s.Until, 10)
	}
	return id
}

// ParseID reads what ID wrote. ok is false if it is no such id.
func ParseID(id string) (run string, s Span, ok bool) {
	parts := strings.Split(id, "_")
	if len(parts) < 2 || len(parts) > 4 || parts[0] != "resp" || parts[1] == "" {
		return "", Span{}, false
	}
	for i, n := range []*int64{&s.After, &s.Until}[:len(parts)-2] {
		var err error
		if *n, err = strconv.ParseInt(parts[2+i], 10, 64); err != nil || *n < 1 {
			return "", Span{}, false
		}
	}
	if s.Until > 0 && s.Until <= s.After {
		return "", Span{}, false
	}
	return runPrefix + parts[1], s, true
}

// itemID returns the id of an item of a run's responses: its kind, the run, and what tells it
// from others of its kind.
func itemID(kind, response, name string) string {
	run, _, _ := ParseID(response)
	return kind + "_" + strings.TrimPrefix(run, runPrefix) + "_" + name
}

// parseItemID reads what itemID wrote.
func parseItemID(id string) (kind, run, name string, ok bool) {
	parts := strings.SplitN(id, "_", 3)
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return "", "", "", false
	}
	return parts[0], runPrefix + parts[1], parts[2], true
}
