package event_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/memory"
)

var call = event.Call{CallID: "c1", Tool: "t", Server: "s"}

// appendTypes appends bodies to a new run through a Writer, up to the first error, and
// returns the types of the run's events and that error.
func appendTypes(t *testing.T, bodies ...event.Body) ([]string, error) {
	t.Helper()
	log := memory.New(memory.Options{})
	createRun(t, log)
	w := event.NewWriter(log, "run_a")
	var err error
	for _, b := range bodies {
		if err = w.Append(t.Context(), b); err != nil {
			break
		}
	}
	page, readErr := log.After(t.Context(), "run_a", 0)
	if readErr != nil {
		t.Fatal(readErr)
	}
	var got []string
	for _, e := range page.Events {
		got = append(got, string(e.Body.Type()))
	}
	return got, err
}

// createRun creates run_a.
func createRun(t *testing.T, log event.Log) {
	t.Helper()
	if err := log.Create(t.Context(), event.Run{ID: "run_a"}); err != nil {
		t.Fatal(err)
	}
}

func TestWriterClosesWhatIsOpenBeforeTheTerminalEvent(t *testing.T) {
	for _, c := range []struct {
		name   string
		bodies []event.Body
		want   string
	}{
		{"text", []event.Body{event.Start{}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}, event.RunError{}},
			"start step_start text_start text_end step_end run_error"},
		{"reasoning", []event.Body{event.Start{}, event.StepStart{Step: 1}, event.ReasoningStart{PartID: "p"}, event.Cancelled{}},
			"start step_start reasoning_start reasoning_end step_end cancelled"},
		{"a call being written", []event.Body{event.Start{}, event.StepStart{Step: 1}, event.ToolCallStart{Call: call}, event.ToolCallArgs{Call: call, Delta: "{"}, event.RunError{}},
			"start step_start tool_call_start tool_call_args tool_call tool_error step_end run_error"},
		{"a call running", []event.Body{event.Start{}, event.ToolCallStart{Call: call}, event.ToolCall{Call: call}, event.ToolProgress{Call: call}, event.Cancelled{}},
			"start tool_call_start tool_call tool_progress tool_error cancelled"},
		{"nothing", []event.Body{event.Start{}, event.FinalAnswer{}}, "start final_answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := appendTypes(t, c.bodies...)
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("events are %v, %v, want %s", got, err, c.want)
			}
		})
	}
}

// A reader that does not know step_reset still sees the end of every part and every call.
func TestWriterClosesWhatIsOpenBeforeStepReset(t *testing.T) {
	another := event.Call{CallID: "c2"}
	got, err := appendTypes(t, event.Start{}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}, event.ToolCallStart{Call: call}, event.ToolCall{Call: call},
		event.ToolCallStart{Call: another}, event.ToolCallArgs{Call: another, Delta: "{"}, event.StepReset{Step: 1},
		event.TextStart{PartID: "q"}, event.TextEnd{PartID: "q"}, event.StepEnd{Step: 1}, event.FinalAnswer{})
	want := "start step_start text_start tool_call_start tool_call tool_call_start tool_call_args text_end tool_error tool_call tool_error step_reset " +
		"text_start text_end step_end final_answer"
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("events are\n%v, %v, want\n%s", got, err, want)
	}
}

func TestWriterAppendsNothingOnceSealed(t *testing.T) {
	log := memory.New(memory.Options{})
	createRun(t, log)
	w := event.NewWriter(log, "run_a")
	if err := w.Append(t.Context(), event.Start{}); err != nil {
		t.Fatal(err)
	}
	w.Seal()
	for _, b := range []event.Body{event.StepStart{Step: 1}, event.RunError{}} {
		if err := w.Append(t.Context(), b); !errors.Is(err, event.ErrFenced) {
			t.Errorf("Append(%s) = %v, want %v", b.Type(), err, event.ErrFenced)
		}
	}
	if r, err := log.Run(t.Context(), "run_a"); err != nil || r.Last.Seq != 1 {
		t.Errorf("last event is %d, %v, want 1", r.Last.Seq, err)
	}
}

