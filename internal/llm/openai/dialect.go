package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"answerd/internal/llm"
)

// dialect records which parts of a request an endpoint refuses. Strict endpoints answer 400 or
// 422 to members that they do not know, and name them. Mistral refuses max_completion_tokens.
// Groq refuses members that some of its own models have sent. The zero value is a request as OpenAI
// specifies it, which is always tried first: no list of endpoints has to be kept up to date.
type dialect struct {
	// The endpoint refuses these in all requests, so dialectStore remembers them.
	oldMaxTokens    bool // max_tokens is sent in place of max_completion_tokens
	noStreamOptions bool // stream_options is left out

	// Every request begins without these.
	noExtensions  bool // llm.Extensions are left out
	fillReasoning bool // messages of the assistant without reasoning_content get an empty one
	fillSignature bool // calls without a thought signature get Google's placeholder
	shortIDs      bool // ids of calls are shortened; not remembered, because gateways put signatures into some ids

	// modelRefusals remembers these for the model.
	noImages      bool // images are replaced by text
	noFormat      bool // response_format is left out, and the schema of the answer is written into the prompt
	schemaRefused bool // noFormat is about the schema of this request, so it is not remembered
	noStrict      bool // strict is left out of tools
	toolRefused   bool // noStrict is about the schema of one tool, so it is not remembered
}

// withoutRefused returns a dialect that also leaves out, or fills in, the one thing that refusal, the endpoint's error
// about the request body, is about. It returns d unchanged if the error names nothing that can be adapted, or nothing
// that body contains. hasSchema says that the request has an output schema, which can also be written into the prompt.
func (d dialect) withoutRefused(refusal *retryableError, body []byte, hasSchema bool) dialect {
	message := strings.ToLower(refusal.err.Message)
	status := refusal.err.Status
	isRefusal := slices.Contains(refusalStatuses, status)
	switch {
	case !d.noImages && refusal.refusesImages && bytes.Contains(body, []byte(`"type":"image_url"`)):
		d.noImages = true
	case isRefusal && !d.shortIDs && containsAny(message, idWords) && bytes.Contains(body, []byte(`"tool_calls":`)):
		d.shortIDs = true
	case isRefusal && !d.noFormat && hasSchema && containsAny(message, formatWords):
		d.noFormat = true
		d.schemaRefused = containsAny(message, schemaWords)
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity:
		return d.withoutRefusedMember(message, body)
	}
	return d
}

// withoutRefusedMember is the part of withoutRefused for members that the endpoint does not know, or misses. The words
// about them are common, so it is called only for the statuses of an invalid request. message is in lower case.
//
// An endpoint misses members where a call was made in an earlier run, by another model, or by DeepSeek without any
// reasoning. DeepSeek accepts an empty reasoning_content (https://github.com/earendil-works/pi/pull/3659,
// https://github.com/QwenLM/qwen-code/pull/3729), and Google defines a placeholder for calls without a signature
// (https://ai.google.dev/gemini-api/docs/thought-signatures).
func (d dialect) withoutRefusedMember(message string, body []byte) dialect {
	sends := func(member string) bool { return bytes.Contains(body, []byte(member)) }
	misses := containsAny(message, missingWords)
	refusesValue := containsAny(message, valueWords)
	refusesMember := !misses && containsAny(message, refusedWords)
	switch {
	case !d.noStrict && strictRefusal.MatchString(message) && sends(`"strict":true`):
		d.noStrict = true
		d.toolRefused = strings.Contains(message, "invalid schema")
	case misses && strings.Contains(message, "reasoning_content"):
		d.fillReasoning = true
	case misses && strings.Contains(strings.ReplaceAll(message, " ", "_"), "thought_signature"):
		d.fillSignature = true
	case strings.Contains(message, "max_completion_tokens") && !refusesValue && sends(`"max_completion_tokens":`):
		d.oldMaxTokens = true
	case strings.Contains(message, "stream_options") && sends(`"stream_options":`):
		d.noStreamOptions = true
	case refusesMember && !d.noExtensions && namesExtension(message, body):
		d.noExtensions = true
	}
	return d
}

