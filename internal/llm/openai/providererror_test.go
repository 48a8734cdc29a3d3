package openai

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

func TestErrorMessageIsLoggedWithoutKeys(t *testing.T) {
	for said, want := range map[string]string{
		`{"error":{"message":"Unknown parameter: 'x'.","code":"unknown_parameter"}}`:        "Unknown parameter: 'x'.",
		`[{"error":{"code":400,"message":"Function call is missing a thought_signature"}}]`: "Function call is missing a thought_signature",
		`{"error":"model not found"}`:                                                                                                 "model not found",
		`{"object":"error","message":"bad\nrequest","code":400}`:                                                                      "bad request",
		`{"object":"error","message":{"detail":[{"msg":"Extra inputs are not permitted"}]}}`:                                          `[{"msg":"Extra inputs are not permitted"}]`,
		`{"error":{"message":"Incorrect API key provided: sk-proj-abcdef123456."}}`:                                                   "Incorrect API key provided: [redacted]",
		`{"error":{"message":"Authorization: Bearer abc.def wrong, CANARY-KEY wrong"}}`:                                               "Authorization: [redacted] wrong, [redacted] wrong",
		`{"error":{"message":"` + strings.Repeat("é ", 400) + `"}}`:                                                                   strings.Repeat("é ", 165) + "é…",
		`{"error":{"message":"Provider returned error","metadata":{"raw":"{\"object\":\"error\",\"message\":\"Unexpected role\"}"}}}`: "Provider returned error: Unexpected role",
		`{"error":{"message":"Provider returned error","metadata":{"raw":{"error":{"message":"no such tool"}}}}}`:                     "Provider returned error: no such tool",
		`{"error":{"message":"Provider returned error","metadata":{"raw":"<html>"}}}`:                                                 "Provider returned error",
		`{"error":{"message":"Forbidden","metadata":"none"}}`:                                                                         "Forbidden",
		`slow down`:                       "slow down",
		`<html>Sign in</html>`:            "",
		`{"error":{"code":"no_message"}}`: `{"code":"no_message"}`,
	} {
		var log bytes.Buffer
		_, m := newEndpoint(t, Config{APIKey: "CANARY-KEY", Logger: slog.New(slog.NewTextHandler(&log, nil))}, replyStatus(400, said))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		e := requireError(t, err, llm.ModelError)
		if e.Message != want || len(e.Message) > maxMessage {
			t.Errorf("%.60s: got message %q, want %q", said, e.Message, want)
		}
		if warned := strings.Contains(log.String(), "level=WARN"); warned != (want != "") || strings.Contains(log.String(), "CANARY") {
			t.Errorf("%.60s: got log %q, want a warning without the key", said, log.String())
		}
	}
}

func TestErrorMessageIsShownIfTheOperatorWantsIt(t *testing.T) {
	_, m := newEndpoint(t, Config{ShowErrors: true}, replyStatus(400, `{"error":{"message":"No such parameter."}}`))
	_, err := llmtest.Collect(t.Context(), m, testRequest)
	if got, want := llmtest.RequireError(t, err, llm.ModelError).Public, publicRefused+" It said: No such parameter."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestExhaustedQuotaIsNotRetried(t *testing.T) {
	for name, c := range map[string]struct {
		status    int
		said      string
		exhausted bool
	}{
		"OpenAI":            {429, `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}`, true},
		"DeepSeek":          {402, `{"error":{"message":"Insufficient Balance","type":"unknown_error","code":"invalid_request_error"}}`, true},
		"OpenRouter":        {402, `{"error":{"message":"Insufficient credits","code":402}}`, true},
		"Anthropic":         {400, `{"error":{"message":"Your credit balance is too low to access the API."}}`, true},
		"OpenAI per minute": {429, `{"error":{"message":"Rate limit reached for gpt-5 on tokens per min","code":"rate_limit_exceeded"}}`, false},
		"Gemini per minute": {429, `[{"error":{"code":429,"message":"You exceeded your current quota","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"0.001s"}]}}]`, false},
	} {
		s, m := newEndpoint(t, Config{MaxRetries: 1}, replyStatus(c.status, c.said))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		kind, public, requests := llm.RateLimited, publicLimited, 2
		if c.exhausted {
			kind, public, requests = llm.ModelError, publicQuota, 1
		}
		e := requireError(t, err, kind)
		if n := len(s.receivedRequests()); e.Public != public || e.Retryable == c.exhausted || n != requests {
			t.Errorf("%s: got %q, retryable %v, after %d requests, want %q after %d", name, e.Public, e.Retryable, n, public, requests)
		}
	}
}

// Gemini's errors end with the time to wait. With three violations they have more than 2 KiB.
func TestLongErrorIsReadToItsEnd(t *testing.T) {
	violation := `{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_requests","quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier","quotaDimensions":{"location":"global","model":"gemini-2.0-flash"}}`
	said := `[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.` + strings.Repeat(" Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 0, model: gemini-2.0-flash.", 5) +
		`","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[` + violation + strings.Repeat(","+violation, 5) +
		`]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34s"}]}}]`
	_, m := newEndpoint(t, Config{}, replyStatus(429, said))
	_, err := llmtest.Collect(t.Context(), m, testRequest)
	e := requireError(t, err, llm.RateLimited)
	if e.RetryAfter != 34*time.Second || !strings.HasPrefix(e.Message, "You exceeded your current quota") {
		t.Errorf("got the delay %s and the message %q, want 34s and the endpoint's message", e.RetryAfter, e.Message)
	}
}

func TestRateLimitInAStreamHasTheEndpointsRetryAfter(t *testing.T) {
	_, m := newEndpoint(t, Config{}, sendStream(eventStream(`{"error":{"code":429,"message":"slow down","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34s"}]}}`)))
	_, err := llmtest.Collect(t.Context(), m, testRequest)
	if e := requireError(t, err, llm.RateLimited); e.RetryAfter != 34*time.Second {
		t.Errorf("got the delay %s, want 34s", e.RetryAfter)
	}
}

func TestQuotaInAStreamIsTheEndpointsQuota(t *testing.T) {
	said := `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`
	_, m := newEndpoint(t, Config{}, sendStream(eventStream(said)))
	_, err := llmtest.Collect(t.Context(), m, testRequest)
	if e := requireError(t, err, llm.ModelError); e.Public != publicQuota || !e.Unavailable {
		t.Errorf("got %+v, want the text about the quota, and that a fallback is asked", e)
	}
}

// OpenRouter reports an error of its provider in the choice
// (https://openrouter.ai/docs/api-reference/overview).
func TestErrorInAChoiceIsTheError(t *testing.T) {
	choice := `{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error","error":{"code":429,"message":"the provider is busy"}}]}`
	s, m := newEndpoint(t, Config{MaxRetries: 1}, sendStream(eventStream(choice)))
	_, err := llmtest.Collect(t.Context(), m, testRequest)
	if e := requireError(t, err, llm.RateLimited); e.Message != "the provider is busy" || len(s.receivedRequests()) != 2 {
		t.Errorf("got the message %q after %d requests, want the provider's after 2", e.Message, len(s.receivedRequests()))
	}
}

func TestRateLimitHasTheEndpointsRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{"37": 37 * time.Second, "": 0, "soon": 0} {
		_, m := newEndpoint(t, Config{}, replyStatus(429, `{}`, "Retry-After", header))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		if e := requireError(t, err, llm.RateLimited); e.RetryAfter != want {
			t.Errorf("%q: got %s, want %s", header, e.RetryAfter, want)
		}
	}
}

