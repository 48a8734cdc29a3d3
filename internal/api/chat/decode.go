package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"
	"answerd/internal/agent/output"
	"answerd/internal/api/typeerror"
)

// Request holds a decoded body.
type Request struct {
	agent.Request
	Model        string // as the client wrote it, for the response; Request.Model lacks the suffix WithoutTools
	Stream       bool
	IncludeUsage bool // stream_options.include_usage
	// Options is the member "answerd", which has native fields that this format lacks; nil if it is missing.
	Options json.RawMessage
}

// body has the members of a request that Decode reads. Decode ignores others, because clients send many and new ones
// appear often.
type body struct {
	Model         string             `json:"model"`
	Messages      []inMessage        `json:"messages"`
	Stream        bool               `json:"stream"`
	StreamOptions *streamOptions     `json:"stream_options"`
	N             *agent.JSONInteger `json:"n"`
	Tools         []inTool           `json:"tools"`
	Functions     json.RawMessage    `json:"functions"`
	ToolChoice    json.RawMessage    `json:"tool_choice"`

	MaxTokens           agent.JSONInteger `json:"max_tokens"` // the older name
	MaxCompletionTokens agent.JSONInteger `json:"max_completion_tokens"`

	Temperature      *float64           `json:"temperature"`
	TopP             *float64           `json:"top_p"`
	PresencePenalty  *float64           `json:"presence_penalty"`
	FrequencyPenalty *float64           `json:"frequency_penalty"`
	Seed             *agent.JSONInteger `json:"seed"`
	Stop             stopList           `json:"stop"`
	ReasoningEffort  string             `json:"reasoning_effort"`
	Verbosity        string             `json:"verbosity"`
	ResponseFormat   json.RawMessage    `json:"response_format"`
	Metadata         map[string]string  `json:"metadata"`
	Parallel         *bool              `json:"parallel_tool_calls"`

	// Members that ask for something the response would lack; checkSupported refuses them.
	Logprobs    *bool              `json:"logprobs"`
	TopLogprobs *agent.JSONInteger `json:"top_logprobs"`
	LogitBias   map[string]any     `json:"logit_bias"`
	Modalities  []string           `json:"modalities"`
	Audio       json.RawMessage    `json:"audio"`
	WebSearch   json.RawMessage    `json:"web_search_options"`
	Call        json.RawMessage    `json:"function_call"`

	Answerd json.RawMessage `json:"answerd"`
}

// streamOptions is the member stream_options.
type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// inTool is a tool that the client executes.
type inTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
		Strict      bool            `json:"strict"`
	} `json:"function"`
}

// stopList is the member stop: one string, a list of strings, or null.
type stopList []string