// idWords lists, in lower case, the words with which endpoints refuse an id of a call: Mistral and servers of
// its models (https://github.com/anomalyco/opencode/issues/1680), and OpenAI
// (https://github.com/agno-agi/agno/issues/5382).
var idWords = []string{"with a length of 9", "].id': string too long", "tool_call_id': string too long"}

// strictRefusal matches, in lower case, the errors with which endpoints refuse strict tools: Gemini and gateways refuse
// all of them, Cerebras refuses requests in which only some tools are strict
// (https://github.com/RooCodeInc/Roo-Code/issues/10334), and OpenAI refuses a schema with a keyword that strict does
// not allow.
var strictRefusal = regexp.MustCompile(`\bstrict\b|invalid schema for function`)

// refusedWords lists, in lower case, the words with which endpoints refuse a member, missingWords those with which they
// ask for a member, and valueWords those with which they refuse the number in a member that they know.
var (
	refusedWords = []string{
		"unsupported", "not supported", "not permitted", "extra_forbidden", "not allowed",
		"unknown", "unrecognized", "unexpected", "invalid", "must not", "should not",
	}
	missingWords = []string{"must be passed back", "missing", "required"}
	valueWords   = []string{"too large", "too small", "maximum", "minimum", "at most", "at least", "greater than", "less than"}
)

// namesExtension reports whether the message, in lower case, names a member that the body contains and that only
// llm.Extensions add to a request.
func namesExtension(message string, body []byte) bool {
	for _, name := range []string{"reasoning_content", "reasoning_details", "reasoning", "extra_content", "thinking", "channel"} {
		if strings.Contains(message, name) && bytes.Contains(body, []byte(`"`+name+`":`)) {
			return true
		}
	}
	return false
}

// endpointPart returns the part of the dialect that applies to all requests to the endpoint, whatever their model and
// history.
func (d dialect) endpointPart() dialect {
	return dialect{oldMaxTokens: d.oldMaxTokens, noStreamOptions: d.noStreamOptions}
}

// adaptTools returns tools, or with noStrict a copy in which no tool is strict.
func (d dialect) adaptTools(tools []llm.Tool) []llm.Tool {
	if d.noStrict {
		tools = slices.Clone(tools)
		for i := range tools {
			tools[i].Strict = false
		}
	}
	return tools
}

// fillMembers adds an empty reasoning_content (fillReasoning) or Google's placeholder of a thought signature
// (fillSignature) to the messages of the assistant that have none.
func (d dialect) fillMembers(messages []wireMessage) {
	for i := range messages {
		m := &messages[i]
		if d.fillReasoning && m.Role == llm.Assistant && !bytes.Contains(m.Extensions, []byte(`"reasoning_content":`)) {
			m.Extensions = append(appendMembers([]byte(`{"reasoning_content":""`), m.Extensions), '}')
		}
		// Of parallel calls, Google requires a signature of the first one only.
		if d.fillSignature && len(m.ToolCalls) > 0 && !bytes.Contains(m.ToolCalls[0].Extensions, []byte(`"thought_signature"`)) {
			m.ToolCalls[0].Extensions = []byte(`{"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}}`)
		}
	}
}

// shortenIDs replaces the ids of calls, in the calls and in their results, by ids that every endpoint accepts.
func shortenIDs(messages []wireMessage) {
	for i := range messages {
		m := &messages[i]
		for j := range m.ToolCalls {
			m.ToolCalls[j].ID = shortID(m.ToolCalls[j].ID)
		}
		if m.ToolCallID != "" {
			m.ToolCallID = shortID(m.ToolCallID)
		}
	}
}

// mistralID matches the ids that Mistral gives and accepts.
var mistralID = regexp.MustCompile(`^[A-Za-z0-9]{9}$`)