// What an endpoint refuses by name is left out, at once and in later requests to the same model. A gateway may have
// other models, which take only max_completion_tokens.
func TestRefusedMembersAreLeftOut(t *testing.T) {
	refuse := replyStatus(422, `{"message":{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]}}`)
	s, m := newEndpoint(t, Config{}, refuse, sendStream(helloStream))
	r := testRequest
	r.MaxTokens = 7

	for _, r.Model = range []string{"mistral", "openai", "mistral"} {
		if _, err := llmtest.Collect(t.Context(), m, r); err != nil {
			t.Fatal(err)
		}
	}

	requests := s.receivedRequests()
	if len(requests) != 4 {
		t.Fatalf("got %d requests, want 4", len(requests))
	}

	for i, member := range []string{`"max_completion_tokens":7`, `"max_tokens":7`, `"max_completion_tokens":7`, `"max_tokens":7`} {
		if !bytes.Contains(requests[i].body, []byte(member)) {
			t.Errorf("request %d: got %s, want %s", i+1, requests[i].body, member)
		}
	}
}

// A limit that is too high says nothing about the name of the member. With max_tokens, all later requests
// would fail at models that take only max_completion_tokens.
func TestRefusedValueKeepsMaxCompletionTokens(t *testing.T) {
	for _, message := range []string{
		`'max_tokens' or 'max_completion_tokens' is too large: 900. This model's maximum context length is 1000 tokens and your request has 203 input tokens (900 > 1000 - 203). None`,
		`Invalid 'max_completion_tokens': integer above maximum value. Expected a value <= 500, but got 900 instead.`,
	} {
		s, m := newEndpoint(t, Config{}, replyStatus(400, `{"error":{"message":"`+message+`"}}`), sendStream(helloStream))
		r := testRequest
		r.MaxTokens = 900
		if _, err := llmtest.Collect(t.Context(), m, r); err == nil {
			t.Errorf("%s: got no error, want the endpoint's", message)
		}
		if n := len(s.receivedRequests()); n != 1 {
			t.Errorf("%s: got %d requests, want 1", message, n)
		}
	}
}

// A key file may be replaced while a request with the earlier key is in flight.
func TestErrorMessageIsLoggedWithoutTheKeyOfItsRequest(t *testing.T) {
	keys := []string{"CANARY-OLD", "CANARY-NEW"}
	next := 0
	_, m := newEndpoint(t, Config{Key: func() string { next++; return keys[min(next, len(keys))-1] }}, replyStatus(400, `{"error":{"message":"the key CANARY-OLD is wrong"}}`))
	_, err := llmtest.Collect(t.Context(), m, testRequest)
	if e := requireError(t, err, llm.ModelError); strings.Contains(e.Message, "CANARY") || !strings.Contains(e.Message, "the key [redacted]") {
		t.Errorf("message = %q, want the key redacted", e.Message)
	}
}
