package rerun

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"answerd/internal/agent/replay"
	"answerd/internal/event"
)

// Difference is one difference between a recorded run and its repetition, the new run.
type Difference struct {
	Run   string     `json:"run_id"` // the recorded run
	Seq   int64      `json:"seq"`    // number of the recorded event, or of the new one if none was recorded
	Type  event.Type `json:"type"`
	Path  string     `json:"path,omitempty"` // JSON pointer into the event; "" if the difference concerns the whole event
	Was   string     `json:"was,omitempty"`
	Is    string     `json:"is,omitempty"`
	Notes string     `json:"notes,omitempty"`
}

// String returns the difference as one line.
func (d Difference) String() string {
	eventName := fmt.Sprintf("%s event %d %s", d.Run, d.Seq, d.Type)
	if d.Path == "" {
		return eventName + ": " + d.Notes
	}
	return fmt.Sprintf("%s %s: was %s, is %s", eventName, d.Path, d.Was, d.Is)
}

// startEvent is passed to compareValues for values that do not belong to an event.
var startEvent = event.Event{Body: event.Start{}}

// maxShown is the maximum length in bytes of a value that a Difference shows.
const maxShown = 200

// maxDifferences is the maximum number of differences that are reported for one run.
const maxDifferences = 50

// comparison compares the events of a new run with the recorded ones. It sorts them into streams: the events of each
// call, the events of each question, and all others. It compares each stream in order, and then the order of all
// events. An event that comes too early or too late is therefore a single difference.
type comparison struct {
	runID       string                   // the recorded run
	last        event.Event              // the last recorded event
	queues      map[string][]event.Event // recorded events that the new run has not repeated yet, by streamOf
	newest      int64                    // highest number of a recorded event that the new run has repeated
	differences []Difference
}

// newComparison returns a comparison with the events of a recorded run, before the new run has any events.
func newComparison(runID string, recorded []event.Event) comparison {
	c := comparison{runID: runID, queues: make(map[string][]event.Event)}
	for _, e := range recorded {
		c.last = e
		stream := streamOf(e, nil)
		c.queues[stream] = append(c.queues[stream], e)
	}
	return c
}

// streamOf returns the name of an event's stream: its question, or else its call. It returns "" for an event that
// belongs to neither. recordedID maps the ids of the new run's questions to the recorded ids; nil for a recorded event.
func streamOf(e event.Event, recordedID map[string]string) string {
	asked, resolved := replay.InterruptOf(e)
	if id := cmp.Or(asked.ID, resolved); id != "" {
		return "question " + cmp.Or(recordedID[id], id)
	}
	return e.CallID()
}

// report adds a difference at the event e, unless there are already maxDifferences. It sets Run, Seq and Type.
func (c *comparison) report(e event.Event, d Difference) {
	d.Run, d.Seq, d.Type = c.runID, e.Seq, e.Body.Type()
	if len(c.differences) < maxDifferences {
		c.differences = append(c.differences, d)
	}
}

// add compares the next event of the new run with the recorded event that it repeats, which is the next one in the same
// stream. If the recording has no such event, it reports the new one as a difference. recordedID maps the ids of the
// new run's questions so far to the recorded ids. withRecordedIDs replaces the new runs' ids in a text.
func (c *comparison) add(e event.Event, recordedID map[string]string, withRecordedIDs func(string) string) {
	line := withRecordedIDs(string(e.AppendJSON(nil)))
	is := comparedMembers(e, []byte(line))
	was, ok := c.takeRecorded(e, streamOf(e, recordedID))
	if !ok {
		c.report(e, Difference{Notes: "was not recorded: " + formatValue(is)})
		return
	}
	if was.Seq < c.newest {
		c.report(was, Difference{Notes: fmt.Sprintf("comes after event %d", c.newest)})
	}
	c.newest = max(c.newest, was.Seq)
	if was.Body.Type() != e.Body.Type() {
		c.report(was, Difference{Path: "/type", Was: string(was.Body.Type()), Is: string(e.Body.Type())})
		return
	}
	c.compareValues(was, "", comparedMembers(was, was.AppendJSON(nil)), is)
}

// takeRecorded removes the next recorded event from a stream's queue and returns it. ok is false if the recording has
// no event that e could repeat. If only one of the two runs was suspended at this point, that is a single difference: a
// recorded suspension is reported as missing, and a new one takes no event from the queue.
func (c *comparison) takeRecorded(e event.Event, stream string) (was event.Event, ok bool) {
	queue := c.queues[stream]
	if len(queue) == 0 {
		return event.Event{}, false
	}
	_, isSuspended := e.Body.(event.Suspended)
	_, wasSuspended := queue[0].Body.(event.Suspended)
	if isSuspended && !wasSuspended {
		return event.Event{}, false
	}
	if wasSuspended && !isSuspended {
		c.reportMissing(queue[0])
		queue = queue[1:]
	}
	if len(queue) == 0 {
		c.queues[stream] = nil
		return event.Event{}, false
	}
	c.queues[stream] = queue[1:]
	return queue[0], true
}

