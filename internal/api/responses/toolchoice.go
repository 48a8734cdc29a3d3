package responses

import (
	"fmt"
	"slices"

	"answerd/internal/agent"
)

// namedTool is a tool in tool_choice: a function, a tool of an MCP server or, without a name, all tools of the server.
type namedTool struct {
	Type, Name string
	Server     string `json:"server_label"`
}

// namesTool reports whether t is one function or one tool of an MCP server.
func (t namedTool) namesTool() bool {
	return (t.Type == "function" || t.Type == "mcp") && agent.IsToolName(t.Name)
}

// readAllowedTools reads a tool_choice of type allowed_tools. tools are the only ones that the model may call, and mode
// says whether it must call one. The agent restricts the MCP servers' tools either by server or by name, so a request
// cannot do both.
func (q *Request) readAllowedTools(mode string, tools []namedTool) error {
	if mode != string(agent.ToolAuto) && mode != string(agent.ToolRequired) {
		return &Invalid{"tool_choice.mode", "must be auto or required"}
	}
	if len(tools) == 0 {
		return &Invalid{"tool_choice.tools", "must not be empty"}
	}
	var names, servers []string
	serverField := "" // the path of the last of servers; "" if there are none
	for i, tool := range tools {
		field := fmt.Sprintf("tool_choice.tools[%d]", i)
		switch {
		case tool.Type == "mcp" && !slices.Contains(q.ListedServers, tool.Server):
			return &Invalid{field + ".server_label", "is not a server of tools"}
		case tool.Type == "mcp" && tool.Name == "":
			servers, serverField = append(servers, tool.Server), field
		case tool.namesTool():
			names = append(names, tool.Name)
		default:
			return &Invalid{field, "must be a function or a tool of an MCP server"}
		}
	}
	q.ToolChoice = agent.ToolChoice(mode)
	q.AllowOnly(names)
	if len(servers) == 0 {
		return nil
	}
	if len(q.AllowedTools) > 0 {
		return &Invalid{serverField + ".name", "is required, because the tools of another server have names"}
	}
	q.AllowedTools, q.Servers = nil, servers
	return nil
}
