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

// dialect records which parts of a request an endpoint refuses. Strict endpoints answer 400 or 422 to members that they
// do not know, and name them. Mistral refuses max_completion_tokens. Groq refuses members that some of its own models
// have sent. The zero value is a request as OpenAI specifies it. It is always tried first, so that no list of endpoints
// has to be maintained.
type dialect struct {
	// Each new request starts without these.
	noExtensions  bool // leave out llm.Extensions
	fillReasoning bool // give assistant messages without reasoning_content an empty one
	fillSignature bool // give calls without a thought signature Google's placeholder
	shortIDs      bool // shorten the ids of calls; not remembered, because gateways put signatures into some ids
	addTool       bool // offer a placeholder if the request has no tools
	alternate     bool // put an answer before each user message that follows a tool result or a user message

	// knownDialects remembers these per model, because endpoints such as LiteLLM have models of several vendors.
	oldMaxTokens    bool // send max_tokens instead of max_completion_tokens
	noStreamOptions bool // leave out stream_options
	noSystem        bool // send the system message as a user message
	noImages        bool // replace images with text
	noFormat        bool // leave out response_format, and write the schema of the answer into the prompt
	schemaRefused   bool // noFormat is due to this request's schema, so it is not remembered
	noStrict        bool // leave out strict in tools
	toolRefused     bool // noStrict is due to the schema of one tool, so it is not remembered
}

// withoutRefused returns d with one more adaptation, which avoids what the endpoint refused. refusal is the endpoint's
// error about the request body. withoutRefused returns d unchanged if the error names nothing that can be adapted, or
// nothing that body contains. hasSchema says that the request has an output schema, which can be written into the
// prompt instead.
func (d dialect) withoutRefused(refusal *retryableError, body []byte, hasSchema bool) dialect {
	message := strings.ToLower(refusal.err.Message)
	status := refusal.err.Status
	mayRefuse := slices.Contains(refusalStatuses, status)
	switch {
	case !d.noImages && refusal.refusesImages && bytes.Contains(body, []byte(`"type":"image_url"`)):
		d.noImages = true
	case mayRefuse && !d.shortIDs && containsAny(message, idWords) && bytes.Contains(body, []byte(`"tool_calls":`)):
		d.shortIDs = true
	case mayRefuse && !d.noSystem && containsAny(message, systemWords):
		d.noSystem = true
	case mayRefuse && !d.addTool && containsAny(message, needToolsWords):
		d.addTool = true
	case mayRefuse && !d.alternate && containsAny(message, orderWords):
		d.alternate = true
	case mayRefuse && !d.noFormat && hasSchema && containsAny(message, formatWords):
		d.noFormat = true
		d.schemaRefused = containsAny(message, schemaWords)
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity:
		return d.withoutRefusedMember(message, body)
	}
	return d
}

// withoutRefusedMember handles members that the endpoint does not know, or that it misses, for withoutRefused. The
// words that it looks for are common, so it must be called only for the statuses of an invalid request. message is in
// lower case.
//
// An endpoint misses a member if a call was made in an earlier run, by another model, or by DeepSeek without reasoning.
// DeepSeek accepts an empty reasoning_content (https://github.com/earendil-works/pi/pull/3659,
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

// idWords are the phrases, in lower case, with which endpoints refuse the id of a call: Mistral and servers of its
// models (https://github.com/anomalyco/opencode/issues/1680), OpenAI
// (https://github.com/agno-agi/agno/issues/5382), and Anthropic, which refuses ids such as functions.f:0
// (https://github.com/maximhq/bifrost/issues/5097).
var idWords = []string{
	"with a length of 9", "].id': string too long", "tool_call_id': string too long",
	"tool_use.id: string should", "tool_use_id: string should",
}

