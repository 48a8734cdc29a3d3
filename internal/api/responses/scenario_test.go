package responses_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"answerd/internal/api/responses"
	"answerd/internal/api/scenario"
	"answerd/internal/event"
)

// The responses that a run is: the stream of each and behind it the response as it is
// retrieved. One begins where the one before it came to wait for approvals. A run that waits for
// forms was started in another format, and is one response.
func TestScenarios(t *testing.T) {
	for _, s := range scenario.All(t) {
		t.Run(s.Name, func(t *testing.T) {
			var got []byte
			previous, parts := "", s.Segments()
			whole := slices.ContainsFunc(s.Events, func(e event.Event) bool { return e.Body.Type() == "elicitation" })
			if whole {
				parts = []scenario.Segment{{Events: s.Events}}
			}

			for _, part := range parts {
				span := responses.Span{After: part.After}
				head := responses.Header{
					ID: responses.FormatID(scenario.RunID, span), Model: "m", Created: time.Unix(1_795_000_000, 0), Span: span, PreviousID: previous, Whole: whole,
				}
				previous = head.ID
				stream, enc := encodeScenario(head, s)
				if !enc.HasEnded() {
					t.Errorf("the response after %d has no end, want one", part.After)
				}
				response, err := json.MarshalIndent(enc.Response(), "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				got = append(append(append(got, stream...), response...), '\n')
				checkResume(t, head, s, stream)
			}
			s.Golden(t, "responses.golden", got)
		})
	}
}

func encodeScenario(head responses.Header, s scenario.Scenario) (stream []byte, enc *responses.Encoder) {
	enc = responses.NewEncoder(head)
	for _, e := range s.Events {
		if _, over := e.Body.(event.Suspended); over && head.Whole && e.Seq != s.Events[len(s.Events)-1].Seq {
			enc.Resume(e.Seq)
		}
		for _, f := range enc.Encode(e) {
			stream = f.AppendTo(stream)
		}
	}
	return stream, enc
}

// checkResume checks that a stream that resumes after any frame has the same remaining frames.
func checkResume(t *testing.T, head responses.Header, s scenario.Scenario, whole []byte) {
	t.Helper()
	frames := strings.SplitAfter(string(whole), "\n\n")
	for n := range frames[:len(frames)-2] {
		head.Skip = n
		if rest, _ := encodeScenario(head, s); string(rest) != strings.Join(frames[n:], "") {
			t.Fatalf("after %d frames the stream goes on with %s, want frames[n:]", n, rest)
		}
	}
}

// Both approvals of an asked agent have the call of the agent that asks.
func TestResponseOfAWholeRunRequestsEachApprovalOnce(t *testing.T) {
	ask := event.Call{CallID: "c", Tool: "ask_b"}
	head := responses.Header{ID: "resp_1", Model: "m", Whole: true}
	_, enc := encodeScenario(head, scenario.Scenario{Events: []event.Event{
		{Seq: 1, Body: event.Start{}},
		{Seq: 2, Body: event.ApprovalRequired{Call: ask, InterruptID: "int_1", ChildRunID: "run_b"}},
		{Seq: 3, Body: event.ApprovalRequired{Call: ask, InterruptID: "int_2", ChildRunID: "run_b"}},
		{Seq: 4, Body: event.Suspended{}},
	}})
	response, err := json.Marshal(enc.Response())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(response), `"mcp_approval_request"`); n != 2 {
		t.Errorf("got %d approval requests in %s, want 2", n, response)
	}
}
