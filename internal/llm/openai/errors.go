package openai

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"answerd/internal/llm"
)

// Limits for one reply. The answer in it has separate limits (see assembler).
const (
	maxEvent     = 1 << 20  // size of one event of a stream, in bytes
	maxErrorBody = 64 << 10 // how many bytes of an error reply are read so that its connection can be reused
)

// Causes that the log gives for the end of a reply.
var (
	errStreamTooLarge = errors.New("the reply exceeds its size limit")
	errNoFinish       = errors.New("the stream ended without finish_reason")
	doneMarker        = []byte("[DONE]")
)

// errStopped says that the consumer has left its loop, so no more parts may be yielded.
var errStopped = errors.New("the consumer stopped")

// Texts for callers: what failed, and what to do next. They never quote an endpoint, because its message may contain
// keys, prompts of other callers, or text that is meant to deceive its reader.
const (
	publicUnreachable  = "The model endpoint could not be reached. Ask again later. Its operator can run answerd check, which says why."
	publicRefused      = "The model endpoint refused the request. Its operator finds the endpoint's message in the log, by the trace id."
	publicCredentials  = "The model endpoint rejected the credentials. Its operator has to correct LLM_API_KEY, or the key of the model in MODELS_FILE."
	publicUnknown      = "The model endpoint does not know the model. Name one of GET /v1/models. Its operator can check DEFAULT_MODEL_ID, and whether LLM_BASE_URL ends with /v1."
	publicNoTools      = "The model cannot call tools natively. Its operator can have them called as text, with LLM_TOOL_CALLING=text or tool_calling in its profile."
	publicContext      = "The conversation is too long for the model's context window. Shorten the question or its history."
	publicLimited      = "The model endpoint is rate limiting. Ask again later, after retry_after or Retry-After if there is one."
	publicQuota        = "The quota at the model endpoint is exhausted. Its operator has to raise it, or to pay."
	publicFailing      = "The model endpoint failed. Ask again later. Its operator finds the cause in the log, by the trace id."
	publicRedirect     = "The model endpoint answered with a redirect, which is not followed. Its operator has to correct LLM_BASE_URL."
	publicNonsense     = "The model endpoint sent something that is not a model's answer. Its operator can check whether LLM_BASE_URL is an OpenAI-compatible endpoint, up to and including /v1."
	publicTooLarge     = "The model's answer is too large. Ask for a shorter one."
	publicTooManyCalls = "The model asked for too many tool calls at once. Ask for less at a time, or choose another model."
	publicTruncated    = "The model's answer ended before it was complete. Ask again."
	publicNoFirstByte  = "The model endpoint did not begin to answer in time. Ask again. Its operator can raise LLM_FIRST_BYTE_TIMEOUT."
	publicIdle         = "The model endpoint stopped in the middle of its answer. Ask again. Its operator can raise LLM_IDLE_TIMEOUT."
)

// Causes with which the idle timer cancels a request's context.
var (
	errFirstByte = errors.New("no first byte within the time allowed")
	errIdle      = errors.New("no further byte within the time allowed")
)

// newError returns an *llm.Error that is not retryable. public is the text for callers, and err is the cause for the
// log.
func newError(kind llm.Kind, public string, err error) *llm.Error {
	return &llm.Error{Kind: kind, Public: public, Err: err}
}

// retryableError wraps an *llm.Error after which the retry loop may send another request, because no part of the answer
// was emitted. If err.Retryable is true, it may send the same request. Otherwise it may only send one in another
// dialect, if withoutRefused finds something to adapt.
type retryableError struct {
	err           *llm.Error
	retryAfter    string // as in a Retry-After header; "" if unknown
	refusesImages bool   // the endpoint says that the model takes no images
}

// setRetryAfter sets the time to wait, both for the retry loop and in the llm.Error for callers. value is the value of
// a Retry-After header. A malformed value counts as no time.
func (f *retryableError) setRetryAfter(value string) {
	f.retryAfter = value
	f.err.RetryAfter, _ = parseRetryAfter(value, time.Now())
}

// Error returns the text of the llm.Error, for the log.
func (f *retryableError) Error() string { return f.err.Error() }

// Unwrap returns the llm.Error. Callers of Stream get it if no other attempt is made.
func (f *retryableError) Unwrap() error { return f.err }

// maxErrorText is how many bytes of an error reply are searched for the cause. Gemini's errors about quotas have up to
// 4 KiB, and the time to wait comes last.
const maxErrorText = 8 << 10

