package responses

import (
	"encoding/json"
	"maps"
)

// response is a response resource. Open Responses requires all of its members, and several of them must be numbers. So
// a member without a value is null or has the default of OpenAI's API.
type response struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	CompletedAt        *int64            `json:"completed_at"`
	Status             string            `json:"status"`
	IncompleteDetails  *incomplete       `json:"incomplete_details"`
	Model              string            `json:"model"`
	PreviousResponseID *string           `json:"previous_response_id"`
	Conversation       *conversation     `json:"conversation,omitempty"`
	Instructions       *string           `json:"instructions"`
	Output             []any             `json:"output"`
	Error              *responseError    `json:"error"`
	Tools              []json.RawMessage `json:"tools"`
	ToolChoice         json.RawMessage   `json:"tool_choice"`
	Truncation         string            `json:"truncation"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	Text               json.RawMessage   `json:"text"`
	TopP               float64           `json:"top_p"`
	PresencePenalty    float64           `json:"presence_penalty"`
	FrequencyPenalty   float64           `json:"frequency_penalty"`
	TopLogprobs        int               `json:"top_logprobs"`
	Temperature        float64           `json:"temperature"`
	Reasoning          json.RawMessage   `json:"reasoning"`
	Usage              *usage            `json:"usage"`
	MaxOutputTokens    *int64            `json:"max_output_tokens"`
	MaxToolCalls       *int64            `json:"max_tool_calls"`
	Store              bool              `json:"store"`
	Background         bool              `json:"background"`
	ServiceTier        string            `json:"service_tier"`
	Metadata           map[string]string `json:"metadata"`
	SafetyIdentifier   *string           `json:"safety_identifier"`
	PromptCacheKey     *string           `json:"prompt_cache_key"`
	User               *string           `json:"user"`
}

// conversation names the thread that the request continues.
type conversation struct {
	ID string `json:"id"`
}

// incomplete gives the reason why a response has the status incomplete.
type incomplete struct {
	Reason string `json:"reason"`
}

// responseError gives the reason why a response has the status failed.
type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// usage counts a response's tokens. The details are required members, but always 0, because a run's events do not have
// them.
type usage struct {
	InputTokens  int64 `json:"input_tokens"`
	InputDetails struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int64 `json:"total_tokens"`
}

// newResponse returns a response in progress without output. It has the request's values (header.Echo), and OpenAI's
// defaults for members that the request does not set.
func newResponse(header Header) *response {
	e := header.Echo
	r := &response{
		ID: header.ID, Object: "response", CreatedAt: header.Created.Unix(), Status: "in_progress", Model: header.Model,
		Output: []any{}, Tools: []json.RawMessage{}, ToolChoice: json.RawMessage(`"auto"`), Truncation: "disabled",
		ParallelToolCalls: true, Text: json.RawMessage(`{"format":{"type":"text"}}`), TopP: 1, Temperature: 1,
		Reasoning: json.RawMessage(`{"effort":null,"summary":null}`), Store: true, ServiceTier: "default",
		Metadata: map[string]string{}, MaxOutputTokens: (*int64)(e.MaxOutputTokens), MaxToolCalls: (*int64)(e.MaxToolCalls),
		Background:       e.Background,
		SafetyIdentifier: e.SafetyIdentifier, PromptCacheKey: e.PromptCacheKey, User: e.User,
	}
	if header.PreviousID != "" {
		r.PreviousResponseID = &header.PreviousID
	}
	if header.Conversation != "" {
		r.Conversation = &conversation{header.Conversation}
	}
	if e.Instructions != "" {
		r.Instructions = &e.Instructions
	}

	for _, tool := range e.Tools {
		r.Tools = append(r.Tools, completeTool(tool))
	}

	setIf(&r.ToolChoice, e.ToolChoice, e.ToolChoice != nil)
	setIf(&r.Text, completeText(e.Text), e.Text != nil)
	setIf(&r.Reasoning, withMembers(e.Reasoning, reasoningMembers), e.Reasoning != nil)
	setIf(&r.Metadata, e.Metadata, e.Metadata != nil)
	setIfGiven(&r.TopP, e.TopP)
	setIfGiven(&r.Temperature, e.Temperature)
	setIfGiven(&r.PresencePenalty, e.PresencePenalty)
	setIfGiven(&r.FrequencyPenalty, e.FrequencyPenalty)
	setIfGiven(&r.ParallelToolCalls, e.ParallelToolCalls)
	setIfGiven(&r.Truncation, e.Truncation)
	setIfGiven(&r.Store, e.Store)
	return r
}

// setIf sets *to to v if given is true.
func setIf[T any](to *T, v T, given bool) {
	if given {
		*to = v
	}
}

// setIfGiven sets *to to *v if v is not nil.
func setIfGiven[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}

// object is a JSON object with any members.
type object = map[string]any

// The members, with their defaults, that Open Responses requires in objects that a response repeats from its request.
// Clients that validate refuse a response without them.
var (
	functionMembers  = object{"name": nil, "description": nil, "parameters": nil, "strict": nil}
	reasoningMembers = object{"effort": nil, "summary": nil}
	schemaMembers    = object{"name": nil, "description": nil, "schema": nil, "strict": false}
)

// withMembers returns the JSON object raw, with the members that it lacks added from members. raw may be null, which
// lacks all of them.
func withMembers(raw json.RawMessage, members object) json.RawMessage {
	var given object
	_ = json.Unmarshal(raw, &given) // cannot fail: Decode accepted raw as an object or null
	complete := maps.Clone(members)
	maps.Copy(complete, given)
	data, _ := json.Marshal(complete) // cannot fail: the values were decoded from JSON
	return data
}

// completeTool returns a tool of the request with the members that a response requires. A tool of type mcp already has
// them from publicTool.
func completeTool(raw json.RawMessage) json.RawMessage {
	var t struct{ Type string }
	if json.Unmarshal(raw, &t) != nil || t.Type != "function" {
		return raw
	}
	return withMembers(raw, functionMembers)
}

// completeText returns the request's member text with a complete format. The default format is text.
func completeText(raw json.RawMessage) json.RawMessage {
	var text struct{ Format json.RawMessage }
	_ = json.Unmarshal(raw, &text) // cannot fail: Decode accepted raw as an object or null
	var format struct{ Type string }
	_ = json.Unmarshal(text.Format, &format) // fails only if there is no format, and format.Type is then ""

	var complete any = object{"type": "text"}
	switch format.Type {
	case "json_schema":
		complete = withMembers(text.Format, schemaMembers)
	case "json_object":
		complete = object{"type": format.Type}
	}
	var members object
	_ = json.Unmarshal(raw, &members)
	if members == nil { // raw is null
		members = object{}
	}
	members["format"] = complete
	data, _ := json.Marshal(members) // cannot fail: the values were decoded from JSON
	return data
}

// textPart is the text of a message item.
type textPart struct {
	Type        string `json:"type"` // output_text
	Text        string `json:"text"`
	Annotations []any  `json:"annotations"`
	Logprobs    []any  `json:"logprobs"`
}

// outputText returns a text part. Its lists are empty and not null, because clients iterate over them.
func outputText(s string) textPart {
	return textPart{Type: "output_text", Text: s, Annotations: []any{}, Logprobs: []any{}}
}

// messageItem is a text of the model.
type messageItem struct {
	ID      string     `json:"id"`
	Type    string     `json:"type"` // message
	Status  string     `json:"status"`
	Role    string     `json:"role"` // assistant
	Content []textPart `json:"content"`
}

// summaryPart is the text of a reasoning item.
type summaryPart struct {
	Type string `json:"type"` // summary_text
	Text string `json:"text"`
}

// reasoningItem is reasoning of the model.
type reasoningItem struct {
	ID      string        `json:"id"`
	Type    string        `json:"type"` // reasoning
	Status  string        `json:"status"`
	Summary []summaryPart `json:"summary"`
}

// mcpCallItem is a call of an MCP server's tool, with its result.
type mcpCallItem struct {
	ID          string  `json:"id"`
	Type        string  `json:"type"` // mcp_call
	Status      string  `json:"status"`
	ServerLabel string  `json:"server_label"`
	Name        string  `json:"name"`
	Arguments   string  `json:"arguments"`
	Output      *string `json:"output"`
	Error       any     `json:"error"`
	Approval    *string `json:"approval_request_id"`
}

// approvalItem asks for approval of a call. The next request answers it with its id.
type approvalItem struct {
	ID          string `json:"id"`
	Type        string `json:"type"` // mcp_approval_request
	ServerLabel string `json:"server_label"`
	Name        string `json:"name"`
	Arguments   string `json:"arguments"`
}

// functionItem is a call of a function that the caller executes.
type functionItem struct {
	ID        string `json:"id"`
	Type      string `json:"type"` // function_call
	Status    string `json:"status"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// listItem lists the tools of an MCP server that the request names.
type listItem struct {
	ID          string       `json:"id"`
	Type        string       `json:"type"` // mcp_list_tools
	ServerLabel string       `json:"server_label"`
	Tools       []ListedTool `json:"tools"`
}

// executionError is the error of an mcp_call whose tool failed.
type executionError struct {
	Type    string `json:"type"` // mcp_tool_execution_error
	Content []any  `json:"content"`
}

// protocolError is the error of an mcp_call that did not reach the tool, or whose outcome is unknown.
type protocolError struct {
	Type    string `json:"type"` // mcp_protocol_error
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// callError returns the error of an mcp_call. kind and message are those of the event tool_error. The kind "execution"
// is an error of the tool; any other kind is an error of the protocol.
func callError(kind, message string) any {
	if kind == "execution" {
		return executionError{"mcp_tool_execution_error", []any{map[string]string{"type": "text", "text": message}}}
	}
	code := -32603 // Internal error (JSON-RPC 2.0, section 5.1)
	if kind == "invalid_arguments" || kind == "unknown_tool" {
		code = -32602 // Invalid params
	}
	return protocolError{"mcp_protocol_error", code, message}
}
