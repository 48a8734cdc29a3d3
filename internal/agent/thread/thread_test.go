package thread

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"answerd/internal/event"
	"answerd/internal/llm"
)

func TestTurnHasTheWholeOfASmallRun(t *testing.T) {
	failure := "no"
	turn := Turn{
		Version: version, Agent: "a", After: "run_1", Question: "What?", Status: event.StatusCompleted, Asked: 1, EndedAt: 2,
		Given: []Message{{Role: "tool", Content: "blue", CallID: "c"}}, Media: []llm.Media{{Name: "a.png", MIME: "image/png", Data: "iVBORw0KGgo="}},
		Steps: []Step{{Text: "Let me see.", Calls: []Call{{CallID: "1", Tool: "add", Server: "s", Args: json.RawMessage(`{}`), Payload: json.RawMessage(`{"sum":3}`)}, {CallID: "2", Tool: "echo", ArgsText: "[", Error: &failure}}}, {Text: "3."}},
	}
	got, err := Decode(turn.Encode())
	if err != nil || !reflect.DeepEqual(got, turn) {
		t.Errorf("decoded %+v, %v, want %+v", got, err, turn)
	}
	if n := len(turn.Messages()); n != 6 || turn.Answer() != "3." {
		t.Errorf("%d messages, answer %q, want 6 and 3.", n, turn.Answer())
	}

	for _, bad := range []string{"", "{}", `{"version":2}`, "[]"} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("Decode(%q) has no error, want one", bad)
		}
	}
}

// The bound of a turn never makes a run fail.
func TestTurnFitsItsBound(t *testing.T) {
	long := strings.Repeat("é\"", 600<<10)
	quoted, _ := json.Marshal(long)

	var calls []Call
	for range 100 {
		calls = append(calls, Call{CallID: "1", Tool: "add", Payload: json.RawMessage(`"` + strings.Repeat("x", 64<<10) + `"`)})
	}

	for name, turn := range map[string]Turn{
		"a file":          {Question: "What?", Media: []llm.Media{{Name: "a.png", MIME: "image/png", Data: strings.Repeat("AAAA", 256<<10)}}},
		"a text file":     {Question: "What?", Media: []llm.Media{{Name: "a.txt", MIME: "text/plain", Data: strings.Repeat("AAAA", 256<<10)}}},
		"an address":      {Question: "What?", Media: []llm.Media{{URL: "https://example.com/" + long}}},
		"addresses":       {Question: "What?", Media: slices.Repeat([]llm.Media{{URL: "https://example.com/" + long[:60<<10]}}, 16)},
		"a question":      {Question: long},
		"a result":        {Question: "What?", Steps: []Step{{Calls: []Call{{Payload: quoted}}}, {Text: "3."}}},
		"arguments":       {Question: "What?", Steps: []Step{{Calls: []Call{{Args: json.RawMessage(`{"a":` + string(quoted) + `}`)}}}, {Text: "3."}}},
		"many results":    {Question: "What?", Steps: []Step{{Calls: calls}, {Text: "3."}}},
		"an answer":       {Question: "What?", Steps: []Step{{Text: long}}},
		"given messages":  {Question: "What?", Given: []Message{{Role: "tool", Content: long}, {Role: "user", Media: []llm.Media{{MIME: "image/png", Data: long}}}}},
		"countless steps": {Question: "What?", Steps: manySteps(30_000)},
	} {
		data := turn.Encode()
		got, err := Decode(data)
		if err != nil || len(data) > event.MaxTurn {
			t.Errorf("%s: %d bytes, %v, want at most %d", name, len(data), err, event.MaxTurn)
		}
		if got.Question == "" || len(turn.Steps) > 0 && got.Answer() == "" {
			t.Errorf("%s: question %q, answer %q, want some of both", name, got.Question, got.Answer())
		}
	}

	if got, _ := Decode(Turn{Question: "What?", Media: []llm.Media{{Name: "a.png", MIME: "image/png", Data: strings.Repeat("AAAA", 256<<10)}}}.Encode()); !strings.Contains(got.Question, "a.png") || got.Media != nil {
		t.Errorf("question %q, %d files, want the name of the file and no file", got.Question, len(got.Media))
	}
}

func manySteps(n int) []Step {
	steps := make([]Step, n)
	for i := range steps {
		steps[i] = Step{Text: "x", Calls: []Call{{CallID: "1", Tool: "add"}}}
	}
	return steps
}

