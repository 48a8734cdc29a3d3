package responses

import "encoding/json"

// The items of a response's output. Each is complete in every snapshot: clients build
// their state from output_item.done and from the response at the end alike.

type textPart struct {
	Type        string `json:"type"` // output_text
	Text        string `json:"text"`
	Annotations []any  `json:"annotations"`
	Logprobs    []any  `json:"logprobs"`
}

func outputText(s string) textPart {
	return textPart{Type: "output_text", Text: s, Annotations: []any{}, Logprobs: []any{}}
}

type messageItem struct {
	ID      string     `json:"id"`
	Type    string     `json:"type"` // message
	Status  string     `json:"status"`
	Role    string     `json:"role"` // assistant
	Content []textPart `json:"content"`
}

type summaryPart struct {
	Type string `json:"type"` // summary_text
	Text string `json:"text"`
}

type reasoningItem struct {
	ID      string        `json:"id"`
	Type    string        `json:"type"` // reasoning
	Status  string        `json:"status"`
	Summary []summaryPart `json:"summary"`
}

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

type approvalItem struct {
	ID          string `json:"id"`
	Type        string `json:"type"` // mcp_approval_request
	ServerLabel string `json:"server_label"`
	Name        string `json:"name"`
	Arguments   string `json:"arguments"`
}

type functionItem struct {
	ID        string `json:"id"`
	Type      string `json:"type"` // function_call
	Status    string `json:"status"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// ListedTool is a tool in an mcp_list_tools item.
type ListedTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"` // absent rather than null: clients refuse null
	InputSchema json.RawMessage `json:"input_schema"`
}

type listItem struct {
	ID          string       `json:"id"`
	Type        string       `json:"type"` // mcp_list_tools
	ServerLabel string       `json:"server_label"`
	Tools       []ListedTool `json:"tools"`
}

// executionError is what an mcp_call says of a tool that failed.
type executionError struct {
	Type    string `json:"type"` // mcp_tool_execution_error
	Content []any  `json:"content"`
}

// protocolError is what an mcp_call says of a call that did not come to the tool, or
// whose end is not known.
type protocolError struct {
	Type    string `json:"type"` // mcp_protocol_error
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func callError(kind, message string) any {
	if kind == "execution" {
		return executionError{"mcp_tool_execution_error", []any{map[string]string{"type": "text", "text": message}}}
	}
	code := -32603 // internal error, JSON-RPC section 5.1
	switch kind {
	case "invalid_arguments", "unknown_tool":
		code = -32602
	}
	return protocolError{"mcp_protocol_error", code, message}
}