// UnmarshalJSON decodes all three forms; null becomes nil. For any other value, it returns the error of decoding a
// list.
func (s *stopList) UnmarshalJSON(data []byte) error {
	var single *string
	if json.Unmarshal(data, &single) == nil {
		if single != nil {
			*s = stopList{*single}
		}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}

// Decode decodes the body of a request. The error is an *Invalid about one wrong member, because an error of this
// format can name only one parameter. The returned Request is then incomplete.
func Decode(data []byte) (Request, error) {
	var in body
	if !utf8.Valid(data) {
		return Request{}, &Invalid{"", "the body is not valid UTF-8"}
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return Request{}, decodeError(data, err)
	}
	request := Request{Model: in.Model, Stream: in.Stream, Options: in.Answerd}
	request.IncludeUsage = in.StreamOptions != nil && in.StreamOptions.IncludeUsage
	request.Sampling = agent.Sampling{
		Temperature: in.Temperature, TopP: in.TopP,
		PresencePenalty: in.PresencePenalty, FrequencyPenalty: in.FrequencyPenalty,
		Seed: (*int64)(in.Seed), Stop: in.Stop, ReasoningEffort: in.ReasoningEffort, Verbosity: in.Verbosity,
		ParallelToolCalls: in.Parallel,
	}
	request.MaxTokens = int64(max(in.MaxTokens, in.MaxCompletionTokens))
	if err := in.checkSupported(); err != nil {
		return request, err
	}
	if invalid := request.SetMetadata(in.Metadata); invalid != nil {
		return request, &Invalid{"metadata", invalid.Detail}
	}
	if err := request.readResponseFormat(in.ResponseFormat); err != nil {
		return request, err
	}
	if err := request.readTools(in); err != nil {
		return request, err
	}
	name, withoutTools := strings.CutSuffix(in.Model, WithoutTools)
	request.Request.Model = name
	if withoutTools {
		request.ToolChoice = agent.ToolNone // overrides tool_choice
	}
	return request, request.readMessages(in.Messages)
}

// checkSupported returns an error for values that the service does not support. If it ignored them, the response would
// lack what the client asked for, such as logprobs.
func (in body) checkSupported() error {
	switch {
	case in.MaxTokens < 0:
		return &Invalid{"max_tokens", "must be positive"}
	case in.MaxCompletionTokens < 0:
		return &Invalid{"max_completion_tokens", "must be positive"}
	case in.N != nil && *in.N != 1:
		return &Invalid{"n", "must be 1: a response has one choice"}
	case len(in.Stop) > maxStops:
		return &Invalid{"stop", fmt.Sprintf("must not be more than %d", maxStops)}
	case isGiven(in.Functions):
		return &Invalid{"functions", "is no longer supported: use tools"}
	case isGiven(in.Call):
		return &Invalid{"function_call", "is no longer supported: use tool_choice"}
	case in.Logprobs != nil && *in.Logprobs:
		return &Invalid{"logprobs", "is not supported"}
	case in.TopLogprobs != nil && *in.TopLogprobs != 0:
		return &Invalid{"top_logprobs", "is not supported"}
	case len(in.LogitBias) > 0:
		return &Invalid{"logit_bias", "is not supported"}
	case slices.ContainsFunc(in.Modalities, func(m string) bool { return m != "text" }):
		return &Invalid{"modalities", "can only be text"}
	case isGiven(in.Audio):
		return &Invalid{"audio", "is not supported: answers are text"}
	case isGiven(in.WebSearch):
		return &Invalid{"web_search_options", "is not supported: the service has tools of its own"}
	}
	return nil
}

// isGiven reports whether a member is present and not null. Clients send null for members that are not set.
func isGiven(raw json.RawMessage) bool { return raw != nil && string(raw) != "null" }

// readResponseFormat checks response_format and passes it on unchanged, because the model endpoint enforces it. The
// type text counts as no response_format, so that a named agent's own output_schema remains in force.
func (q *Request) readResponseFormat(raw json.RawMessage) error {
	if !isGiven(raw) {
		return nil
	}
	var format struct {
		Type       string
		JSONSchema json.RawMessage `json:"json_schema"`
	}
	if json.Unmarshal(raw, &format) != nil {
		format.Type = "" // is refused below
	}
	switch format.Type {
	case "text":
		return nil
	case "json_object":
		q.Sampling.ResponseFormat = raw
		return nil
	case "json_schema":
		q.Sampling.ResponseFormat = raw
		return q.readSchema(format.JSONSchema)
	}
	return &Invalid{"response_format.type", "must be text, json_object or json_schema"}
}

// readSchema checks raw, the member response_format.json_schema. If strict is true, its schema becomes q.OutputSchema,
// so that the agent validates the answer with it.
func (q *Request) readSchema(raw json.RawMessage) error {
	if !isGiven(raw) || raw[0] != '{' {
		return &Invalid{"response_format.json_schema", "must be an object"}
	}
	var jsonSchema struct {
		Strict bool
		Schema json.RawMessage
	}
	if err := json.Unmarshal(raw, &jsonSchema); err != nil {
		return &Invalid{"response_format.json_schema.strict", "must be true or false"}
	}
	if !jsonSchema.Strict || !isGiven(jsonSchema.Schema) {
		return nil
	}
	if _, err := output.Compile(jsonSchema.Schema); err != nil {
		return &Invalid{"response_format.json_schema.schema", "cannot be used as a JSON Schema: " + err.Error()}
	}
	q.OutputSchema = jsonSchema.Schema
	return nil
}

// decodeError turns err, the error of json.Unmarshal for body, into an *Invalid. It names the parameter if err does,
// but leaves out err's text, which names Go types.
func decodeError(body []byte, err error) error {
	if field, typeName, ok := typeerror.Find(body, err); ok {
		return &Invalid{field, "is of the wrong type: " + typeName}
	}
	return &Invalid{"", "the body is not a JSON object of this format"}
}

// readTools reads the tools that the client executes, and tool_choice.
func (q *Request) readTools(in body) error {
	if len(in.Tools) > agent.MaxClientTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", agent.MaxClientTools)}
	}
	for i, tool := range in.Tools {
		if tool.Type != "function" {
			return &Invalid{fmt.Sprintf("tools[%d].type", i), "must be function"}
		}
		f := tool.Function
		invalid := q.AddClientTool(agent.ClientTool{
			Name: f.Name, Description: f.Description, Schema: f.Parameters, Strict: f.Strict,
		})
		if invalid != nil {
			member := strings.TrimPrefix(invalid.Pointer, "/")
			return &Invalid{fmt.Sprintf("tools[%d].function.%s", i, member), invalid.Detail}
		}
	}
	return q.readChoice(in.ToolChoice)
}

