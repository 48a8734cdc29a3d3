package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/schema"
)

const bookingForm = `{"type":"object","properties":{"people":{"type":"integer","minimum":1},"area":{"type":"string","enum":["in","out"]}},"required":["people"]}`

// serveAskTool returns a server whose tool "ask" asks the person its own argument, as the negotiated
// version has it: by a request during the call, or by an input_required result.
func serveAskTool(t *testing.T, flavour string) *httpServer {
	return serveHTTP(t, newAskHandler(t, flavour))
}

// newAskHandler returns the handler of serveAskTool.
func newAskHandler(t testing.TB, flavour string) http.Handler {
	return streamableHandler(t, newToolServer(func(s *sdk.Server) {
		addRawTool(s, "ask", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			given := r.Params.InputResponses["q"]
			if given == nil {
				return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{
					Mode: "form", Message: string(r.Params.Arguments), RequestedSchema: json.RawMessage(bookingForm),
				}}}, nil
			}
			said, err := json.Marshal(given)
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
		})
	}), flavours[flavour])
}

// In one session that all calls share, each elicitation reaches the person behind its own call,
// and the answer its own call.
func TestElicitationReachesThePersonBehindItsCall(t *testing.T) {
	t.Parallel()
	for _, flavour := range []string{"stateful sse", "stateless sse", "stateless json"} {
		t.Run(flavour, func(t *testing.T) {
			c := newClient(t, Options{MaxConcurrentCalls: 100}, config.Server{Name: "a", URL: serveAskTool(t, flavour).URL})
			c.Tools(t.Context())

			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					args := fmt.Sprintf(`{"n":%d}`, i)
					asked := 0 // without a lock: the race detector sees late ones
					res, err := c.Call(t.Context(), Call{Tool: "ask", Args: json.RawMessage(args), Elicit: func(_ context.Context, e Elicitation) (ElicitationResult, error) {
						asked++
						if e.Message != args || e.Mode != ElicitForm || string(e.Schema) != bookingForm {
							t.Errorf("got the elicitation %+v with the schema %s, want the message %s", e, e.Schema, args)
						}
						return ElicitationResult{Action: Accept, Content: fmt.Appendf(nil, `{"people":%d}`, i+1)}, nil
					}})
					if got := mustResult(t, res, err).Text(); asked != 1 || !strings.Contains(got, fmt.Sprintf(`{"people":%d}`, i+1)) {
						t.Errorf("got %s after %d elicitations, want %d people after 1", got, asked, i+1)
					}
				})
			}
			wg.Wait()
		})
	}
}

// The content of an accepted form is never left out, even if no field was filled in: servers of the Python SDK
// fail without it (src/mcp/server/elicitation.py).
func TestAcceptedFormWithoutFieldsHasContent(t *testing.T) {
	for _, flavour := range []string{"stateful sse", "stateless json"} {
		h := streamableHandler(t, newToolServer(func(s *sdk.Server) {
			addRawTool(s, "ask", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				if r.Params.InputResponses["q"] == nil {
					form := json.RawMessage(`{"type":"object","properties":{"note":{"type":"string"}}}`)
					return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{Mode: "form", Message: "Anything else?", RequestedSchema: form}}}, nil
				}
				return &sdk.CallToolResult{Content: []sdk.Content{}}, nil
			})
		}), flavours[flavour])

		var hasContent atomic.Bool
		w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(peekBody(r), `{"action":"accept","content":{}}`) {
				hasContent.Store(true)
			}
			h.ServeHTTP(w, r)
		}))

		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			return ElicitationResult{Action: Accept, Content: json.RawMessage(`{}`)}, nil
		}})
		mustResult(t, res, err)
		if !hasContent.Load() {
			t.Errorf("%s: got no answer with content, want an empty object", flavour)
		}
	}
}

