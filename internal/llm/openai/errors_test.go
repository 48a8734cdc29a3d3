package openai

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// contextError is a line of testdata/contexterrors.txt.
type contextError struct {
	name           string // the comment before it
	window, prompt int64
	body           string
}

func readContextErrors(t *testing.T) (out []contextError) {
	t.Helper()
	data, err := os.ReadFile("testdata/contexterrors.txt")
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			name = comment
			continue
		}
		if line == "" {
			continue
		}
		c := contextError{name: name}
		if _, err := fmt.Sscan(line, &c.window, &c.prompt); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		c.body = strings.SplitN(line, " ", 3)[2]
		out = append(out, c)
	}
	if len(out) < 50 {
		t.Fatalf("got %d errors, want at least 50", len(out))
	}
	return out
}

// Endpoints report a conversation that is too long for the model in many ways. None of these
// requests is repeated, the caller is told what is wrong, and the named sizes are in the error.
func TestExceedsContextRecognizesEndpointsErrors(t *testing.T) {
	for _, c := range readContextErrors(t) {
		for where, step := range map[string]http.HandlerFunc{
			"reply": replyStatus(400, c.body), "413": replyStatus(413, c.body), "500": replyStatus(500, c.body),
			"error event":  sendStream("event: error\ndata: " + c.body + "\n\n"),
			"error object": sendStream(eventStream(`{"error":` + c.body + `}`)),
		} {
			t.Run(where+" of "+c.name, func(t *testing.T) {
				s, m := newEndpoint(t, Config{MaxRetries: 2}, step)
				_, err := llmtest.Collect(t.Context(), m, testRequest)
				e := requireError(t, err, llm.TooLarge)
				if e.Public != publicContext || e.Retryable {
					t.Errorf("got %+v, want %q and no retry", e, publicContext)
				}
				if e.ContextTokens != c.window || e.PromptTokens != c.prompt {
					t.Errorf("got a window of %d and a prompt of %d tokens, want %d and %d", e.ContextTokens, e.PromptTokens, c.window, c.prompt)
				}
				if n := len(s.receivedRequests()); n != 1 {
					t.Errorf("got %d requests, want 1", n)
				}
			})
		}
	}
}

// Tokens per minute are another matter, which a retry may cure, and so are other refusals.
func TestExceedsContextIgnoresOtherErrors(t *testing.T) {
	for said, code := range map[string]int{
		`{"error":{"message":"Request too large for model in organization on tokens per minute (TPM): Limit 6000, Requested 9000. Please reduce the length of the messages.","code":"rate_limit_exceeded"}}`: 413,
		`{"error":{"message":"Incorrect API key; maximum context length"}}`:                                                                                               401,
		`{"error":{"message":"max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.","code":"invalid_value"}}`: 400,
		`{"error":{"message":"Unknown parameter: context_length"}}`:                                                                                                       400,
	} {
		_, m := newEndpoint(t, Config{}, replyStatus(code, said))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		requireError(t, err, llm.ModelError)
	}
}

// The operator of a model that cannot call tools has to know about text tool calling.
func TestErrorAboutToolsNamesTextToolCalling(t *testing.T) {
	for _, said := range []string{
		"registry.ollama.ai/library/gemma3:1b does not support tools",
		"Function calling is not enabled for models/gemma-3-27b-it",
		"deepseek-reasoner does not support Function Calling",
	} {
		_, m := newEndpoint(t, Config{}, replyStatus(400, fmt.Sprintf(`{"error":{"message":%q}}`, said)))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		if got := llmtest.RequireError(t, err, llm.ModelError).Public; got != publicNoTools {
			t.Errorf("%s: got %q, want %q", said, got, publicNoTools)
		}
	}
}
