package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/client"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

type clientQuestion struct {
	Question string `json:"question"`
}

// newGoClient starts the handler of the API over a whole agent and returns a client of it.
func newGoClient(t *testing.T, script llmtest.Script, configure ...func(*config.Server)) (*agenttest.Fixture, *client.Client) {
	t.Helper()
	fixture := agenttest.NewFixture(t, script, nil, configure...)
	handler := api.New(api.Options{Agent: fixture.Agent, Log: fixture.Log, AllowedHosts: []string{"127.0.0.1"}, Heartbeat: time.Hour})
	server := httptest.NewServer(handler)
	c := client.New(server.URL+"/", nil, 1)
	t.Cleanup(func() {
		over, stop := context.WithCancel(context.Background())
		stop()
		fixture.Drain(over) // runs end first, as in production
		handler.Close(over)
		c.Close()
		server.Close()
	})
	return fixture, c
}

// mustProblem returns err as a problem, and fails the test if it is none.
func mustProblem(t *testing.T, err error) *client.Problem {
	t.Helper()
	p, ok := errors.AsType[*client.Problem](err)
	if !ok {
		t.Fatalf("error = %v, want a problem document", err)
	}
	return p
}

// readEvents returns the names of a stream's events until its end, and the id of the last.
func readEvents(t *testing.T, s *client.Stream) (names []string, lastID string) {
	t.Helper()
	for {
		frame, err := s.Next()
		if errors.Is(err, io.EOF) {
			return names, lastID
		}
		if err != nil {
			t.Fatalf("Next: %v, want an event or io.EOF", err)
		}
		names = append(names, frame.Event)
		if frame.ID != "" {
			lastID = frame.ID
		}
	}
}

func TestClientSendDecodesTheAnswer(t *testing.T) {
	_, c := newGoClient(t, llmtest.Turns(llmtest.Says("It is 3.")))
	var got struct {
		Answer string `json:"answer"`
		RunID  string `json:"run_id"`
	}
	status, err := c.Send(t.Context(), http.MethodPost, "/answer", clientQuestion{"?"}, nil, &got)
	if status != http.StatusOK || err != nil || got.Answer != "It is 3." {
		t.Fatalf(`Send = %d, %v with answer %q, want 200 and "It is 3."`, status, err, got.Answer)
	}
	resp, err := c.Open(t.Context(), http.MethodGet, client.RunPath(got.RunID, "/export"), nil, nil)
	if err != nil {
		t.Fatalf("Open: %v, want the export", err)
	}
	defer resp.Body.Close()
	var export struct{ Events []json.RawMessage }
	if err := json.NewDecoder(resp.Body).Decode(&export); err != nil || len(export.Events) == 0 {
		t.Errorf("export = %d events, %v, want a document with events", len(export.Events), err)
	}
}

func TestClientProblemNamesTheWrongField(t *testing.T) {
	_, c := newGoClient(t, llmtest.Turns())
	status, err := c.Send(t.Context(), http.MethodPost, "/answer", map[string]any{"question": 1}, nil, nil)
	p := mustProblem(t, err)
	if status != 0 || p.Status != http.StatusBadRequest || p.Code != "invalid_request" || p.IsBusy() || p.IsTooLate() {
		t.Errorf("Send = %d, %+v, want 0 and 400 invalid_request, neither busy nor too late", status, p)
	}
	if len(p.Errors) == 0 || !strings.Contains(p.Error(), p.Errors[0].Pointer+": "+p.Errors[0].Detail) || !strings.HasSuffix(p.Error(), "(invalid_request)") {
		t.Errorf("Error() = %q with fields %v, want the fields in the text and the code at its end", p.Error(), p.Errors)
	}
}

func TestClientProblemSaysWhenToAskAgain(t *testing.T) {
	fixture, c := newGoClient(t, llmtest.Turns())
	over, stop := context.WithCancel(t.Context())
	stop()
	fixture.Drain(over)
	_, err := c.Send(t.Context(), http.MethodPost, "/answer", clientQuestion{"?"}, nil, nil)
	if p := mustProblem(t, err); !p.IsBusy() || p.RetryAfter < time.Second || p.RetryAfter > time.Minute {
		t.Errorf("problem = %+v, want one that is busy for 1 s to 1 m", p)
	}
}

