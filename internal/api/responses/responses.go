// Package responses is the Responses face: OpenAI's and Open Responses' request to an
// agent.Request, the run's events to semantic events and items, a run to its response.
//
//	q, err := responses.Decode(body)             // *responses.Invalid names the parameter
//	enc := responses.NewEncoder(responses.Header{ID: id, Created: run.Created, Echo: q.Echo})
//	frames := enc.Encode(e)                      // stream: true, for every event of the run
//	enc.Encode(e); body := enc.Response()        // else
//
// What the MCP servers' tools do is mcp_call items, as OpenAI's own remote MCP does it;
// a call that a person must agree to is an mcp_approval_request, which ends the response
// and is answered in the input of the next one. Tools that the caller declares are
// function_call items. Elicitations have no item, and are declined.
//
// The stream's events have a sequence_number from 0. It counts the events of the stream,
// not those of the run, and is the same however often the stream is read: the encoder's
// state depends on the run's events alone.
package responses

import (
	"encoding/json"
	"strings"
	"time"

	"answerd/internal/agent"
)

// Header is what a response says besides its items.
type Header struct {
	ID         string // of the response
	Created    time.Time
	Model      string // as the request named it
	PreviousID string // the response that this one goes on after; "" if none
	Echo       Echo
	ToolLists  []ToolList // the tools of the MCP servers that the request names
	// The encoder sees the events up to After, at which the response before this one
	// ended, and says nothing of them.
	Span
	// Skip is how many events of the stream are not sent: whoever reads has them.
	Skip int
}

// ToolList is an MCP server's tools, for an mcp_list_tools item.
type ToolList struct {
	Server string
	Tools  []ListedTool
}

// Echo are the fields of a request that its response repeats.
type Echo struct {
	Instructions      string             `json:"instructions,omitempty"`
	Tools             []json.RawMessage  `json:"tools,omitempty"`
	ToolChoice        json.RawMessage    `json:"tool_choice,omitempty"`
	Temperature       *float64           `json:"temperature,omitempty"`
	TopP              *float64           `json:"top_p,omitempty"`
	PresencePenalty   *float64           `json:"presence_penalty,omitempty"`
	FrequencyPenalty  *float64           `json:"frequency_penalty,omitempty"`
	MaxOutputTokens   *agent.JSONInteger `json:"max_output_tokens,omitempty"`
	MaxToolCalls      *agent.JSONInteger `json:"max_tool_calls,omitempty"`
	ParallelToolCalls *bool              `json:"parallel_tool_calls,omitempty"`
	Reasoning         json.RawMessage    `json:"reasoning,omitempty"`
	Text              json.RawMessage    `json:"text,omitempty"`
	Metadata          map[string]string  `json:"metadata,omitempty"`
	Background        bool               `json:"background,omitempty"`
	Store             *bool              `json:"store,omitempty"`
	Truncation        *string            `json:"truncation,omitempty"`
	SafetyIdentifier  *string            `json:"safety_identifier,omitempty"`
	PromptCacheKey    *string            `json:"prompt_cache_key,omitempty"`
	User              *string            `json:"user,omitempty"`
}

// Invalid is a request that cannot be run as it stands.
type Invalid struct {
	Param   string // the parameter, such as input[2].content
	Message string // for the caller
}

func (e *Invalid) Error() string { return strings.TrimPrefix(e.Param+": "+e.Message, ": ") }