// temporaryStatuses are the statuses, besides 429, after which the same request may succeed. OpenAI's SDKs also repeat
// a request after 409. 520 to 524 come from Cloudflare about an endpoint behind it, and 529 is Anthropic's
// "overloaded".
var temporaryStatuses = []int{
	http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusInternalServerError,
	http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, 520, 521, 522, 523, 524, 529,
}

// statusError returns the error for an HTTP status other than 2xx. The status is that of a reply, or one that
// errorStatus found inside a stream. body is the reply's body, or the error object in the stream.
func statusError(status int, body []byte) *retryableError {
	modelErr := newError(llm.ModelError, publicRefused, fmt.Errorf("status %d: %s", status, loggableCodes(body)))
	modelErr.Status, modelErr.Message = status, errorMessage(body)

	failed := &retryableError{err: modelErr}
	text := strings.ToLower(string(body))
	failed.refusesImages = slices.Contains(refusalStatuses, status) && containsAny(text, imageWords)
	rejectsKey := status == http.StatusUnauthorized || status == http.StatusForbidden
	if !rejectsKey && exceedsContext(body) {
		modelErr.Kind, modelErr.Public = llm.TooLarge, publicContext
		modelErr.ContextTokens, modelErr.PromptTokens = contextSizes(body)
		return failed
	}

	// Retry failures that may be temporary. A model call changes nothing at the endpoint, so even a 500 is safe to
	// repeat.
	modelErr.Unavailable = status == http.StatusTooManyRequests || status >= 500
	switch {
	case containsAny(text, noToolsWords):
		modelErr.Public, modelErr.Unavailable = publicNoTools, false
	case quotaExhausted(status, body):
		modelErr.Public, modelErr.Unavailable = publicQuota, true // an llm.Router may ask another endpoint
	case status >= 300 && status < 400:
		modelErr.Public = publicRedirect
	case rejectsKey:
		modelErr.Public = publicCredentials
	case status == http.StatusNotFound:
		modelErr.Public = publicUnknown
		modelErr.UnknownModel = containsAny(text, modelWords)
	case status == http.StatusTooManyRequests:
		modelErr.Kind = llm.RateLimited
		modelErr.Public = publicLimited
		modelErr.Retryable = true
		failed.setRetryAfter(retryInfo(body))
	case slices.Contains(temporaryStatuses, status):
		modelErr.Public = publicFailing
		modelErr.Retryable = true
	case status >= 500:
		modelErr.Public = publicFailing
	}
	return failed
}

// responseError returns the error for a reply whose status is not 2xx. It reads at most maxErrorText + maxErrorBody
// bytes of the reply's body, and does not close it.
func responseError(res *http.Response) *retryableError {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorText))
	_, _ = io.CopyN(io.Discard, res.Body, maxErrorBody) // a connection can be reused only if its reply was read to the end
	failed := statusError(res.StatusCode, body)
	if err != nil {
		failed.err.Err = fmt.Errorf("%w (%w)", failed.err.Err, err)
	}
	failed.setRetryAfter(cmp.Or(res.Header.Get("Retry-After"), failed.retryAfter))
	return failed
}

// contextWords are the phrases, in lower case, with which endpoints report a conversation that exceeds the model's
// context window. Only OpenAI has a code for it. Most endpoints write prose.
var contextWords = []string{
	"context_length_exceeded",            // OpenAI, Azure, Groq, Fireworks
	"exceed_context_size",                // llama.cpp: the error's type
	"exceeds the available context size", // llama.cpp
	"maximum context length",             // OpenAI, vLLM, DeepSeek, OpenRouter, Together
	"maximum prompt length",              // xAI
	"prompt is too long",                 // Anthropic
	"input is too long",                  // Bedrock
	"input token count",                  // Gemini: "… exceeds the maximum number of tokens allowed"
	"exceeds the context window",         // OpenAI's newer models
	"exceeds context length",             // Ollama
	"larger than the context length",     // LM Studio
	"longer than the model's context",    // SGLang
	"exceeds the maximum allowed length", // SGLang
	"exceeds the maximum allowed input",  // Poolside
	"longer than the maximum model",      // vLLM
	"context length is only",             // vLLM
	"context length of only",             // LM Studio
	"greater than the context length",    // LM Studio
	"cannot truncate prompt with n_keep", // LM Studio
	"context size has been exceeded",     // LM Studio with MLX
	"exceeded max context length",        // Ollama: "prompt too long; exceeded max context length by 17 tokens"
	"exceed context window of",           // llama-cpp-python
	"exceed context limit",               // Anthropic
	"exceed the configured limit of",     // OpenAI
	"exceeded model token limit",         // Kimi
	"context window exceeds limit",       // MiniMax
	"prompt exceeds max length",          // Z.ai, code 1261
	"range of input length should be",    // Qwen
	"prompt token count of",              // GitHub Copilot
	"inputs` must have less than",        // TGI
	"too large for model with",           // Mistral: "Prompt contains … tokens …, too large for model with …"
	"max_new_tokens` must be <=",         // TGI
	"reduce the length of the messages",  // OpenAI, older
}

