// Package definition reads the named agents of AGENTS_FILE (docs/tasks/several-agents.md).
//
//	file, err := definition.Parse(data, definition.Options{ReadFile: os.ReadFile, Dir: "/etc/answerd"})
//	for _, a := range file.Agents {
//		fmt.Println(a.ID, a.Description)
//	}
//
// The file is YAML, and so it may be JSON. Parse is strict: an unknown member, a member given twice, a
// wrong type and an agent that cannot work are errors, which name the agent and the line. An Agent is
// a value that nothing changes after Parse; it may be used concurrently.
//
// An agent can only narrow what the service allows: its lists of servers and tools are applied after the rules
// of the caller, its budget is lowered to the service's, and its approvals come on top of those of mcp.json.
// The lists of agents that may be asked contain no cycle. The depth is bounded besides, by MaxLevels, because a
// service may read another file while runs of the old one continue.
package definition

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"answerd/internal/agent/budget"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
)

// DefaultID is the id of the only agent of a service without AGENTS_FILE.
const DefaultID = "default"

// MaxLevels is how many levels of children a run may have: a asks b, which asks c, which asks d.
const MaxLevels = 3

// CapabilitiesID cannot be the id of an agent: /agui/capabilities is a path of its own.
const CapabilitiesID = "capabilities"

// AskPrefix precedes the id of an agent in the name of the tool that asks it.
const AskPrefix = "ask_"

// Agent is one named agent. Its zero value, apart from the id, is an agent with the settings of the
// environment. The JSON is for processes that take over a run and for its export; files are not read
// with it.
type Agent struct {
	ID          string `json:"id"`
	Description string `json:"description,omitempty"`
	Model       string `json:"model,omitempty"`  // of questions that name none; "" means the default model
	Prompt      string `json:"prompt,omitempty"` // a template as of package prompt; "" means the service's
	// Servers and Tools restrict what the agent may use: names of servers, and globs (path.Match) for
	// names of tools. nil means all, an empty list none.
	Servers []string `json:"servers"`
	Tools   []string `json:"tools"`
	Agents  []string `json:"agents,omitempty"` // the ids of the agents that it may ask
	// Approval selects calls that a person must approve, in addition to those that the server selects.
	Approval config.Approval `json:"approval,omitempty"`
	MaxTurns int             `json:"max_turns,omitempty"` // 0 means the service's limit
	Budget   budget.Limits   `json:"budget"`
	// Sampling and MaxOutputTokens are for questions that do not set them. A question can only lower
	// MaxOutputTokens.
	Sampling        llm.Sampling    `json:"sampling"`
	MaxOutputTokens int64           `json:"max_output_tokens,omitempty"`
	OutputSchema    json.RawMessage `json:"output_schema,omitempty"` // nil means that the answer is a text
	Examples        []string        `json:"examples,omitempty"`
}

// Narrows reports whether the agent has other tools than the service: fewer, or with more approvals.
func (a *Agent) Narrows() bool {
	asksForApproval := a.Approval != "" && a.Approval != config.ApproveNever
	return a.Servers != nil || a.Tools != nil || len(a.Agents) > 0 || asksForApproval
}

// FilterTools returns the tools in all that the agent may use, with its own approvals. If the agent
// narrows nothing, it returns all itself.
func (a *Agent) FilterTools(all []catalog.Tool) []catalog.Tool {
	if !a.Narrows() {
		return all
	}
	var out []catalog.Tool
	for _, t := range all {
		if a.AllowsTool(t.Server, t.Name) && !a.hasAskTool(t.Name) {
			t.NeedsApproval = a.NeedsApproval(t)
			out = append(out, t)
		}
	}
	return out
}

// hasAskTool reports whether name is the name of a tool that asks one of the agents. No server's tool may
// take its place.
func (a *Agent) hasAskTool(name string) bool {
	id, asks := strings.CutPrefix(name, AskPrefix)
	return asks && slices.Contains(a.Agents, id)
}

// AllowsServer reports whether the agent may use a server.
func (a *Agent) AllowsServer(name string) bool {
	return a.Servers == nil || slices.Contains(a.Servers, name)
}

// AllowsTool reports whether the agent may use a tool of a server.
func (a *Agent) AllowsTool(server, tool string) bool {
	if !a.AllowsServer(server) {
		return false
	}
	return a.Tools == nil || slices.ContainsFunc(a.Tools, func(glob string) bool {
		ok, err := path.Match(glob, tool)
		return ok && err == nil
	})
}

// NeedsApproval reports whether a person must approve each call of t: because its server's
// configuration says so, or because the agent's does.
func (a *Agent) NeedsApproval(t catalog.Tool) bool {
	return t.NeedsApproval || t.IsSelectedBy(a.Approval)
}

// ApplySampling returns what a question samples with: its own values, and the agent's for those that it
// leaves out.
func (a *Agent) ApplySampling(s llm.Sampling) llm.Sampling {
	if s.Temperature == nil {
		s.Temperature = a.Sampling.Temperature
	}
	if s.Seed == nil {
		s.Seed = a.Sampling.Seed
	}
	if s.ReasoningEffort == "" {
		s.ReasoningEffort = a.Sampling.ReasoningEffort
	}
	return s
}

// Find returns the agent with that id among agents, or nil.
func Find(agents []Agent, id string) *Agent {
	if i := slices.IndexFunc(agents, func(a Agent) bool { return a.ID == id }); i >= 0 {
		return &agents[i]
	}
	return nil
}
