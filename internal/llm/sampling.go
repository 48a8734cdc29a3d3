package llm

import "encoding/json"

// Sampling is how a model is to choose its words, in the fields of Chat Completions.
// What is nil or empty is left to the endpoint, and so are the bounds of the rest: they
// differ from model to model, and the endpoint says what it refuses.
type Sampling struct {
	Temperature      *float64        `json:"temperature,omitempty"`
	TopP             *float64        `json:"top_p,omitempty"`
	PresencePenalty  *float64        `json:"presence_penalty,omitempty"`
	FrequencyPenalty *float64        `json:"frequency_penalty,omitempty"`
	Seed             *int64          `json:"seed,omitempty"`
	Stop             []string        `json:"stop,omitempty"`
	ReasoningEffort  string          `json:"reasoning_effort,omitempty"`
	ResponseFormat   json.RawMessage `json:"response_format,omitempty"`
	// ParallelToolCalls goes out only with tools: endpoints refuse it without.
	ParallelToolCalls *bool `json:"parallel_tool_calls,omitempty"`
}