// noToolsWords are the phrases, in lower case, with which servers refuse tools for a model that cannot call them.
var noToolsWords = []string{
	"does not support tools",          // Ollama
	"unsupported param: tools",        // llama.cpp, older
	"tools param requires --jinja",    // llama.cpp
	"--tool-call-parser to be set",    // vLLM
	"support tool use",                // xAI; OpenRouter: "No endpoints found that support tool use"
	"support function calling",        // DeepSeek
	"function calling is not enabled", // Gemini's endpoint, for Gemma
}

// modelWords distinguish a 404 about the model from a 404 about the path: "The model `x` does not exist" (OpenAI, Groq,
// vLLM), "model 'x' not found" (Ollama), DeploymentNotFound (Azure).
var modelWords = []string{"model", "deployment"}

// limitWords distinguish a rate limit of tokens per minute, which is temporary, from a prompt that is too long. Both
// kinds of text may match contextWords.
var limitWords = []string{"rate_limit", "rate limit", "per minute", "quota"}

// exceedsContext reports whether an endpoint's error body says that the conversation is too long for the model.
func exceedsContext(body []byte) bool {
	text := strings.ToLower(string(body))
	return containsAny(text, contextWords) && !containsAny(text, limitWords)
}

// containsAny reports whether text contains one of words. Both text and words must be in lower case.
func containsAny(text string, words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
}

// quotaWords are the phrases, in lower case, with which endpoints report that an account has used up its quota or
// credit. Waiting does not help, so the request is not repeated.
var quotaWords = []string{
	"insufficient_quota",          // OpenAI, Azure
	"billing_hard_limit_reached",  // OpenAI
	"insufficient balance",        // DeepSeek, with 402
	"insufficient credits",        // OpenRouter, with 402
	"credit balance is too low",   // Anthropic, with 400
	"monthly spending limit",      // xAI, with 403
	"exceeded your current quota", // OpenAI; also Gemini for a limit per minute
}

// quotaExhausted reports whether an endpoint's error, with this status and body, says that the quota is used up. A
// limit per minute does not count: Gemini reports it with the same words, but also names the limit and the time to
// wait.
func quotaExhausted(status int, body []byte) bool {
	if status == http.StatusPaymentRequired {
		return true
	}
	text := strings.ToLower(string(body))
	isPerMinute := strings.Contains(text, "perminute") || retryInfo(body) != ""
	return status/100 == 4 && containsAny(text, quotaWords) && !isPerMinute
}

// retryDelayMember matches the time to wait in an error of Google's APIs (google.rpc.RetryInfo).
var retryDelayMember = regexp.MustCompile(`"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"`)

// retryInfo returns the time to wait in an error of Google's APIs, in seconds as in a Retry-After header. It returns ""
// if the error has none.
func retryInfo(body []byte) string {
	if m := retryDelayMember.FindSubmatch(body); m != nil {
		return string(m[1])
	}
	return ""
}

// codeWord matches an error code made of words, which may be logged. Keys and prompts do not match.
var codeWord = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// loggableCodes returns what may be logged about an endpoint's reply: its length, and an error's type and code. The
// rest may repeat the request or its key.
func loggableCodes(body []byte) string {
	var object struct {
		Error      json.RawMessage
		Type, Code any
	}
	text := fmt.Sprintf("%d bytes", len(body))
	if json.Unmarshal(body, &object) != nil {
		return text
	}
	if object.Error != nil {
		_ = json.Unmarshal(object.Error, &object) // an error that is not an object has no codes
	}
	for _, code := range []any{object.Type, object.Code} {
		switch v := code.(type) {
		case float64:
			text += fmt.Sprintf(", %g", v)
		case string:
			if len(v) <= 64 && codeWord.MatchString(v) {
				text += ", " + v
			}
		}
	}
	return text
}