func TestWriterRefusesWhatWouldBreakTheOrder(t *testing.T) {
	start, step := event.Start{}, event.StepStart{Step: 1}
	started, complete := event.ToolCallStart{Call: call}, event.ToolCall{Call: call}
	for _, c := range []struct {
		name   string
		bodies []event.Body
	}{
		{"something before start", []event.Body{step}},
		{"the end before start", []event.Body{event.RunError{}}},
		{"start twice", []event.Body{start, start}},
		{"a step in a step", []event.Body{start, step, event.StepStart{Step: 2}}},
		{"the end of another step", []event.Body{start, step, event.StepEnd{Step: 2}}},
		{"a step's end with open text", []event.Body{start, step, event.TextStart{PartID: "p"}, event.StepEnd{Step: 1}}},
		{"two texts at once", []event.Body{start, step, event.TextStart{PartID: "p"}, event.TextStart{PartID: "q"}}},
		{"text outside a step", []event.Body{start, event.TextStart{PartID: "p"}}},
		{"a delta of no part", []event.Body{start, step, event.TextDelta{PartID: "p"}}},
		{"a delta of another part", []event.Body{start, step, event.TextStart{PartID: "p"}, event.TextDelta{PartID: "q"}}},
		{"reasoning closed as text", []event.Body{start, step, event.ReasoningStart{PartID: "p"}, event.TextEnd{PartID: "p"}}},
		{"a call that never started", []event.Body{start, complete}},
		{"a call started twice", []event.Body{start, started, started}},
		{"a call completed twice", []event.Body{start, started, complete, complete}},
		{"arguments after the call", []event.Body{start, started, complete, event.ToolCallArgs{Call: call}}},
		{"progress before the call", []event.Body{start, started, event.ToolProgress{Call: call}}},
		{"a result before the call", []event.Body{start, started, event.ToolResult{Call: call}}},
		{"two results", []event.Body{start, started, complete, event.ToolResult{Call: call}, event.ToolError{Call: call}}},
		{"progress after the result", []event.Body{start, started, complete, event.ToolResult{Call: call}, event.ToolProgress{Call: call}}},
		{"the reset of another step", []event.Body{start, step, event.TextStart{PartID: "p"}, event.StepReset{Step: 2}}},
		{"a call id used again", []event.Body{start, started, complete, event.ToolResult{Call: call}, started}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := appendTypes(t, c.bodies...)
			var order *event.OrderError
			if !errors.As(err, &order) || len(got) != len(c.bodies)-1 {
				t.Errorf("events are %v, %v, want all but the last one and an OrderError", got, err)
			}
		})
	}
}

func TestWriterAppendsOneTerminalEvent(t *testing.T) {
	for _, after := range []event.Body{event.FinalAnswer{}, event.RunError{}, event.Cancelled{}, event.Budget{}} {
		if _, err := appendTypes(t, event.Start{}, event.FinalAnswer{}, after); !errors.Is(err, event.ErrEnded) {
			t.Errorf("Append(%s) after the terminal event = %v, want %v", after.Type(), err, event.ErrEnded)
		}
	}
}

func TestTypesAvoidTheNamesOfEventSource(t *testing.T) {
	all := event.Types()
	for _, name := range []event.Type{"error", "open", "message"} {
		if slices.Contains(all, name) {
			t.Errorf("Types has %q, which browsers use themselves, all %q, want no %q", name, all, name)
		}
	}
}

// A type without a decoder would be Unknown to readers of a durable log.
func TestTypesHasEveryBody(t *testing.T) {
	source, err := os.ReadFile("type.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []event.Type
	for _, match := range regexp.MustCompile(`Type\(\) Type +{ return "(\w+)" }`).FindAllSubmatch(source, -1) {
		want = append(want, event.Type(match[1]))
	}
	if got := event.Types(); !slices.Equal(got, want) {
		t.Errorf("Types = %q, want those of type.go, %q: decoders lacks one", got, want)
	}
}

// Arguments that are not JSON must be refused, and not be made into JSON.
func TestWriterRefusesArgumentsThatAreNotJSON(t *testing.T) {
	got, err := appendTypes(t, event.Start{}, event.ToolCallStart{Call: call}, event.ToolCall{Call: call, Args: []byte(`{"a":`)})
	if err == nil || len(got) != 2 {
		t.Errorf("events are %v, %v, want the first two and an error", got, err)
	}
}

// An event that the log refused must not count: otherwise the end would not close what it has closed.
func TestWriterClosesWhatTheLogHasOpen(t *testing.T) {
	log := memory.New(memory.Options{})
	createRun(t, log)
	w := event.NewWriter(log, "run_a")
	for _, b := range []event.Body{event.Start{}, event.StepStart{Step: 1}, event.ToolCallStart{Call: call}} {
		if err := w.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Append(t.Context(), event.ToolCall{Call: call, Args: []byte(`{"a":`)}); err == nil {
		t.Error("Append of a call whose arguments are not JSON = nil, want an error")
	}
	if err := w.Append(t.Context(), event.RunError{}); err != nil {
		t.Fatal(err)
	}
	page, err := log.After(t.Context(), "run_a", 0)
	var got []string
	for _, e := range page.Events {
		got = append(got, string(e.Body.Type()))
	}
	if want := "start step_start tool_call_start tool_call tool_error step_end run_error"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("events are %v, %v, want %s", got, err, want)
	}
}
