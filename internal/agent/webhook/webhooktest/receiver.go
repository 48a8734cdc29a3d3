// Package webhooktest is a service that hooks ask, for tests: a real HTTP server that
// trusts nothing but a fresh signature.
//
//	service := webhooktest.New(t, func(q webhooktest.Question) string { return `{}` })
//	hooks, err := webhook.New(webhook.Options{URL: service.URL, Secret: webhooktest.Secret})
package webhooktest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"answerd/internal/auth"
)

// Secret is what the service and whoever asks it share.
var Secret = auth.NewSecret("a secret of the tests")

// window is how old a question may be; the service remembers deliveries for as long.
const window = 5 * time.Minute

// Question is a body that the service was sent.
type Question struct {
	Body     []byte `json:"-"` // as it came
	Hook     string
	RunID    string `json:"run_id"`
	ThreadID string `json:"thread_id"`
	Step     int
	Status   string
	Request  *struct {
		Model    string
		Messages []struct {
			Role, Content, Tool string
			CallID              string `json:"call_id"`
			Calls               []ModelCall
		}
		Tools     []string
		MaxTokens int64 `json:"max_tokens"`
	}
	Interrupt *struct {
		ID, Kind, Tool, Message string
		CallID                  string `json:"call_id"`
		Args                    json.RawMessage
	}
	Subject  string
	Server   string
	Tool     string
	CallID   string `json:"call_id"`
	Args     json.RawMessage
	ArgsText string `json:"args_text"`
	Result   *Result
	Error    *struct {
		Kind, Code, Message string
		Retryable           bool
		PartialAnswer       string `json:"partial_answer"`
	}
	Timestamp  int64
	DeliveryID string `json:"delivery_id"`
}

// Result is the result of a tool, of a model or of a run.
type Result struct {
	Content    []json.RawMessage
	Structured json.RawMessage

	Model, Text  string
	Calls        []ModelCall
	FinishReason string `json:"finish_reason"`
	Usage        json.RawMessage

	Answer   string
	Metadata json.RawMessage
}

// ModelCall is a tool call as a model wrote it.
type ModelCall struct {
	CallID   string `json:"call_id"`
	Tool     string
	Args     json.RawMessage
	ArgsText string `json:"args_text"`
}

// Service is the server. It answers a question that is not signed, is old or was
// there before with 401.
type Service struct {
	URL    string
	answer func(Question) string

	mu       sync.Mutex // protects what follows
	seen     map[string]bool
	got      []Question
	repeated int
}

// New starts a service that replies what answer returns. It ends with the test. An
// answer that is "" is HTTP 500.
func New(t testing.TB, answer func(Question) string) *Service {
	s := &Service{answer: answer, seen: make(map[string]bool)}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	s.URL = web.URL
	return s
}

// Questions returns what was asked so far, in the order of arrival.
func (s *Service) Questions() []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Question(nil), s.got...)
}

// Repeated returns how many deliveries were refused since they had been there before.
func (s *Service) Repeated() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.repeated
}

// ServeHTTP implements http.Handler.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	q, ok := s.accept(body, r.Header.Get("X-Answerd-Signature"))
	if !ok {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if answer := s.answer(q); answer == "" {
		w.WriteHeader(http.StatusInternalServerError)
	} else {
		// An error is an asker that left.
		_, _ = io.WriteString(w, answer)
	}
}

// accept returns the receiver's side of the signature, as docs/hooks.md has it.
func (s *Service) accept(body []byte, signature string) (q Question, ok bool) {
	mac := hmac.New(sha256.New, []byte(Secret.Reveal()))
	mac.Write(body)
	if !hmac.Equal([]byte(signature), []byte("sha256="+hex.EncodeToString(mac.Sum(nil)))) {
		return q, false
	}
	if json.Unmarshal(body, &q) != nil || time.Since(time.Unix(q.Timestamp, 0)).Abs() > window {
		return q, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[q.DeliveryID] {
		s.repeated++
	}
	if q.DeliveryID == "" || s.seen[q.DeliveryID] {
		return q, false
	}
	s.seen[q.DeliveryID], q.Body = true, body
	s.got = append(s.got, q)
	return q, true
}
