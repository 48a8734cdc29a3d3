package rerun

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"answerd/internal/agent/replay"
	"answerd/internal/event"
)

// Difference is a difference between a recorded run and the new one.
type Difference struct {
	Run   string     `json:"run_id"` // the recorded run
	Seq   int64      `json:"seq"`    // of the recorded event, or of the new one if none was recorded
	Type  event.Type `json:"type"`
	Path  string     `json:"path,omitempty"` // a JSON pointer into the event; "" if the event is missing or new
	Was   string     `json:"was,omitempty"`
	Is    string     `json:"is,omitempty"`
	Notes string     `json:"notes,omitempty"`
}

// String returns the difference as one line.
func (d Difference) String() string {
	at := fmt.Sprintf("%s event %d %s", d.Run, d.Seq, d.Type)
	if d.Path == "" {
		return at + ": " + d.Notes
	}
	return fmt.Sprintf("%s %s: was %s, is %s", at, d.Path, d.Was, d.Is)
}

// startEvent stands for the event of differences that are in none.
var startEvent = event.Event{Body: event.Start{}}

// maxShown bounds a value in a difference, in bytes.
const maxShown = 200

// maxDifferences bounds the differences of one run that are listed.
const maxDifferences = 50

// comparison compares the events of a run with the recorded ones. Calls that are made at the same time may
// interleave in another way, so the events of each call are compared in their order, and all other events
// in theirs.
type comparison struct {
	rec         *recording
	queues      map[string][]event.Event // recorded events that have not come yet, by streamOf
	questions   map[string]string        // of child runs in the new run, for streamOf
	differences []Difference
}

func newComparison(rec *recording) comparison {
	c := comparison{rec: rec, queues: make(map[string][]event.Event), questions: make(map[string]string)}
	questions := make(map[string]string)
	for _, e := range rec.events {
		id := streamOf(e, questions)
		c.queues[id] = append(c.queues[id], e)
	}
	return c
}

// streamOf returns a name for the events whose order counts: those of one call, or of one question of its child
// run, since several of these are asked and answered at the same time. Others have the name "". questions has
// the names of the questions so far, by interrupt.
func streamOf(e event.Event, questions map[string]string) string {
	asked, resolved := replay.InterruptOf(e)
	if asked.ChildRunID != "" {
		questions[asked.ID] = fmt.Sprintf("%s %s %s %s", asked.CallID, asked.Tool, asked.Args, asked.Message)
		return questions[asked.ID]
	}
	if name := questions[resolved]; name != "" {
		return name
	}
	return e.CallID()
}

func (c *comparison) report(d Difference) {
	if d.Run = c.rec.doc.Run.ID; len(c.differences) < maxDifferences {
		c.differences = append(c.differences, d)
	}
}

// add compares the next event of the new run, and returns the recorded one; nil if there is none.
func (c *comparison) add(e event.Event, renamed func(string) string) *event.Event {
	id := streamOf(e, c.questions)
	if c.skipsSuspended(e, id) {
		return nil
	}
	if len(c.queues[id]) == 0 {
		c.report(Difference{Seq: e.Seq, Type: e.Body.Type(), Notes: "was not recorded: " + show(comparable(e, []byte(renamed(string(e.AppendJSON(nil))))))})
		return nil
	}
	was := c.queues[id][0]
	c.queues[id] = c.queues[id][1:]
	if was.Body.Type() != e.Body.Type() {
		c.report(Difference{Seq: was.Seq, Type: was.Body.Type(), Path: "/type", Was: string(was.Body.Type()), Is: string(e.Body.Type())})
		return &was
	}
	c.compareValues(was, "", comparable(was, was.AppendJSON(nil)), comparable(e, []byte(renamed(string(e.AppendJSON(nil))))))
	return &was
}

