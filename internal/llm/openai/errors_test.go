package openai

import (
	"net/http"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// What endpoints say when a conversation is too long for the model: none of them is
// asked again, and our caller is told what is wrong.
func TestExceedsContextRecognizesEndpointsErrors(t *testing.T) {
	for name, said := range map[string]string{
		"OpenAI":     `{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 200000 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`,
		"OpenAI new": `{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","code":null}}`,
		"vLLM":       `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages, 1000 in the completion).","type":"BadRequestError","code":400}`,
		"llama.cpp":  `{"error":{"code":400,"message":"request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9001,"n_ctx":8192}}`,
		"xAI":        `{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 140000 tokens."}`,
		"Anthropic":  `{"error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}`,
		"Gemini":     `[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]`,
		"Mistral":    `{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_invalid_args","code":"3051"}`,
		"TGI":        "{\"error\":\"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 `max_new_tokens`\"}",
	} {
		for where, step := range map[string]http.HandlerFunc{
			"reply": replyStatus(400, said), "413": replyStatus(413, said), "500": replyStatus(500, said),
			"error event":  sendStream("event: error\ndata: " + said + "\n\n"),
			"error object": sendStream(eventStream(`{"error":` + said + `}`)),
		} {
			s, m := newEndpoint(t, Config{MaxRetries: 2}, step)
			_, err := llmtest.Collect(t.Context(), m, testRequest)
			if e := requireError(t, err, llm.TooLarge); e.Public != publicContext || e.Retryable {
				t.Errorf("%s, %s: got %+v, want %q and no retry", name, where, e, publicContext)
			}
			if n := len(s.receivedRequests()); n != 1 {
				t.Errorf("%s, %s: got %d requests, want 1", name, where, n)
			}
		}
	}
}

// Tokens per minute are another matter, which a retry may cure, and so are other refusals.
func TestExceedsContextIgnoresOtherErrors(t *testing.T) {
	for said, code := range map[string]int{
		`{"error":{"message":"Request too large for model in organization on tokens per minute (TPM): Limit 6000, Requested 9000. Please reduce the length of the messages.","code":"rate_limit_exceeded"}}`: 413,
		`{"error":{"message":"Incorrect API key; maximum context length"}}`: 401,
		`{"error":{"message":"Unknown parameter: context_length"}}`:         400,
	} {
		_, m := newEndpoint(t, Config{}, replyStatus(code, said))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		requireError(t, err, llm.ModelError)
	}
}