func TestElicitationWithoutAPersonIsDeclined(t *testing.T) {
	for _, flavour := range []string{"stateful sse", "stateless json"} {
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveAskTool(t, flavour).URL})
		for want, elicit := range map[string]func(context.Context, Elicitation) (ElicitationResult, error){
			Decline: nil,
			Cancel: func(context.Context, Elicitation) (ElicitationResult, error) {
				return ElicitationResult{}, errors.New("nobody")
			},
		} {
			res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: elicit})
			if got := mustResult(t, res, err).Text(); !strings.Contains(got, want) {
				t.Errorf("%s: got %s, want %s", flavour, got, want)
			}
		}
	}
}

// A person may take longer than the whole time of the call; afterwards the call continues.
func TestElicitationStopsTheTimeOfItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, Options{Transport: inProcessTransport(newAskHandler(t, "stateless json"))}, config.Server{Name: "a", URL: "http://localhost", Timeout: time.Second, MaxTime: 2 * time.Second})
		c.Tools(t.Context())
		res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			<-time.After(time.Hour) // fake time
			return ElicitationResult{Action: Accept, Content: json.RawMessage(`{"people":2}`)}, nil
		}})
		mustResult(t, res, err)
		_ = c.Close()
	})
}

// If the caller cancels the call, its elicitation ends, and Call does not return before Elicit
// has.
func TestElicitationEndsWithItsCall(t *testing.T) {
	t.Parallel()
	for _, flavour := range []string{"stateful sse", "stateless json"} {
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveAskTool(t, flavour).URL})
		c.Tools(t.Context())

		ctx, leave := context.WithCancel(t.Context())
		returned, over := false, make(chan struct{})
		_, err := c.Call(ctx, Call{Tool: "ask", Elicit: func(ctx context.Context, _ Elicitation) (ElicitationResult, error) {
			leave()
			<-ctx.Done()
			select {
			case <-over:
				t.Error("Call has ended before Elicit, want it after")
			case <-time.After(20 * time.Millisecond): // it has had every chance
			}
			returned = true
			return ElicitationResult{}, ctx.Err()
		}})

		close(over)
		if k := mustFail(t, err); k.Kind != Cancelled || !returned {
			t.Errorf("got %v and Elicit returned %t, want %s and true", k, returned, Cancelled)
		}
	}
}

// serveScriptedAsk returns a server that sends params as an elicitation on the stream of each call,
// as often as times says, and answers the call with the responses. asked counts them.
func serveScriptedAsk(t *testing.T, times int, params string) (*httpServer, *atomic.Int64) {
	answers := make(chan string, 200)
	var asked atomic.Int64
	s := &scriptedServer{
		before: receiveAnswers(answers),
		call: func(w http.ResponseWriter, _ *http.Request, m message) {
			send := startEventStream(w)
			var got []string
			for range times {
				send(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":\"e%d\",\"method\":\"elicitation/create\",\"params\":%s}\n\n", asked.Add(1), params))
			}
			for range times {
				got = append(got, receive(t, answers))
			}
			send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + textResult(strings.Join(got, "\n")) + "}\n\n")
		},
	}
	return serveHTTP(t, s), &asked
}

// receiveAnswers returns a function for before that sends the bodies of the client's answers to answers: messages whose
// id begins with e, as the ids of the server's questions do.
func receiveAnswers(answers chan<- string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		body := peekBody(r)
		if !strings.Contains(body, `"id":"e`) {
			return false
		}
		answers <- body
		w.WriteHeader(http.StatusAccepted)
		return true
	}
}