// A server that is not answerd may send any number.
func TestClientErrorOfAWholeValueHasNoPointer(t *testing.T) {
	p := &client.Problem{Detail: "The answer does not conform.", Code: "invalid_output", Errors: []client.FieldError{{Detail: "is not valid JSON"}, {Pointer: "/a", Detail: "is missing"}}}
	if got, want := p.Error(), "The answer does not conform. is not valid JSON. /a: is missing. (invalid_output)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestClientRetryAfterIsBounded(t *testing.T) {
	for value, want := range map[string]time.Duration{"86400": time.Minute, "9223372036854775807": time.Minute, "-1": 0, "soon": 0, "2": 2 * time.Second} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, `{"code":"rate_limited","detail":"Later."}`)
		}))
		defer server.Close()
		c := client.New(server.URL, nil, 1)
		defer c.Close()
		_, err := c.Send(t.Context(), http.MethodGet, "/agents", nil, nil, nil)
		if got := mustProblem(t, err).RetryAfter; got != want {
			t.Errorf("Retry-After %q: RetryAfter = %v, want %v", value, got, want)
		}
	}
}

func TestClientUnauthenticatedProblemSaysHowToPassAToken(t *testing.T) {
	got := (&client.Problem{Detail: "A token is required.", Code: "unauthenticated"}).Error()
	if want := "A token is required. Pass a token with -token-file. (unauthenticated)"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}

func TestClientResponsesOfOtherServersAreRecognized(t *testing.T) {
	for name, body := range map[string]string{"HTML": "<html>", "no code": "{}"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, body)
		}))
		defer server.Close()
		c := client.New(server.URL, nil, 1)
		defer c.Close()
		_, err := c.Send(t.Context(), http.MethodGet, "/agents", nil, nil, nil)
		if want := "which is not an answer of answerd"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want it to contain %q", name, err, want)
		}
	}
}

// A proxy that wants https answers 301.
func TestClientRedirectThatDropsTheQuestionIsAnError(t *testing.T) {
	var asked atomic.Int32
	secure := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method == http.MethodPost && string(body) != `{"question":"?"}` {
			t.Errorf("got %s with the body %s, %v, want the question", r.Method, body, err)
		}
		io.WriteString(w, "{}")
	}))
	defer secure.Close()
	for status, followed := range map[int]bool{301: false, 302: false, 303: false, 307: true, 308: true} {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, secure.URL+r.URL.Path, status)
		}))
		defer proxy.Close()
		c := client.New(proxy.URL, nil, 1)
		defer c.Close()
		before := asked.Load()
		_, err := c.Send(t.Context(), http.MethodPost, "/answer", clientQuestion{"?"}, nil, nil)
		if got := asked.Load() > before; got != followed || followed != (err == nil) || err != nil && !strings.Contains(err.Error(), secure.URL+"/answer") {
			t.Errorf("POST with status %d: asked there: %t, %v, want %t, or an error that names %s", status, got, err, followed, secure.URL)
		}
		if _, err := c.Send(t.Context(), http.MethodGet, "/agents", nil, nil, nil); err != nil {
			t.Errorf("GET with status %d: %v, want it followed", status, err)
		}
	}
}

// net/http alone would send the token to every port and subdomain of the first host, also without TLS.
func TestClientTokenStaysAtItsOrigin(t *testing.T) {
	var authorization atomic.Value
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization.Store(r.Header.Get("Authorization"))
		io.WriteString(w, "{}")
	}))
	defer elsewhere.Close()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agents/" {
			io.WriteString(w, "{}")
			return
		}
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusPermanentRedirect)
	}))
	defer origin.Close()
	c := client.New(origin.URL, func() (string, error) { return "t", nil }, 1)
	defer c.Close()

	_, err := c.Send(t.Context(), http.MethodGet, "/agents?to="+elsewhere.URL, nil, nil, nil)
	if err == nil || !strings.Contains(err.Error(), elsewhere.URL) || authorization.Load() != nil {
		t.Errorf("redirect to another origin: %v, sent %q, want an error that names %s, and no request", err, authorization.Load(), elsewhere.URL)
	}
	if _, err := c.Send(t.Context(), http.MethodGet, "/agents?to=/agents/", nil, nil, nil); err != nil {
		t.Errorf("redirect within the origin: %v, want it followed", err)
	}
}