// finish reports the recorded events that the new run has not repeated. It is called after the new run has ended.
func (c *comparison) finish() {
	var missing []event.Event
	for _, queue := range c.queues {
		missing = append(missing, queue...)
	}
	slices.SortFunc(missing, func(a, b event.Event) int { return int(a.Seq - b.Seq) })
	for _, e := range missing {
		c.reportMissing(e)
	}
}

// reportMissing reports that the new run did not repeat e, a recorded event.
func (c *comparison) reportMissing(e event.Event) {
	members := comparedMembers(e, e.AppendJSON(nil))
	c.report(e, Difference{Notes: "is missing: " + formatValue(members)})
}

// stall reports that the new run does not continue, at the first recorded event that it has not repeated.
func (c *comparison) stall() {
	next := c.last
	for _, queue := range c.queues {
		if len(queue) > 0 && queue[0].Seq < next.Seq {
			next = queue[0]
		}
	}
	c.report(next, Difference{Notes: "the run does not come to this event; it was cancelled"})
}

// notCompared lists the members of events that are not compared, because they are ids or times.
var notCompared = []string{
	"run_id", "seq", "ts", "thread_id", "trace_id", "interrupt_id", "part_id", "expires_at", "created_at", "duration_ms", "parent_run_id", "child_run_id",
}

// comparedMembers returns the members of e that are compared. line is the JSON of e. Ids, times and estimates are left
// out, because they differ from run to run. If line is not an object, the result has the whole line.
func comparedMembers(e event.Event, line []byte) map[string]any {
	decoded, _ := decodeExact(line)
	out, ok := decoded.(map[string]any)
	if !ok {
		return map[string]any{"line": string(line)}
	}
	for _, name := range notCompared {
		delete(out, name)
	}
	switch b := e.Body.(type) {
	case event.Budget:
		switch b.Limit {
		case timeLimit:
			delete(out, "used")
		case contextLimit: // estimates, from sizes in errors of the endpoint and from instructions that are not recorded
			delete(out, "used")
			delete(out, "max")
		}
	case event.BudgetRequired:
		deleteTimeUsed(out)
	case event.Suspended:
		interrupts, _ := out["interrupts"].([]any)
		for _, item := range interrupts {
			interrupt, _ := item.(map[string]any) // delete does nothing with a nil map
			deleteTimeUsed(interrupt)
			delete(interrupt, "id")
			for _, name := range notCompared {
				delete(interrupt, name)
			}
		}
	}
	return out
}

// deleteTimeUsed removes from a question about the time limit how much of it was used, and the message, which says the
// same. It leaves questions about other limits as they are.
func deleteTimeUsed(question map[string]any) {
	if question["limit"] == timeLimit {
		delete(question, "used")
		delete(question, "message")
	}
}

// decodeExact decodes JSON for a comparison. Equal numbers become equal values even if they are spelled differently,
// such as 1 and 1.0. Different integers remain different, even those that a float64 would round to the same number. It
// returns an error unless data is exactly one JSON value.
func decodeExact(data []byte) (value any, err error) {
	if !json.Valid(data) { // a Decoder would accept text after the first value
		return nil, errors.New("it is not JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return nil, err
	}
	return normalizeNumbers(value), nil
}

// normalizeNumbers returns value with each json.Number replaced by a float64. It keeps integers from 2^53, which a
// float64 may round, and numbers that are out of range. It changes lists and objects in place.
func normalizeNumbers(value any) any {
	switch v := value.(type) {
	case json.Number:
		f, err := v.Float64()
		isLargeInteger := math.Abs(f) >= 1<<53 && !strings.ContainsAny(v.String(), ".eE")
		if err == nil && !isLargeInteger {
			return f
		}
	case []any:
		for i := range v {
			v[i] = normalizeNumbers(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = normalizeNumbers(v[name])
		}
	}
	return value
}

// compareValues reports where two values differ. It compares objects member by member, and lists of the same length
// item by item. path is the values' JSON pointer in the event e.
func (c *comparison) compareValues(e event.Event, path string, was, is any) {
	if reflect.DeepEqual(was, is) {
		return
	}
	wasMembers, wasObject := was.(map[string]any)
	isMembers, isObject := is.(map[string]any)
	if wasObject && isObject {
		names := slices.Sorted(maps.Keys(wasMembers))
		for name := range isMembers {
			if _, both := wasMembers[name]; !both {
				names = append(names, name)
			}
		}
		for _, name := range names {
			c.compareValues(e, string(jsontext.Pointer(path).AppendToken(name)), wasMembers[name], isMembers[name])
		}
		return
	}
	wasItems, wasList := was.([]any)
	isItems, isList := is.([]any)
	if wasList && isList && len(wasItems) == len(isItems) {
		for i := range wasItems {
			c.compareValues(e, path+"/"+strconv.Itoa(i), wasItems[i], isItems[i])
		}
		return
	}
	c.report(e, Difference{Path: path, Was: formatValue(was), Is: formatValue(is)})
}

// formatValue returns a value as JSON for a person, shortened if necessary.
func formatValue(v any) string {
	if v == nil {
		return "nothing"
	}
	text, _ := json.Marshal(v) // cannot fail, because v was decoded from JSON
	if len(text) > maxShown {
		return string(text[:maxShown]) + "…"
	}
	return string(text)
}
