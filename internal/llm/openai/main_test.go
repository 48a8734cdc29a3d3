package openai

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The tests that run in parallel wait for the time between two attempts most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// scriptedEndpoint serves an OpenAI-compatible endpoint over HTTP from a script: the n-th
// request, from 0 on, goes to the n-th step, further ones to the last.
type scriptedEndpoint struct {
	*httptest.Server
	steps []http.HandlerFunc

	mu       sync.Mutex // protects what follows
	requests []receivedRequest
}

type receivedRequest struct {
	header http.Header
	path   string
	from   string
	body   []byte
}

// newEndpoint starts a script and returns it with a model that asks it.
func newEndpoint(t testing.TB, cfg Config, steps ...http.HandlerFunc) (*scriptedEndpoint, *Model) {
	t.Helper()
	s := &scriptedEndpoint{steps: steps}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serveStep))
	t.Cleanup(s.Close)
	cfg.BaseURL = s.URL + "/v1"
	m := New(cfg)
	t.Cleanup(m.Close)
	return s, m
}

func (s *scriptedEndpoint) serveStep(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // to the end: else a client's leaving goes unnoticed
	s.mu.Lock()
	step := s.steps[min(len(s.requests), len(s.steps)-1)]
	s.requests = append(s.requests, receivedRequest{r.Header.Clone(), r.URL.Path, r.RemoteAddr, body})
	s.mu.Unlock()
	step(w, r)
}

func (s *scriptedEndpoint) receivedRequests() []receivedRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// sendStream answers with wire as an event stream, flushed.
func sendStream(wire string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, wire)
		_ = http.NewResponseController(w).Flush()
	}
}

// sendAndWait answers with wire and then keeps the connection open until the client leaves.
func sendAndWait(wire string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sendStream(wire)(w, r)
		<-r.Context().Done()
	}
}

// sendAndAbort answers with wire and then breaks the connection.
func sendAndAbort(wire string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sendStream(wire)(w, r)
		panic(http.ErrAbortHandler)
	}
}

func replyStatus(code int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// eventStream joins chunks into an event stream.
func eventStream(chunks ...string) string {
	var b strings.Builder
	for _, c := range chunks {
		fmt.Fprintf(&b, "data: %s\n\n", c)
	}
	return b.String()
}

// deltaChunk returns a chunk whose first choice has the delta d.
func deltaChunk(d string) string {
	return `{"model":"m-1","choices":[{"index":0,"delta":` + d + `,"finish_reason":null}]}`
}

// textChunk returns a chunk with a piece of text.
func textChunk(text string) string {
	quoted, _ := json.Marshal(text)
	return deltaChunk(`{"content":` + string(quoted) + `}`)
}

const (
	stopChunk  = `{"model":"m-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	usageChunk = `{"model":"m-1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`
)

var helloStream = eventStream(deltaChunk(`{"role":"assistant","content":""}`), textChunk("Hel"), textChunk("lo"), stopChunk, usageChunk, "[DONE]")

var testRequest = llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Text: "Hi"}}}

// requireError checks that err is an *Error of the kind and that its public text is ours.
func requireError(t *testing.T, err error, kind llm.Kind) *llm.Error {
	t.Helper()
	e := llmtest.RequireError(t, err, kind)
	if !slices.Contains(publicTexts, e.Public) {
		t.Errorf("got public text %q, want one of %q", e.Public, publicTexts)
	}
	return e
}

var publicTexts = []string{publicUnreachable, publicRefused, publicCredentials, publicUnknown, publicContext, publicLimited, publicQuota,
	publicFailing, publicRedirect, publicNonsense, publicTooLarge, publicTooManyCalls, publicTruncated,
	publicNoFirstByte, publicIdle}