func TestClientTokenIsReadForEachRequest(t *testing.T) {
	got := make(chan string, 2)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Authorization") }))
	defer server.Close()

	n, failure := 0, errors.New("no file")
	c := client.New(server.URL, func() (string, error) {
		if n++; n > 2 {
			return "", failure
		}
		return strings.Repeat("t", n), nil
	}, 1)
	defer c.Close()

	for _, want := range []string{"Bearer t", "Bearer tt"} {
		if _, err := c.Send(t.Context(), http.MethodGet, "/agents", nil, nil, nil); err != nil {
			t.Fatal(err)
		}
		if token := <-got; token != want {
			t.Errorf("Authorization = %q, want %q", token, want)
		}
	}

	if _, err := c.Send(t.Context(), http.MethodGet, "/agents", nil, nil, nil); !errors.Is(err, failure) {
		t.Errorf("error = %v, want %v", err, failure)
	}
}

func TestClientStreamResumesAfterAnEvent(t *testing.T) {
	_, c := newGoClient(t, llmtest.Turns(llmtest.Says("It is 3.")))
	stream, err := c.Stream(t.Context(), http.MethodPost, "/answer/stream", clientQuestion{"?"}, http.Header{"Idempotency-Key": {"k"}})
	if err != nil {
		t.Fatal(err)
	}

	first, err := stream.Next()
	if err != nil || first.Event != "start" {
		t.Fatalf("first event = %s, %v, want start", first.Event, err)
	}

	stream.Close()
	run, _, _ := strings.Cut(first.ID, ":")
	if stream, err = c.Stream(t.Context(), http.MethodGet, client.RunPath(run, "/events"), nil, http.Header{"Last-Event-ID": {first.ID}}); err != nil {
		t.Fatal(err)
	}
	names, lastID := readEvents(t, stream)
	stream.Close()
	if got := strings.Join(names, " "); strings.Contains(" "+got, " start ") || !strings.HasSuffix(got, "final_answer") {
		t.Errorf("events after the first = %s, want those up to final_answer without start", got)
	}
	if _, err := c.Stream(t.Context(), http.MethodGet, client.RunPath(run, "/events"), nil, http.Header{"Last-Event-ID": {lastID}}); !errors.Is(err, client.ErrNoEvents) {
		t.Errorf("after the last event: error = %v, want %v", err, client.ErrNoEvents)
	}
}

// A caller would resume after the id of an event that it has only a part of, and never get the rest.
func TestClientStreamReturnsNoPartOfAnEvent(t *testing.T) {
	const whole, part = "id: run_1:1\nevent: start\ndata: {}\n\n", "id: run_1:2\nevent: text_delta\ndata: {\"delta\":\"It"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+whole+part)
	}))
	defer server.Close()
	c := client.New(server.URL, nil, 1)
	defer c.Close()
	stream, err := c.Stream(t.Context(), http.MethodPost, "/answer/stream", clientQuestion{"?"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if frame, err := stream.Next(); err != nil || frame.ID != "run_1:1" {
		t.Errorf("first event = %s, %v, want run_1:1", frame.ID, err)
	}
	if frame, err := stream.Next(); !errors.Is(err, io.ErrUnexpectedEOF) || frame.ID != "" {
		t.Errorf("second event = %s %s, %v, want no event and %v", frame.ID, frame.Data, err, io.ErrUnexpectedEOF)
	}
}

func TestClientSecondInputIsTooLate(t *testing.T) {
	_, c := newGoClient(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("It is 3.")), func(s *config.Server) { s.ApproveTools = []string{"add"} })
	var suspended struct {
		RunID      string            `json:"run_id"`
		Interrupts []event.Interrupt `json:"interrupts"`
	}
	status, err := c.Send(t.Context(), http.MethodPost, "/answer", clientQuestion{"?"}, nil, &suspended)
	if status != http.StatusAccepted || err != nil || len(suspended.Interrupts) != 1 {
		t.Fatalf("Send = %d, %v with interrupts %v, want 202 and one interrupt", status, err, suspended.Interrupts)
	}
	input := map[string]any{"id": suspended.Interrupts[0].ID, "approved": true}
	if err := c.SendInput(t.Context(), suspended.RunID, input); err != nil {
		t.Fatalf("SendInput: %v, want no error", err)
	}
	if p := mustProblem(t, c.SendInput(t.Context(), suspended.RunID, input)); !p.IsTooLate() {
		t.Errorf("problem = %+v, want one that is too late", p)
	}
}