// readChoice reads tool_choice: a mode, or one function that the model must call. The default is auto.
func (q *Request) readChoice(raw json.RawMessage) error {
	q.ToolChoice = agent.ToolAuto
	if !isGiven(raw) {
		return nil
	}
	switch mode := string(raw); mode {
	case `"auto"`, `"none"`, `"required"`:
		q.ToolChoice = agent.ToolChoice(strings.Trim(mode, `"`))
		return nil
	}
	var choice struct {
		namedFunction
		Allowed struct {
			Mode  string
			Tools []namedFunction
		} `json:"allowed_tools"`
	}
	err := json.Unmarshal(raw, &choice)
	switch {
	case err != nil:
		// It is refused below.
	case choice.Type == "allowed_tools":
		return q.readAllowedTools(choice.Allowed.Mode, choice.Allowed.Tools)
	case choice.isValid():
		q.ToolChoice, q.ForcedTool = agent.ToolRequired, choice.Function.Name
		return nil
	}
	return &Invalid{"tool_choice", "must be none, auto, required, a function or allowed_tools"}
}

// namedFunction is a function in tool_choice.
type namedFunction struct {
	Type     string
	Function struct{ Name string }
}

// isValid reports whether f names a function that the client may have declared.
func (f namedFunction) isValid() bool {
	return f.Type == "function" && agent.IsToolName(f.Function.Name)
}

// readAllowedTools reads a tool_choice of type allowed_tools. tools are the only functions that the model may call, and
// mode says whether it must call one.
func (q *Request) readAllowedTools(mode string, tools []namedFunction) error {
	if mode != string(agent.ToolAuto) && mode != string(agent.ToolRequired) {
		return &Invalid{"tool_choice.allowed_tools.mode", "must be auto or required"}
	}
	var names []string
	for i, tool := range tools {
		if !tool.isValid() {
			return &Invalid{fmt.Sprintf("tool_choice.allowed_tools.tools[%d]", i), "must be a function"}
		}
		names = append(names, tool.Function.Name)
	}
	if len(names) == 0 {
		return &Invalid{"tool_choice.allowed_tools.tools", "must not be empty"}
	}
	q.ToolChoice = agent.ToolChoice(mode)
	q.AllowOnly(names)
	return nil
}
