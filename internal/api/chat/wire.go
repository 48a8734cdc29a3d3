package chat

import (
	"encoding/json"
	"time"

	"answerd/internal/event"
)

// chunk is a chat.completion.chunk. Usage is null or an object if the client asked for it, and absent otherwise.
type chunk struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"` // must be in every chunk
	Usage   json.RawMessage `json:"usage,omitempty"`
}

// choice has the delta of a chunk or, in the last one, the finish_reason.
type choice struct {
	Index        int     `json:"index"`
	Delta        delta   `json:"delta"`
	Logprobs     *string `json:"logprobs"` // always null
	FinishReason *string `json:"finish_reason"`
}

// delta is what a chunk adds to the message: text, reasoning, or a piece of a call.
type delta struct {
	Role      string      `json:"role,omitempty"`
	Content   *string     `json:"content,omitempty"`
	Reasoning string      `json:"reasoning_content,omitempty"`
	ToolCalls []callDelta `json:"tool_calls,omitempty"`
}

// callDelta is a piece of a call. Only the first piece has the id and the name.
type callDelta struct {
	Index    int           `json:"index"`
	ID       string        `json:"id,omitempty"`
	Type     string        `json:"type,omitempty"`
	Function functionDelta `json:"function"`
}

// functionDelta has the name of a call, or a piece of its arguments.
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

// completionChoice has the message of a completion.
type completionChoice struct {
	Index        int     `json:"index"`
	Message      message `json:"message"`
	Logprobs     *string `json:"logprobs"` // always null
	FinishReason string  `json:"finish_reason"`
}

// message is the assistant's message in a completion.
type message struct {
	Role      string  `json:"role"`
	Content   *string `json:"content"` // null if there are only calls
	Refusal   *string `json:"refusal"` // always null
	Reasoning string  `json:"reasoning_content,omitempty"`
	ToolCalls []call  `json:"tool_calls,omitempty"`
}

// call is a complete call of a tool that the client executes, in a completion and in a message of the assistant.
type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

// function is the called function. Arguments is JSON, or the text that the model wrote if that is not a JSON object.
type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// completionID returns the response's id: the run's id after the prefix that OpenAI's API uses.
func completionID(h Header) string { return "chatcmpl-" + h.ID }

// wireUsage returns u as JSON with this format's names.
func wireUsage(u event.Usage) json.RawMessage {
	data, _ := json.Marshal(struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	}{u.InputTokens, u.OutputTokens, u.TotalTokens}) // cannot fail: the members are numbers
	return data
}

// Error is an error in OpenAI's shape.
type Error struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// errorBody is the body of an error response, and the data of an error in a stream.
type errorBody struct {
	Error Error `json:"error"`
}

// NewError returns the body of an error response, to be encoded as JSON. code is one of answerd's problem codes or one
// of OpenAI's error codes. param is the parameter that is wrong; "" becomes null.
func NewError(status int, code, message, param string) any {
	e := Error{Message: message, Type: errorType(status), Code: code}
	if param != "" {
		e.Param = &param
	}
	return errorBody{e}
}

// errorType returns OpenAI's error type for an HTTP status. Clients choose the exception that they raise by it.
func errorType(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 403:
		return "permission_error"
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// runError returns the error that ends a stream because its run failed. The response's status is already 200, so only
// the type and the code say what happened. A failure is a server_error unless the model is unknown or rate limited, or
// the conversation is too long for it.
func runError(b event.RunError) Error {
	e := Error{Message: b.MessageWithErrors(), Type: "server_error", Code: b.OpenAICode()}
	param := ""
	switch e.Code {
	case event.ModelNotFound:
		param = "model"
	case event.ContextLengthExceeded:
		param = "messages"
	case "model_rate_limited":
		e.Type = "rate_limit_error"
	}
	if param != "" {
		e.Type, e.Param = "invalid_request_error", &param
	}
	return e
}

// WithoutTools is the suffix of a model's id that turns tools off. Chat UIs use such a model for
// titles, tags and follow-up questions, which need no tool calls.
const WithoutTools = ":no-tools"

// Model is one model of GET /v1/models, and the body of GET /v1/models/{model}.
type Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"` // model
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// ModelList returns two models for each id: one with the id itself, and one with the suffix WithoutTools. All of them
// have the same creation time, created.
func ModelList(ids []string, created time.Time) []Model {
	out := make([]Model, 0, 2*len(ids))
	for _, id := range ids {
		for _, name := range []string{id, id + WithoutTools} {
			out = append(out, Model{name, "model", created.Unix(), "answerd"})
		}
	}
	return out
}