// Requests that are not safe to show to a person are refused.
func TestElicitationThatIsNotSafeIsRefused(t *testing.T) {
	for name, params := range map[string]string{
		"file URL":         `{"mode":"url","message":"m","url":"file:///etc/passwd","elicitationId":"1"}`,
		"script URL":       `{"mode":"url","message":"m","url":"javascript:alert(1)","elicitationId":"1"}`,
		"plain HTTP":       `{"mode":"url","message":"m","url":"http://example.com/","elicitationId":"1"}`,
		"a password in it": `{"mode":"url","message":"m","url":"https://bank.example@evil.example/","elicitationId":"1"}`,
		"nested form":      `{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"string"}}}}}}`,
		"a list":           `{"message":"m","requestedSchema":{"type":"array"}}`,
		"a foreign $ref":   `{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"string","$ref":"http://127.0.0.1:1/x"}}}}`,
		"too large":        `{"message":"m","requestedSchema":{"type":"object","description":"` + strings.Repeat("x", schema.MaxSize) + `"}}`,
		"unknown mode":     `{"mode":"phone","message":"m"}`,
		"no object":        `[]`,
	} {
		w, _ := serveScriptedAsk(t, 1, params)
		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		res, err := c.Call(t.Context(), Call{Tool: "t", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			t.Errorf("%s: got an elicitation, want a refusal", name)
			return ElicitationResult{Action: Accept, Content: json.RawMessage("{}")}, nil
		}})
		if got := mustResult(t, res, err).Text(); !strings.Contains(got, `"error"`) {
			t.Errorf("%s: got the response %s, want an error", name, got)
		}
	}
}

// Servers repeat the error with which their question was refused, as the failure of the call. The arguments of the call
// are not the cause, so a model must not be asked to correct them.
func TestRefusedElicitationIsNotBlamedOnTheArguments(t *testing.T) {
	for name, reply := range map[string]string{
		"TypeScript SDK, result": `"result":{"content":[{"type":"text","text":"MCP error -32602: %s"}],"isError":true}`,
		"TypeScript SDK, error":  `"error":{"code":-32602,"message":"MCP error -32602: %s"}`,
		"Python SDK, result":     `"result":{"content":[{"type":"text","text":"Error executing tool t: %s"}],"isError":true}`,
	} {
		answers := make(chan string, 1)
		w := serveHTTP(t, &scriptedServer{
			before: receiveAnswers(answers),
			call: func(w http.ResponseWriter, _ *http.Request, m message) {
				send := startEventStream(w)
				send(`data: {"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":` +
					`{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"object"}}}}}` + "\n\n")
				var answer struct{ Error struct{ Message string } }
				if err := json.Unmarshal([]byte(receive(t, answers)), &answer); err != nil {
					t.Error(err)
				}
				quoted, _ := json.Marshal(answer.Error.Message)
				send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + "," + fmt.Sprintf(reply, quoted[1:len(quoted)-1]) + "}\n\n")
			},
		})

		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		res, err := c.Call(t.Context(), Call{Tool: "t", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			return ElicitationResult{Action: Decline}, nil
		}})
		kind, text := Execution, ""
		if err != nil {
			failed := mustFail(t, err)
			kind, text = failed.Kind, failed.Message
		} else {
			kind, text = ResultErrorKind(res), res.Text()
		}
		if kind != Execution || !strings.Contains(text, "answerd refused the server's request") {
			t.Errorf("%s: got the kind %s and the text %s, want %s and who refused", name, kind, text, Execution)
		}
	}
}

// A tag that the server made up changes nothing.
func TestElicitationPassesAURLOnWithoutFetchingIt(t *testing.T) {
	w, _ := serveScriptedAsk(t, 1, `{"mode":"url","message":"sign in","url":"https://127.0.0.1:1/sign-in","elicitationId":"1","_meta":{"answerd/request":"1","k":1}}`)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
	var got Elicitation
	res, err := c.Call(t.Context(), Call{Tool: "t", Elicit: func(_ context.Context, e Elicitation) (ElicitationResult, error) {
		got = e
		return ElicitationResult{Action: Accept}, nil
	}})
	if text := mustResult(t, res, err).Text(); !strings.Contains(text, Accept) || got.Mode != ElicitURL || got.URL != "https://127.0.0.1:1/sign-in" || got.Message != "sign in" || got.Schema != nil {
		t.Errorf("got %+v and the response %s, want the URL and accept", got, text)
	}
}

