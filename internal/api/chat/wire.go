package chat

import (
	"encoding/json"

	"answerd/internal/event"
)

// chunk is a chat.completion.chunk. Usage is null or an object where the caller asked
// for it, and absent where not.
type chunk struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"` // must be in every chunk
	Usage   json.RawMessage `json:"usage,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Delta        delta   `json:"delta"`
	Logprobs     *string `json:"logprobs"` // always null
	FinishReason *string `json:"finish_reason"`
}

type delta struct {
	Role      string      `json:"role,omitempty"`
	Content   *string     `json:"content,omitempty"`
	Reasoning string      `json:"reasoning_content,omitempty"`
	ToolCalls []callDelta `json:"tool_calls,omitempty"`
}

type callDelta struct {
	Index    int           `json:"index"`
	ID       string        `json:"id,omitempty"`
	Type     string        `json:"type,omitempty"`
	Function functionDelta `json:"function"`
}

type functionDelta struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// completion is a chat.completion.
type completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   json.RawMessage    `json:"usage"`
}

type completionChoice struct {
	Index        int     `json:"index"`
	Message      message `json:"message"`
	Logprobs     *string `json:"logprobs"` // always null
	FinishReason string  `json:"finish_reason"`
}

type message struct {
	Role      string  `json:"role"`
	Content   *string `json:"content"` // null where there are only calls
	Refusal   *string `json:"refusal"` // always null
	Reasoning string  `json:"reasoning_content,omitempty"`
	ToolCalls []call  `json:"tool_calls,omitempty"`
}

type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func completionID(h Header) string { return "chatcmpl-" + h.ID }

func wireUsage(u event.Usage) json.RawMessage {
	data, _ := json.Marshal(struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	}{u.InputTokens, u.OutputTokens, u.TotalTokens})
	return data
}