// skipsSuspended reports whether e says that the run is suspended where the recorded one was not, and drops a
// recorded event that says so where the new run is not suspended. A run whose last question is answered while
// another call ends is suspended for a moment or not at all; only time decides. The questions and their answers
// are compared all the same.
func (c *comparison) skipsSuspended(e event.Event, id string) bool {
	_, suspended := e.Body.(event.Suspended)
	queue := c.queues[id]
	if len(queue) == 0 {
		return suspended
	}
	if _, was := queue[0].Body.(event.Suspended); was && !suspended && id == "" {
		c.queues[id] = queue[1:]
		return false
	} else if suspended && !was {
		return true
	}
	return false
}

// finish reports the recorded events that did not come.
func (c *comparison) finish() {
	var left []event.Event
	for _, q := range c.queues {
		left = append(left, q...)
	}
	slices.SortFunc(left, func(a, b event.Event) int { return int(a.Seq - b.Seq) })
	for _, e := range left {
		c.report(Difference{Seq: e.Seq, Type: e.Body.Type(), Notes: "is missing: " + show(comparable(e, e.AppendJSON(nil)))})
	}
}

// stall reports that the run does not go on.
func (c *comparison) stall() {
	next := c.rec.events[len(c.rec.events)-1]
	for _, q := range c.queues {
		if len(q) > 0 && q[0].Seq < next.Seq {
			next = q[0]
		}
	}
	c.report(Difference{Seq: next.Seq, Type: next.Body.Type(), Notes: "the run does not come to this event; it was cancelled"})
}

// omitted are the members that are ids, times, or a fact of the connection to a server.
var omitted = []string{
	"run_id", "seq", "ts", "thread_id", "trace_id", "interrupt_id", "part_id", "expires_at", "created_at", "duration_ms", "parent_run_id", "child_run_id", "held_open",
}

// comparable returns the members of an event that are compared.
func comparable(e event.Event, line []byte) map[string]any {
	var out map[string]any
	if json.Unmarshal(line, &out) != nil {
		return map[string]any{"line": string(line)}
	}
	for _, name := range omitted {
		delete(out, name)
	}
	switch b := e.Body.(type) {
	case event.Budget:
		if b.Limit == "seconds" {
			delete(out, "used")
		}
	case event.ToolError:
		if b.Payload == calledOff || b.Payload == runEnded { // whichever of the two came first
			out["payload"] = calledOff
			delete(out, "args")
		}
	case event.Suspended:
		all, _ := out["interrupts"].([]any)
		for _, one := range all {
			if i, ok := one.(map[string]any); ok {
				delete(i, "id")
				for _, name := range omitted {
					delete(i, name)
				}
			}
		}
		slices.SortFunc(all, func(a, b any) int { return compareText(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	return out
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// compareValues reports where two values differ.
func (c *comparison) compareValues(e event.Event, path string, was, is any) {
	if reflect.DeepEqual(was, is) {
		return
	}
	a, aObject := was.(map[string]any)
	b, bObject := is.(map[string]any)
	if aObject && bObject {
		names := slices.Sorted(maps.Keys(a))
		for name := range b {
			if _, both := a[name]; !both {
				names = append(names, name)
			}
		}
		for _, name := range names {
			c.compareValues(e, path+"/"+name, a[name], b[name])
		}
		return
	}
	x, xList := was.([]any)
	y, yList := is.([]any)
	if xList && yList && len(x) == len(y) {
		for i := range x {
			c.compareValues(e, path+"/"+strconv.Itoa(i), x[i], y[i])
		}
		return
	}
	c.report(Difference{Seq: e.Seq, Type: e.Body.Type(), Path: path, Was: show(was), Is: show(is)})
}

func show(v any) string {
	if v == nil {
		return "nothing"
	}
	text, _ := json.Marshal(v) // it was decoded from JSON
	return shorten(string(text))
}

// shorten cuts a text to maxShown bytes.
func shorten(text string) string {
	if len(text) <= maxShown {
		return text
	}
	return text[:maxShown] + "…"
}
