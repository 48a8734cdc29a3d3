package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is an OpenAI-compatible endpoint over real HTTP that does what it is told:
// the n-th request, from 0 on, goes to the n-th step, further ones to the last.
type script struct {
	*httptest.Server
	steps []http.HandlerFunc

	mu       sync.Mutex // protects what follows
	requests []received
}

type received struct {
	header http.Header
	path   string
	from   string
	body   []byte
}

// play starts a script and returns it with a model that asks it.
func play(t testing.TB, cfg OpenAIConfig, steps ...http.HandlerFunc) (*script, *OpenAI) {
	t.Helper()
	s := &script{steps: steps}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	cfg.BaseURL = s.URL + "/v1"
	m := NewOpenAI(cfg)
	t.Cleanup(m.Close)
	return s, m
}

func (s *script) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // to the end: else a client's leaving goes unnoticed
	s.mu.Lock()
	step := s.steps[min(len(s.requests), len(s.steps)-1)]
	s.requests = append(s.requests, received{r.Header.Clone(), r.URL.Path, r.RemoteAddr, body})
	s.mu.Unlock()
	step(w, r)
}

func (s *script) received() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// sends answers with wire as an event stream, flushed.
func sends(wire string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, wire)
		_ = http.NewResponseController(w).Flush()
	}
}

// holds answers with wire and then keeps the connection open until the client leaves.
func holds(wire string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sends(wire)(w, r)
		<-r.Context().Done()
	}
}

// cuts answers with wire and then breaks the connection.
func cuts(wire string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sends(wire)(w, r)
		panic(http.ErrAbortHandler)
	}
}

func status(code int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// events joins chunks into an event stream.
func events(chunks ...string) string {
	var b strings.Builder
	for _, c := range chunks {
		fmt.Fprintf(&b, "data: %s\n\n", c)
	}
	return b.String()
}

// delta is a chunk whose first choice has the given delta.
func delta(d string) string {
	return `{"model":"m-1","choices":[{"index":0,"delta":` + d + `,"finish_reason":null}]}`
}

// says is a chunk with a piece of text.
func says(text string) string {
	quoted, _ := json.Marshal(text)
	return delta(`{"content":` + string(quoted) + `}`)
}

const (
	stop  = `{"model":"m-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	usage = `{"model":"m-1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`
)

var hello = events(delta(`{"role":"assistant","content":""}`), says("Hel"), says("lo"), stop, usage, "[DONE]")

var question = Request{Model: "m", Messages: []Message{{Role: User, Text: "Hi"}}}

// ask collects a whole answer.
func ask(ctx context.Context, m Model, r Request) (parts []Part, err error) {
	for p, err := range m.Stream(ctx, r) {
		if err != nil {
			return parts, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// show renders parts for comparison, one a line. Made-up ids are shown as "*".
func show(parts []Part) string {
	var b strings.Builder
	id := func(id string) string {
		if strings.HasPrefix(id, "call_") && len(id) == len("call_")+26 {
			return "*"
		}
		return id
	}
	for _, p := range parts {
		switch p := p.(type) {
		case Text:
			fmt.Fprintf(&b, "text %q\n", p.Delta)
		case Reasoning:
			fmt.Fprintf(&b, "reasoning %q\n", p.Delta)
		case ToolCallStart:
			fmt.Fprintf(&b, "start %d %s %s\n", p.Index, id(p.ID), p.Name)
		case ToolCallArgs:
			fmt.Fprintf(&b, "args %d %s\n", p.Index, p.Delta)
		case ToolCall:
			fmt.Fprintf(&b, "call %d %s %s %s\n", p.Index, id(p.ID), p.Name, p.Arguments)
		case Usage:
			fmt.Fprintf(&b, "usage %d %d %d\n", p.Input, p.Output, p.Total)
		case Finish:
			fmt.Fprintf(&b, "finish %s %s\n", p.Reason, p.Model)
		default:
			fmt.Fprintf(&b, "%#v\n", p)
		}
	}
	return b.String()
}

// lines is show's form of an expectation.
func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

// wantError checks that err is an *Error of the kind and that its public text is ours.
func wantError(t *testing.T, err error, kind Kind) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("got error %v, want kind %s", err, kind)
	}
	if !slices.Contains(publicTexts, e.Public) {
		t.Errorf("public text %q is not one of ours", e.Public)
	}
	return e
}

var publicTexts = []string{publicUnreachable, publicRefused, publicCredentials, publicUnknown, publicContext, publicLimited,
	publicFailing, publicRedirect, publicNonsense, publicTooLarge, publicTooManyCalls, publicTruncated,
	publicNoFirstByte, publicIdle}
