package responses

import "encoding/json"

// response is a response resource. Open Responses requires every one of its members to
// be there, and several of them to be numbers.
type response struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	CompletedAt        *int64            `json:"completed_at"`
	Status             string            `json:"status"`
	IncompleteDetails  *incomplete       `json:"incomplete_details"`
	Model              string            `json:"model"`
	PreviousResponseID *string           `json:"previous_response_id"`
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

type incomplete struct {
	Reason string `json:"reason"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type usage struct {
	InputTokens  int64 `json:"input_tokens"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int64 `json:"total_tokens"`
}

// newResponse returns a response without output.
func newResponse(h Header) *response {
	e := h.Echo
	r := &response{
		ID: h.ID, Object: "response", CreatedAt: h.Created.Unix(), Status: "in_progress", Model: h.Model,
		Output: []any{}, Tools: []json.RawMessage{}, ToolChoice: json.RawMessage(`"auto"`), Truncation: "disabled",
		ParallelToolCalls: true, Text: json.RawMessage(`{"format":{"type":"text"}}`), TopP: 1, Temperature: 1,
		Reasoning: json.RawMessage(`{"effort":null,"summary":null}`), Store: true, ServiceTier: "default",
		Metadata: map[string]string{}, MaxOutputTokens: (*int64)(e.MaxOutputTokens), MaxToolCalls: (*int64)(e.MaxToolCalls), Background: e.Background,
		SafetyIdentifier: e.SafetyIdentifier, PromptCacheKey: e.PromptCacheKey, User: e.User,
	}
	if h.PreviousID != "" {
		r.PreviousResponseID = &h.PreviousID
	}
	if e.Instructions != "" {
		r.Instructions = &e.Instructions
	}
	for _, tool := range e.Tools {
		r.Tools = append(r.Tools, completeTool(tool))
	}
	setIf(&r.ToolChoice, e.ToolChoice, e.ToolChoice != nil)
	setIf(&r.Text, completeText(e.Text), e.Text != nil)
	setIf(&r.Reasoning, withMembers(e.Reasoning, wholeReasoning), e.Reasoning != nil)
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

func setIf[T any](to *T, v T, given bool) {
	if given {
		*to = v
	}
}

func setIfGiven[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}