// orderWords are the phrases, in lower case, with which Mistral and the chat templates of its models refuse a user
// message after a tool result or another user message (https://github.com/NousResearch/hermes-agent/issues/20154).
var orderWords = []string{"role 'user' after role 'tool'", "roles must alternate"}

// systemWords are the phrases, in lower case, with which endpoints refuse the role system: Gemma 2 on vLLM
// (https://github.com/huggingface/chat-ui/issues/1386), OpenAI (https://github.com/tailcallhq/forgecode/issues/1177)
// and Gemma 3 at Gemini's endpoint.
var systemWords = []string{"system role not supported", "does not support 'system'", "developer instruction is not enabled"}

// needToolsWords are the phrases, in lower case, with which Bedrock, LiteLLM and Anthropic refuse a conversation with
// calls if the request has no tools (https://github.com/BerriAI/litellm/issues/5388).
var needToolsWords = []string{"toolconfig field must be defined", "without `tools=` param", "blocks must define tools"}

// placeholderTool is offered to endpoints that require tools. The choice that is sent with it is auto, because LiteLLM
// refuses none for Bedrock.
var placeholderTool = llm.Tool{Name: "unavailable", Description: "Does nothing. Never call it."}

// strictRefusal matches the errors, in lower case, with which endpoints refuse strict tools. Gemini and gateways refuse
// all strict tools. Cerebras refuses requests in which only some tools are strict
// (https://github.com/RooCodeInc/Roo-Code/issues/10334). OpenAI refuses a schema with a keyword that strict does not
// allow.
var strictRefusal = regexp.MustCompile(`\bstrict\b|invalid schema for function`)

// Phrases of endpoints, in lower case. refusedWords refuse a member. missingWords ask for a member. valueWords refuse
// the number in a member that the endpoint knows.
var (
	refusedWords = []string{
		"unsupported", "not supported", "not permitted", "extra_forbidden", "not allowed",
		"unknown", "unrecognized", "unexpected", "invalid", "must not", "should not",
	}
	missingWords = []string{"must be passed back", "missing", "required"}
	valueWords   = []string{"too large", "too small", "maximum", "minimum", "at most", "at least", "greater than", "less than"}
)

// namesExtension reports whether the message, in lower case, names a member that body contains and that only
// llm.Extensions add to a request.
func namesExtension(message string, body []byte) bool {
	names := []string{"reasoning_content", "reasoning_details", "reasoning", "extra_content", "thinking", "channel"}
	return slices.ContainsFunc(names, func(name string) bool {
		return strings.Contains(message, name) && bytes.Contains(body, []byte(`"`+name+`":`))
	})
}

// adaptTools returns tools. If noStrict is set, it returns a copy in which no tool is strict.
func (d dialect) adaptTools(tools []llm.Tool) []llm.Tool {
	if !d.noStrict {
		return tools
	}
	tools = slices.Clone(tools)
	for i := range tools {
		tools[i].Strict = false
	}
	return tools
}

// fillMembers adds what assistant messages lack: an empty reasoning_content (fillReasoning), or Google's placeholder
// for a thought signature (fillSignature).
func (d dialect) fillMembers(messages []wireMessage) {
	for i := range messages {
		m := &messages[i]
		if d.fillReasoning && m.Role == llm.Assistant && !bytes.Contains(m.Extensions, []byte(`"reasoning_content":`)) {
			m.Extensions = append(appendMembers([]byte(`{"reasoning_content":""`), m.Extensions), '}')
		}
		// Google requires a signature only for the first of several parallel calls.
		if d.fillSignature && len(m.ToolCalls) > 0 && !bytes.Contains(m.ToolCalls[0].Extensions, []byte(`"thought_signature"`)) {
			m.ToolCalls[0].Extensions = []byte(`{"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}}`)
		}
	}
}

