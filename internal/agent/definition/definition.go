// Package definition reads the named agents of AGENTS_FILE (docs/tasks/several-agents.md).
//
//	file, err := definition.Parse(data, definition.Options{ReadFile: os.ReadFile, Dir: "/etc/answerd"})
//	for _, a := range file.Agents {
//		fmt.Println(a.ID, a.Description)
//	}
//
// The file is YAML, so it may also be JSON. Parse is strict: an unknown member, a member given twice, a
// wrong type and an agent that cannot work are errors, which name the agent and the line. An Agent
// does not change after Parse, so it may be used concurrently.
//
// An agent can only narrow what the service allows: its lists of servers and tools are applied after the rules
// of the caller, its budget is lowered to the service's, and its approvals are added to those of mcp.json.
// The lists of agents that may be asked contain no cycle. MaxLevels bounds the depth in addition, because a
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

// Agent is one named agent. A zero field has the setting of the service. The JSON tags are for the checkpoint and the
// export of a run; the file of agents is not read with them.
type Agent struct {
	ID          string `json:"id"`
	Description string `json:"description,omitempty"`
	Model       string `json:"model,omitempty"`  // the model of questions that name none; "" means the default model
	Prompt      string `json:"prompt,omitempty"` // a template for package prompt; "" means the service's
	// Servers and Tools restrict what the agent may use: names of servers, and globs (path.Match) for
	// names of tools. nil allows all; an empty list allows nothing.
	Servers []string `json:"servers"`
	Tools   []string `json:"tools"`
	Agents  []string `json:"agents,omitempty"` // the ids of the agents that it may ask
	// Approval selects calls that a person must approve, in addition to those that the server selects.
	Approval config.Approval `json:"approval,omitempty"`
	MaxTurns int             `json:"max_turns,omitempty"` // 0 means the service's limit
	Budget   budget.Limits   `json:"budget"`
	// Sampling and MaxOutputTokens are for questions that do not set them. A question can only lower MaxOutputTokens.
	Sampling        llm.Sampling    `json:"sampling"`
	MaxOutputTokens int64           `json:"max_output_tokens,omitempty"`
	OutputSchema    json.RawMessage `json:"output_schema,omitempty"` // nil means that the answer is a text
	Examples        []string        `json:"examples,omitempty"`
}

// Narrows reports whether the tools of the agent can differ from those of the service: in the servers, in the tools,
// in the agents that it may ask, or in the approvals.
func (a *Agent) Narrows() bool {
	asksForApproval := a.Approval != "" && a.Approval != config.ApproveNever
	return a.Servers != nil || a.Tools != nil || len(a.Agents) > 0 || asksForApproval
}

// FilterTools returns the tools in all that the agent may use, with NeedsApproval set if the agent or the server wants
// an approval. A tool with the name of one that asks another agent is left out. If the agent does not narrow
// anything, FilterTools returns all itself.
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

// hasAskTool reports whether name is the name of the tool with which this agent asks one of its agents.
func (a *Agent) hasAskTool(name string) bool {
	id, hasPrefix := strings.CutPrefix(name, AskPrefix)
	return hasPrefix && slices.Contains(a.Agents, id)
}

// AllowsServer reports whether the agent may use the server with that name.
func (a *Agent) AllowsServer(name string) bool {
	return a.Servers == nil || slices.Contains(a.Servers, name)
}

// AllowsTool reports whether the agent may use the tool of a server: both must be allowed.
func (a *Agent) AllowsTool(server, tool string) bool {
	if !a.AllowsServer(server) {
		return false
	}
	return a.Tools == nil || slices.ContainsFunc(a.Tools, func(glob string) bool {
		ok, err := path.Match(glob, tool)
		return ok && err == nil
	})
}

// NeedsApproval reports whether a person must approve each call of a tool, because of the configuration of its server
// or because of a.Approval.
func (a *Agent) NeedsApproval(tool catalog.Tool) bool {
	return tool.NeedsApproval || tool.IsSelectedBy(a.Approval)
}

// ApplySampling returns the sampling parameters of a question with those that the question leaves out replaced by
// the agent's. An agent has a temperature, a seed and a reasoning effort only.
func (a *Agent) ApplySampling(sampling llm.Sampling) llm.Sampling {
	if sampling.Temperature == nil {
		sampling.Temperature = a.Sampling.Temperature
	}
	if sampling.Seed == nil {
		sampling.Seed = a.Sampling.Seed
	}
	if sampling.ReasoningEffort == "" {
		sampling.ReasoningEffort = a.Sampling.ReasoningEffort
	}
	return sampling
}

// Find returns the agent with that id among agents, or nil.
func Find(agents []Agent, id string) *Agent {
	if i := slices.IndexFunc(agents, func(a Agent) bool { return a.ID == id }); i >= 0 {
		return &agents[i]
	}
	return nil
}
