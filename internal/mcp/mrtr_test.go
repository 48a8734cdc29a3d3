package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
)

// mrtrRequest is one request of a call in several round trips.
type mrtrRequest struct{ id, state string }

// newUnfinishingServer returns a server of 2026-07-28 that answers the n-th request of a call, from 1,
// with that result.
func newUnfinishingServer(result func(n int) string, rounds chan mrtrRequest) http.Handler {
	return &scriptedServer{stateless: true, call: func(w http.ResponseWriter, _ *http.Request, m message) {
		rounds <- mrtrRequest{string(m.ID), m.Params.State}
		replyJSON(w, m.ID, result(len(rounds)))
	}}
}

// A result that asks for nothing is a server that wants the request again, with its state and
// under a new id (2026-07-28 basic/utilities/mrtr). The round trips are one call, and only the
// last result counts.
func TestCallIsSentAgainWithTheServersState(t *testing.T) {
	t.Parallel()
	rounds := make(chan mrtrRequest, 8)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, newUnfinishingServer(func(n int) string {
		switch n {
		case 1:
			return `{"resultType":"input_required","requestState":"state-1"}`
		case 2:
			return `{"resultType":"input_required","requestState":"state-2","inputRequests":{}}`
		}
		return fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":"after %d"}]}`, n)
	}, rounds)).URL})

	res, err := c.Call(t.Context(), Call{Tool: "t"})
	if got := mustResult(t, res, err).Text(); got != "after 3" {
		t.Errorf("got the result %q, want after 3", got)
	}
	first, second, third := <-rounds, <-rounds, <-rounds
	if first.state != "" || second.state != "state-1" || third.state != "state-2" || first.id == second.id || second.id == third.id {
		t.Errorf("got the requests %v, %v, %v, want new ids and the states \"\", state-1, state-2", first, second, third)
	}
}

// A server that accepts no answer, such as that a person declines, is asked ten times, and its
// caller learns why the call failed.
func TestCallFailsAfterTooManyRoundTrips(t *testing.T) {
	const ask = `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{}}}}}}`
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, newUnfinishingServer(func(int) string { return ask }, make(chan mrtrRequest, 64))).URL})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Protocol || !strings.HasPrefix(e.Message, "MCP server a: it asks again and again, whatever the answer;") {
		t.Errorf("got %s: %s, want %s: it asks again and again", e.Kind, e.Message, Protocol)
	}
}

// A server that never finishes costs no more than the time of the call.
func TestCallWithEndlessRoundTripsTimesOut(t *testing.T) {
	t.Parallel()
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, newUnfinishingServer(func(int) string {
		return `{"resultType":"input_required","requestState":"again"}`
	}, make(chan mrtrRequest, 64))).URL, Timeout: 300 * time.Millisecond})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if got := mustFail(t, err).Kind; got != Timeout {
		t.Errorf("got %s: %v, want %s", got, err, Timeout)
	}
}

// The input that a server requires is stored, so its size is limited. Beyond the limit the call
// fails.
func TestInputRequiredBeyondItsBoundsIsTooLarge(t *testing.T) {
	for name, result := range map[string]string{
		"requestState":  `{"resultType":"input_required","requestState":"` + strings.Repeat("x", content.MaxRequestState+1) + `"}`,
		"inputRequests": `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"` + strings.Repeat("x", content.MaxInputRequests) + `"}}}}`,
	} {
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, newUnfinishingServer(func(int) string { return result }, make(chan mrtrRequest, 64))).URL})
		_, err := c.Call(t.Context(), Call{Tool: "t", Suspend: true})
		if e := mustFail(t, err); e.Kind != TooLarge {
			t.Errorf("%s: got %s: %s, want %s", name, e.Kind, e.Message, TooLarge)
		}
	}
}

// A call that was suspended goes on in another client, by the limit of round trips of one request.
func TestSuspendedCallIsSentAgainByAnotherClient(t *testing.T) {
	const ask = `{"resultType":"input_required","requestState":"s","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{}}}}}}`
	rounds := make(chan mrtrRequest, 64)
	w := serveHTTP(t, newUnfinishingServer(func(int) string { return ask }, rounds))
	var resume *Resumption
	for n := 1; ; n++ {
		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		res, err := c.Call(t.Context(), Call{Tool: "t", Suspend: true, Resume: resume})
		if err != nil {
			if e := mustFail(t, err); e.Kind != Protocol || len(rounds) != 10 {
				t.Errorf("got %s: %s after %d requests, want %s after 10", e.Kind, e.Message, len(rounds), Protocol)
			}
			return
		}
		if res.InputRequired == nil || res.InputRequired.RoundTrips != n {
			t.Fatalf("got %+v, want input required after %d round trips", res, n)
		}
		asked, err := Elicitations(res.InputRequired)
		if err != nil || asked["a"].Message != "who?" {
			t.Fatalf("got the questions %+v, %v, want who?", asked, err)
		}
		resume = &Resumption{Required: res.InputRequired, Answers: map[string]ElicitationResult{"a": {Action: Decline}}}
		_ = c.Close()
	}
}

// A question of an input_required result that cannot be answered ends the call with the reason.
func TestInputRequiredThatCannotBeAnsweredSaysWhy(t *testing.T) {
	for form, want := range map[string]string{
		`{"type":"object","properties":{"a":{"type":"object"}}}`: `the field "a" of the requested schema is neither a text, a number, a boolean nor a choice`,
		`{"type":"array"}`: "the requested schema is not of type object",
	} {
		h := streamableHandler(t, newToolServer(func(s *sdk.Server) {
			addRawTool(s, "ask", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{Mode: "form", Message: "m", RequestedSchema: json.RawMessage(form)}}}, nil
			})
		}), flavours["stateless json"])
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, h).URL})
		for _, suspend := range []bool{true, false} {
			_, err := c.Call(t.Context(), Call{Tool: "ask", Suspend: suspend, Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
				return ElicitationResult{Action: Decline}, nil
			}})
			if e := mustFail(t, err); e.Kind != Protocol || !strings.Contains(e.Message, want) {
				t.Errorf("%s: got %s: %s, want %s: %s", form, e.Kind, e.Message, Protocol, want)
			}
		}
	}
}
