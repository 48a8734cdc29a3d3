// Package llmtest is a scripted OpenAI-compatible endpoint over real HTTP, for the tests of code that uses a model. It
// also has helpers to compare the parts of an answer.
//
//	model := llmtest.New(t, llmtest.Turns(
//		llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}),
//		llmtest.Says("It is ", "three."),
//	))
//	openai.New(openai.Config{BaseURL: model.URL})
//
// A script depends only on the current request and not on earlier ones, so that any number of runs can follow it at the
// same time.
package llmtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// ModelID is the only id that GET /v1/models lists. The endpoint also answers requests with any other id.
const ModelID = "scripted"

// Endpoint is a running scripted endpoint.
type Endpoint struct {
	URL string // up to and including /v1

	mu       sync.Mutex // protects the fields below
	requests []Request
	forgets  bool
}

// Request is a request that the endpoint received.
type Request struct {
	Model      string          `json:"model"`
	Messages   []Message       `json:"messages"`
	Tools      []Tool          `json:"tools"`
	ToolChoice json.RawMessage `json:"tool_choice"`
	MaxTokens  int64           `json:"max_completion_tokens"`
	Stop       []string        `json:"stop"`

	Header http.Header     `json:"-"`
	Body   json.RawMessage `json:"-"` // the complete body
}

// Message is one message of a request.
type Message struct {
	Role       string
	Content    string          // "" if the content is a list of parts
	Parts      json.RawMessage // the list of parts, if the content is one
	ToolCalls  []ToolCall
	ToolCallID string
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Message) UnmarshalJSON(b []byte) error {
	var w struct {
		Role       string          `json:"role"`
		Content    json.RawMessage `json:"content"`
		ToolCalls  []ToolCall      `json:"tool_calls"`
		ToolCallID string          `json:"tool_call_id"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*m = Message{Role: w.Role, ToolCalls: w.ToolCalls, ToolCallID: w.ToolCallID}
	if len(w.Content) > 0 && w.Content[0] == '[' {
		m.Parts = w.Content
		return nil
	}
	return json.Unmarshal(w.Content, &m.Content) // null decodes to ""
}

// ToolCall is a call in an assistant message of the history.
type ToolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// Tool is a tool that a request offered.
type Tool struct {
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// Answer writes the response to one request. It may take any time, but should return when r's context is done.
type Answer func(w http.ResponseWriter, r *http.Request)

// Script returns the Answer to a request.
type Script func(Request) Answer

// New starts an endpoint that follows script until the test ends.
func New(t testing.TB, script Script) *Endpoint {
	e, stop := Start(script)
	t.Cleanup(stop)
	return e
}

// Start starts an endpoint that follows script until stop is called. It is for code without a testing.TB, such as an
// Example.
func Start(script Script) (endpoint *Endpoint, stop func()) {
	endpoint = &Endpoint{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, ModelID)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		var req Request
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &req)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Header, req.Body = r.Header, body
		endpoint.mu.Lock()
		if !endpoint.forgets {
			endpoint.requests = append(endpoint.requests, req)
		}
		endpoint.mu.Unlock()
		script(req)(w, r)
	})
	server := httptest.NewServer(mux)
	endpoint.URL = server.URL + "/v1"
	return endpoint, server.Close
}

// Requests returns the requests received so far, in the order of arrival.
func (e *Endpoint) Requests() []Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Request(nil), e.requests...)
}

// Forget makes the endpoint keep no requests from now on. It is for tests that make very many requests.
func (e *Endpoint) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgets, e.requests = true, nil
}

// Turns answers a run's first request with the first answer, the request after the run's first tool calls with the
// second answer, and so on. The last answer is repeated.
func Turns(answers ...Answer) Script {
	return func(r Request) Answer {
		turn := 0
		for _, m := range r.Messages {
			if m.Role == "assistant" && len(m.ToolCalls) > 0 {
				turn++
			}
		}
		return answers[min(turn, len(answers)-1)]
	}
}

// Says answers with text, one chunk per delta.
func Says(deltas ...string) Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		chunks := make([]any, 0, len(deltas))
		for _, d := range deltas {
			chunks = append(chunks, map[string]any{"content": d})
		}
		Stream(w, "stop", chunks...)
	}
}

// Call is a tool call to answer with. If ID is empty, it becomes call_1, call_2 …
type Call struct{ ID, Name, Args string }

// Calls answers with tool calls. Each call has one chunk for its start and one for its arguments.
func Calls(calls ...Call) Answer { return SaysAndCalls("", calls...) }

// SaysAndCalls answers with text, unless it is "", followed by tool calls.
func SaysAndCalls(text string, calls ...Call) Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		var chunks []any
		if text != "" {
			chunks = append(chunks, map[string]any{"content": text})
		}
		for i, c := range calls {
			if c.ID == "" {
				c.ID = fmt.Sprintf("call_%d", i+1)
			}
			chunks = append(chunks,
				delta(i, map[string]any{"id": c.ID, "type": "function", "function": map[string]any{"name": c.Name, "arguments": ""}}),
				delta(i, map[string]any{"function": map[string]any{"arguments": c.Args}}))
		}
		Stream(w, "tool_calls", chunks...)
	}
}

func delta(index int, call map[string]any) any {
	call["index"] = index
	return map[string]any{"tool_calls": []any{call}}
}

// Fails answers with an HTTP status and an error body in OpenAI's form.
func Fails(status int, message string) Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":%q,"type":"invalid_request_error"}}`, message)
	}
}

// Stream writes one chunk per delta, followed by the finish reason, a usage of 10 input and 5 output tokens, and
// [DONE]. If finish is "", it stops after the deltas, like a stream that was cut off.
func Stream(w http.ResponseWriter, finish string, deltas ...any) {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	send := func(choices []any, usage any) {
		b, _ := json.Marshal(map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "scripted", "choices": choices, "usage": usage})
		fmt.Fprintf(w, "data: %s\n\n", b)
		_ = rc.Flush()
	}
	send([]any{map[string]any{"index": 0, "delta": map[string]any{"role": "assistant", "content": ""}}}, nil)
	for _, d := range deltas {
		send([]any{map[string]any{"index": 0, "delta": d}}, nil)
	}
	if finish == "" {
		return
	}
	send([]any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": finish}}, nil)
	send([]any{}, map[string]any{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
	fmt.Fprint(w, "data: [DONE]\n\n")
}