// A server that asks without end gets cancel for an answer, and the person is not asked more
// often than the bound.
func TestElicitationsOfACallAreBounded(t *testing.T) {
	w, asked := serveScriptedAsk(t, 90, `{"message":"m","requestedSchema":{"type":"object"}}`)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
	var people atomic.Int64
	res, err := c.Call(t.Context(), Call{Tool: "t", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
		people.Add(1)
		return ElicitationResult{Action: Decline}, nil
	}})
	mustResult(t, res, err)
	if n := people.Load(); asked.Load() != 90 || n == 0 || n > 32 {
		t.Errorf("got %d of %d elicitations to the person, want at most 32 of 90", n, asked.Load())
	}
}

// An integer in a form, or in its default, reaches the server as it was written: a float has 53 bits.
func TestElicitationKeepsLargeIntegers(t *testing.T) {
	for content, want := range map[string]string{
		`{"account":9007199254740993}`: `"content":{"account":9007199254740993,"limit":9007199254740995}`,
		`{"account":1,"limit":2.5}`:    `"content":{"account":1,"limit":2.5}`,
	} {
		w, _ := serveScriptedAsk(t, 1, `{"message":"m","requestedSchema":{"type":"object","properties":{`+
			`"account":{"type":"integer"},"limit":{"type":"number","default":9007199254740995}}}}`)
		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		res, err := c.Call(t.Context(), Call{Tool: "t", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			return ElicitationResult{Action: Accept, Content: json.RawMessage(content)}, nil
		}})
		if got := mustResult(t, res, err).Text(); !strings.Contains(got, want) {
			t.Errorf("%s: got the answer %s, want it with %s", content, got, want)
		}
	}
}

// Forms that FastMCP 3 and the Python SDK 1 send, although MCP does not have them: a field that may be null is shown as
// one that may be left out.
func TestElicitationShowsFormsOfPythonServers(t *testing.T) {
	for _, test := range []struct{ field, shown, content, want string }{
		{`{"anyOf":[{"type":"string"},{"type":"null"}],"default":null,"title":"Note"}`, `{"title":"Note","type":"string"}`, `{"a":"x"}`, `{"a":"x"}`},
		{`{"anyOf":[{"type":"null"},{"type":"integer"}],"default":3}`, `{"default":3,"type":"integer"}`, `{}`, `{"a":3}`},
		{`{"type":["boolean","null"]}`, `{"type":"boolean"}`, `{}`, `{}`},
		{`{"type":"array","items":{"enum":["x","y"]}}`, "", `{"a":["x"]}`, `{"a":["x"]}`},
		{`{"type":"string","format":"time"}`, "", `{"a":"10:15:00"}`, `{"a":"10:15:00"}`},
	} {
		form := func(field string) string {
			return `{"type":"object","properties":{"z":{"type":"string"},"a":` + field + `}}`
		}
		w, _ := serveScriptedAsk(t, 1, `{"message":"m","requestedSchema":`+form(test.field)+`}`)
		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		shown := ""
		res, err := c.Call(t.Context(), Call{Tool: "t", Elicit: func(_ context.Context, e Elicitation) (ElicitationResult, error) {
			shown = string(e.Schema)
			return ElicitationResult{Action: Accept, Content: json.RawMessage(test.content)}, e.Check(json.RawMessage(test.content))
		}})
		got := mustResult(t, res, err).Text()
		wantShown := form(cmp.Or(test.shown, test.field))
		if normalJSON(t, shown) != normalJSON(t, wantShown) || strings.Index(shown, `"z":`) > strings.Index(shown, `"a":`) || !strings.Contains(got, `"content":`+test.want) {
			t.Errorf("%s: got the form %s and the answer %s, want %s with z before a, and the content %s", test.field, shown, got, wantShown, test.want)
		}
	}
}

// normalJSON returns a JSON value with the members of its objects in the order of their names.
func normalJSON(t *testing.T, raw string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(raw), &value); err != nil {
		return raw
	}
	normal, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(normal)
}
