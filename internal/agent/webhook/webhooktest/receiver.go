// Package webhooktest provides a service for the hooks of package webhook, for tests. It is a real HTTP server that
// checks signatures, and refuses questions that are old or were sent before.
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

// Secret is the key with which questions to the service must be signed.
var Secret = auth.NewSecret("a secret of the tests")

// maxAge is how far a question's timestamp may be from the current time.
const maxAge = 5 * time.Minute

// Question is the body of a question that the service has accepted.
type Question struct {
	Body     []byte `json:"-"` // as received
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

// Result is a tool's, a model's or a run's result; only the fields of one of them are set.
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

// ModelCall is a tool call as the model wrote it.
type ModelCall struct {
	CallID   string `json:"call_id"`
	Tool     string
	Args     json.RawMessage
	ArgsText string `json:"args_text"`
}

// Service is the test server. It responds with 401 to a question whose signature is wrong, whose timestamp is not
// within maxAge, or whose delivery_id is missing or was accepted before.
type Service struct {
	URL    string
	answer func(Question) string // see New

	mu       sync.Mutex      // protects the fields below
	seen     map[string]bool // the delivery_ids of accepted questions
	accepted []Question
	repeated int // how many questions were refused because of their delivery_id
}

// New starts a service, which is closed at the end of the test. The service replies to an accepted question with the
// text that answer returns, or with HTTP 500 if that is "". answer may be called concurrently.
func New(t testing.TB, answer func(Question) string) *Service {
	s := &Service{answer: answer, seen: make(map[string]bool)}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	s.URL = web.URL
	return s
}

// Questions returns the questions accepted so far, in the order they arrived.
func (s *Service) Questions() []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Question(nil), s.accepted...)
}

// Repeated returns how many questions were refused because their delivery_id had been accepted before.
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
	answer := s.answer(q)
	if answer == "" {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, answer) // fails if the client has closed the connection
}

// accept checks a request as docs/hooks.md advises receivers, decodes its question, and records it. ok is false if the
// request must be refused.
func (s *Service) accept(body []byte, signature string) (q Question, ok bool) {
	mac := hmac.New(sha256.New, []byte(Secret.Reveal()))
	mac.Write(body)
	if !hmac.Equal([]byte(signature), []byte("sha256="+hex.EncodeToString(mac.Sum(nil)))) {
		return q, false
	}
	if json.Unmarshal(body, &q) != nil || time.Since(time.Unix(q.Timestamp, 0)).Abs() > maxAge {
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
	s.seen[q.DeliveryID] = true
	q.Body = body
	s.accepted = append(s.accepted, q)
	return q, true
}