// shortID returns an id that mistralID matches: id itself, or the beginning of its hash.
func shortID(id string) string {
	if mistralID.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])[:9]
}

// dialectStore holds the dialect of an endpoint for all of its streams.
type dialectStore struct {
	mu      sync.Mutex // guards the field below
	dialect dialect
}

// Load returns the dialect that was stored last; the zero dialect, which leaves nothing out, before the first Store.
func (s *dialectStore) Load() dialect {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialect
}

// Store replaces the dialect. If two streams store at the same time, the refusal that one of them has met may be lost;
// the next request meets it again.
func (s *dialectStore) Store(d dialect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialect = d
}

// refusalStatuses lists the statuses with which endpoints refuse images, a response_format or an id of a call.
// OpenRouter uses 404, llama.cpp and Ollama use 500.
var refusalStatuses = []int{
	http.StatusBadRequest, http.StatusNotFound, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
	http.StatusInternalServerError, http.StatusNotImplemented,
}

// imageWords lists, in lower case, the words with which endpoints say that a model takes no images.
// Words about one image, such as "unsupported image format", do not belong here.
// testdata/imageerrors.txt has the texts and their sources.
var imageWords = []string{
	"image_url is only supported by certain models", // OpenAI
	"unknown variant `image_url`",                   // DeepSeek
	"unknown variant image_url",                     // DeepSeek, as proxies repeat it
	"invalid type: sequence, expected a string",     // DeepSeek, older
	"support image input",                           // OpenRouter, xAI and many others: "does not support image input", "no endpoints found that support image input"
	"image input is not supported",                  // llama.cpp
	"image input is not enabled",                    // Mistral
	"image inputs are not supported",                // xAI
	"image input modality is not enabled",           // Gemini
	"missing data required for image input",         // Ollama
	"does not support images",                       // LM Studio, GitHub Copilot
	"not a multimodal model",                        // vLLM
	"at most 0 image",                               // vLLM
	"content must be a string",                      // Groq
	"content' : value must be a string",             // Groq, older
	"does not support vision",                       // several proxies
	"vision is not supported",                       // several proxies
}

// formatWords lists, in lower case, the words with which endpoints refuse a response_format, and
// schemaWords those with which they refuse one schema, although they take others.
var (
	formatWords = []string{
		"response_format", "response format", "json_schema", "response mime type",
		"structured output", "structured_output", "output_config", "guided",
	}
	schemaWords = []string{"invalid schema", "invalid json schema", "schema is invalid", "unsupported schema", "schema contains", "too many states"}
)

// refusesImages reports whether the status and the body of an endpoint's error say that the model takes no images.
func refusesImages(status int, body []byte) bool {
	return slices.Contains(refusalStatuses, status) && containsAny(strings.ToLower(string(body)), imageWords)
}

// Bounds of modelRefusals.
const (
	maxRefusedModels = 1000
	// refusalLifetime is the time after which the refused feature is tried again: the endpoint may serve another
	// model under the same id, or have been restarted with support for images.
	refusalLifetime = time.Hour
)

// modelRefusals remembers the models for which an endpoint has refused one feature, such as images. The zero value is
// empty. The methods may be called by any number of goroutines.
type modelRefusals struct {
	mu      sync.Mutex           // guards the field below
	refused map[string]time.Time // by model, when the endpoint refused the feature
}

// add remembers that the feature was refused for the model now. If maxRefusedModels are remembered already, add
// forgets any one of them.
func (s *modelRefusals) add(model string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		s.refused = make(map[string]time.Time)
	}
	if _, known := s.refused[model]; !known && len(s.refused) >= maxRefusedModels {
		for other := range s.refused {
			delete(s.refused, other)
			break
		}
	}
	s.refused[model] = time.Now()
}

// wasRefused reports whether the feature was refused for the model within refusalLifetime.
func (s *modelRefusals) wasRefused(model string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, known := s.refused[model]
	if known && time.Since(at) > refusalLifetime {
		delete(s.refused, model)
		return false
	}
	return known
}