func TestTitleIsTheFirstLineOfTheQuestion(t *testing.T) {
	for question, want := range map[string]string{
		"": "", "\n \n": "", " What? ": "What?", "\n\nWhat?\nWhy?": "What?", "a\xffb": "a\uFFFDb",
		strings.Repeat("é", 200): strings.Repeat("é", 100),
	} {
		if got := Title(question); got != want || len(got) > event.MaxTitle || !utf8.ValidString(got) {
			t.Errorf("Title(%q) = %q, want %q", question, got, want)
		}
	}
}

// buildTurn returns the turn of a run that ends with end.
func buildTurn(end event.Body, bodies ...event.Body) Turn {
	var b Builder
	for _, body := range append([]event.Body{event.Start{Question: "?"}}, bodies...) {
		b.Add(body)
	}
	return b.Turn(end)
}

func TestBuilderKeepsTextsAndEndedCalls(t *testing.T) {
	call := event.Call{CallID: "1", Tool: "add", Server: "s"}
	start, text := event.StepStart{Step: 1}, event.TextDelta{PartID: "p", Delta: "Let me see."}
	made, result := event.ToolCall{Call: call, Args: json.RawMessage(`{}`)}, event.ToolResult{Call: call, Args: json.RawMessage(`{"a":1}`), Payload: json.RawMessage(`3`)}

	cancelled := event.ToolError{Call: call, Kind: "cancelled", Payload: "The run ended before this call did."}
	second := event.StepStart{Step: 2}
	whole := "user|assistant:Let me see. add{\"a\":1}|tool:3"
	for name, c := range map[string]struct {
		end    event.Body
		bodies []event.Body
		want   string
	}{
		"completed":                     {event.FinalAnswer{Answer: "3."}, []event.Body{start, text, made, result, second, event.TextDelta{Delta: "3."}}, whole + "|assistant:3."},
		"cancelled after a call":        {event.Cancelled{}, []event.Body{start, text, made, result, second}, whole},
		"cancelled within the answer":   {event.Cancelled{PartialAnswer: "3"}, []event.Body{start, text, made, result, second, event.TextDelta{Delta: "3"}}, whole + "|assistant:3"},
		"cancelled during a call":       {event.Cancelled{PartialAnswer: "Let me see."}, []event.Body{start, text, made}, "user|assistant:Let me see."},
		"the same, read from the log":   {event.Cancelled{PartialAnswer: "Let me see."}, []event.Body{start, text, made, cancelled}, "user|assistant:Let me see."},
		"failed with its text withheld": {event.RunError{}, []event.Body{start, text}, "user"},
		"a step that was reset":         {event.FinalAnswer{Answer: "3."}, []event.Body{start, text, made, event.StepReset{Step: 1}, event.TextDelta{Delta: "3."}}, "user|assistant:3."},
		"an answer that was repaired":   {event.FinalAnswer{Answer: "{}"}, []event.Body{start, text, second, event.TextDelta{Delta: "{}"}}, "user|assistant:{}"},
		"a call of the caller's tool":   {event.FinalAnswer{}, []event.Body{start, event.ToolCall{Call: call, Args: json.RawMessage(`{}`), Executor: event.Client}}, "user|assistant:add{}"},
		"before the first step":         {event.RunError{}, nil, "user"},
	} {
		turn := buildTurn(c.end, c.bodies...)
		turn.Question = "?"
		var got []string
		for _, m := range turn.Messages() {
			line := m.Role
			if m.Content != "" && m.Role != "user" {
				line += ":" + m.Content
			}
			for _, c := range m.Calls {
				if !strings.Contains(line, ":") {
					line += ":"
				} else {
					line += " "
				}
				line += c.Name + c.Arguments
			}
			got = append(got, line)
		}
		if joined := strings.Join(got, "|"); joined != c.want {
			t.Errorf("%s: %s, want %s", name, joined, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Turn{Question: "?", Steps: []Step{{Text: "x", Calls: []Call{{CallID: "1", Tool: "add", Payload: json.RawMessage(`"x"`)}}}}}.Encode())
	f.Add([]byte(`{"version":1,"steps":[{"calls":[{"payload":5},{"error":""}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		turn, err := Decode(data)
		if err != nil {
			return
		}
		_ = turn.Messages()
		if again := turn.Encode(); len(again) > event.MaxTurn {
			t.Errorf("%d bytes, want at most %d", len(again), event.MaxTurn)
		}
	})
}
