package responses

import (
	"encoding/json"
	"fmt"
	"slices"

	"answerd/internal/agent"
)

// Bounds of a request, below the bound of the whole body.
const (
	maxItems      = 1024 // of the input
	maxMedia      = 32   // images and files of one message
	maxIdentifier = 512  // bytes of model, previous_response_id, safety_identifier, prompt_cache_key and user
)

// Request holds a decoded body.
type Request struct {
	agent.Request
	Model      string // as the client wrote it, for the response
	Stream     bool
	PreviousID string // previous_response_id; "" if none
	// ConversationID is the id in the member conversation, which is a thread's id; "" if the member is missing.
	ConversationID string
	Echo           Echo
	// Approvals are answers to approval requests of one run. If there are any, the request resumes that run instead of
	// starting a new one.
	Approvals []Approval
	// PastApprovals are the answers that other items follow. They usually belong to earlier turns, and Decode ignores them.
	PastApprovals []Approval
	// ListedServers are the MCP servers that the request names as tools of type mcp. Servers begins with them, or with
	// those of them that tool_choice allows. The servers of the member "answerd" follow.
	ListedServers []string
	// Options is the member "answerd", which has native fields that this format lacks; nil if it is missing.
	Options json.RawMessage
}

// ServerParam returns the parameter that named Servers[index], for errors: a tool of type mcp, or an item of
// answerd.servers.
func (q *Request) ServerParam(index int) string {
	tool := slices.IndexFunc(q.Echo.Tools, func(raw json.RawMessage) bool {
		var t inTool
		return json.Unmarshal(raw, &t) == nil && t.Type == "mcp" && t.ServerLabel == q.Servers[index]
	})
	if tool >= 0 {
		return fmt.Sprintf("tools[%d].server_label", tool)
	}
	// tool_choice may have removed some of ListedServers from Servers.
	listed := slices.IndexFunc(q.Servers, func(name string) bool { return !slices.Contains(q.ListedServers, name) })
	return fmt.Sprintf("answerd.servers.%d", index-listed)
}

// Approval is a person's answer to an mcp_approval_request.
type Approval struct {
	Param     string // the item's path in the request, for errors
	Run       string // the id of the run that asked
	Interrupt string // the id of the run's interrupt
	Approve   bool
	Reason    string
}

// body has the members of a request that Decode reads. Decode ignores others, because clients send many and new ones
// appear often.
type body struct {
	Echo
	Model        string             `json:"model"`
	Input        json.RawMessage    `json:"input"`
	Stream       bool               `json:"stream"`
	PreviousID   string             `json:"previous_response_id"`
	Conversation json.RawMessage    `json:"conversation"`
	Prompt       json.RawMessage    `json:"prompt"`
	Include      []string           `json:"include"`
	Format       json.RawMessage    `json:"response_format"` // of Chat Completions
	TopLogprobs  *agent.JSONInteger `json:"top_logprobs"`
	StreamOpts   *struct{}          `json:"stream_options"` // only about padding, which is not supported
	Answerd      json.RawMessage    `json:"answerd"`
}

// withoutTools is the suffix of a model's id that turns tools off, as in Chat Completions.
const withoutTools = ":no-tools"

// inTool is a client's function, or an MCP server that the request may use.
type inTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"`
	ServerLabel string          `json:"server_label"`
	ServerURL   string          `json:"server_url"`
	Allowed     json.RawMessage `json:"allowed_tools"`
	Approval    json.RawMessage `json:"require_approval"`
}

// requiresApproval reports whether require_approval is "always", or an object with the member always. readTool refuses
// such a tool, because only the operator's configuration decides which calls need approval.
func (t *inTool) requiresApproval() bool {
	var filter struct{ Always json.RawMessage }
	return string(t.Approval) == `"always"` || json.Unmarshal(t.Approval, &filter) == nil && isGiven(filter.Always)
}

// publicTool returns the members of an MCP tool that a response may repeat. It leaves out all others, because they may
// contain the client's secrets (headers, authorization).
func (t *inTool) publicTool() json.RawMessage {
	data, _ := json.Marshal(struct {
		Type    string          `json:"type"`
		Label   string          `json:"server_label"`
		Allowed json.RawMessage `json:"allowed_tools,omitempty"`
	}{t.Type, t.ServerLabel, t.Allowed}) // cannot fail: the values were decoded from JSON
	return data
}

// isGiven reports whether a member is present and not null. Clients send null for members that are not set.
func isGiven(raw json.RawMessage) bool { return raw != nil && string(raw) != "null" }