// alternateRoles returns messages with a short answer before each user message that follows a tool result or another
// user message. The answer is not empty, because Mistral refuses empty ones.
func alternateRoles(messages []wireMessage) []wireMessage {
	out := make([]wireMessage, 0, len(messages))
	for i, m := range messages {
		if i > 0 && m.Role == llm.User && (messages[i-1].Role == llm.User || messages[i-1].Role == llm.ToolRole) {
			out = append(out, wireMessage{Role: llm.Assistant, Content: "OK."})
		}
		out = append(out, m)
	}
	return out
}

// shortenIDs replaces the ids of calls, in the calls and in their results, with ids that every endpoint accepts.
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

// mistralID matches the ids that Mistral generates and accepts.
var mistralID = regexp.MustCompile(`^[A-Za-z0-9]{9}$`)

// shortID returns an id that mistralID matches: id itself, or the beginning of its hash.
func shortID(id string) string {
	if mistralID.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])[:9]
}

// refusalStatuses are the statuses with which endpoints refuse images, a response_format, the id of a call, or a
// role or the order of roles, or demand tools. OpenRouter uses 404, and llama.cpp and Ollama use 500.
var refusalStatuses = []int{
	http.StatusBadRequest, http.StatusNotFound, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
	http.StatusInternalServerError, http.StatusNotImplemented,
}

// imageWords are the phrases, in lower case, with which endpoints say that a model takes no images. Phrases about a
// particular image, such as "unsupported image format", do not belong here. testdata/imageerrors.txt has the texts and
// their sources.
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

// formatWords are the phrases, in lower case, with which endpoints refuse a response_format. schemaWords are those with
// which they refuse a particular schema, although they accept others.
var (
	formatWords = []string{
		"response_format", "response format", "json_schema", "response mime type",
		"structured output", "structured_output", "output_config", "guided",
		"json mode", "json response type", // Groq and Mistral, of requests with tools
	}
	schemaWords = []string{"invalid schema", "invalid json schema", "schema is invalid", "unsupported schema", "schema contains", "too many states"}
)

// Limits for knownDialects.
const (
	maxKnownDialects = 1000
	// dialectLifetime is how long a refusal is remembered. After that, the feature is tried again, because the endpoint
	// may serve another model under the same id, or may have been restarted with support for images.
	dialectLifetime = time.Hour
)

// knownDialects remembers what an endpoint has refused for each model. The zero value is empty. The methods may be
// called concurrently. If two streams call set for a model at the same time, one of two refusals may be lost, and the
// next request meets it again.
type knownDialects struct {
	mu      sync.Mutex // guards the field below
	byModel map[string]knownDialect
}

// knownDialect is the dialect of a model, and the time of its last refusal.
type knownDialect struct {
	dialect   dialect
	refusedAt time.Time
}

// set stores the part of d that applies to other requests to the model, and returns it. A refusal of a single schema or
// tool is not stored. If maxKnownDialects models are already stored, set forgets an arbitrary one.
func (k *knownDialects) set(model string, d dialect) dialect {
	d = dialect{
		oldMaxTokens: d.oldMaxTokens, noStreamOptions: d.noStreamOptions, noSystem: d.noSystem, noImages: d.noImages,
		noFormat: d.noFormat && !d.schemaRefused, noStrict: d.noStrict && !d.toolRefused,
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byModel == nil {
		k.byModel = make(map[string]knownDialect)
	}
	known, isKnown := k.byModel[model]
	if known.dialect == d { // nothing was refused that lasts, so the lifetime does not begin again
		return d
	}
	if !isKnown && len(k.byModel) >= maxKnownDialects {
		for other := range k.byModel {
			delete(k.byModel, other)
			break
		}
	}
	k.byModel[model] = knownDialect{d, time.Now()}
	return d
}

// get returns the dialect for a new request to the model, without everything that was refused within dialectLifetime.
func (k *knownDialects) get(model string) dialect {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byModel[model]
	if time.Since(known.refusedAt) > dialectLifetime {
		delete(k.byModel, model)
		return dialect{}
	}
	return known.dialect
}
