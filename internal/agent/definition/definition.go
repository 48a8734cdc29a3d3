// Package definition reads the named agents of AGENTS_FILE (docs/tasks/several-agents.md).
//
//	file, err := definition.Parse(data, definition.Options{ReadFile: os.ReadFile, Dir: "/etc/answerd"})
//	for _, a := range file.Agents {
//		fmt.Println(a.ID, a.Description)
//	}
//
// The file is YAML, so it may also be JSON. Parse is strict: it returns an error, with the agent and the line, for an
// unknown or repeated member, a wrong type, or an agent that cannot work. An Agent is immutable after Parse.
//
// An agent can only narrow what the service allows. Its servers and tools are filtered after the caller's access rules,
// its budget is lowered to the service's, and its approvals are added to those of mcp.json. Agents must not ask each
// other in a cycle. MaxLevels limits the depth as well, because runs with an older file may continue.
package definition

import (
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"answerd/internal/agent/budget"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
)

// DefaultID is the id of the only agent of a service that has no AGENTS_FILE.
const DefaultID = "default"

// MaxLevels is how many levels of children a run may have: a asks b, which asks c, which asks d.
const MaxLevels = 3

// CapabilitiesID must not be the id of an agent, because the path /agui/capabilities has another meaning.
const CapabilitiesID = "capabilities"

// AskPrefix, followed by an agent's id, is the name of the tool that asks the agent.
const AskPrefix = "ask_"

// AskSentence returns the first sentence of the description of the tool that asks the agent with this id. If the agent
// has a description, a space and that description follow.
func AskSentence(id string) string {
	return "Asks the agent " + id + ", which has tools of its own, and returns its answer."
}

// Agent is one named agent. For a zero field, the service's setting applies. The JSON tags are for the checkpoints and
// exports of runs; Parse does not use them.
type Agent struct {
	ID          string `json:"id"`
	Description string `json:"description,omitempty"`
	Model       string `json:"model,omitempty"`  // for questions that name no model; "" means the default model
	Prompt      string `json:"prompt,omitempty"` // a template for package prompt; "" means the service's prompt
	// Servers and Tools restrict what the agent may use: by names of servers, and by globs (path.Match) for names of
	// tools. nil allows all, an empty list allows nothing.
	Servers []string `json:"servers"`
	Tools   []string `json:"tools"`
	Agents  []string `json:"agents,omitempty"` // the ids of the agents that it may ask
	// Approval selects calls that a person must approve, in addition to those that the server's configuration selects.
	Approval config.Approval `json:"approval,omitempty"`
	MaxTurns int             `json:"max_turns,omitempty"` // 0 means the service's limit
	Budget   budget.Limits   `json:"budget"`
	// Sampling and MaxOutputTokens apply to questions that do not set them. A question can only lower MaxOutputTokens.
	Sampling        llm.Sampling    `json:"sampling"`
	MaxOutputTokens int64           `json:"max_output_tokens,omitempty"`
	OutputSchema    json.RawMessage `json:"output_schema,omitempty"` // nil means that the answer is free text
	Examples        []string        `json:"examples,omitempty"`
}

// Narrows reports whether the agent's tools can differ from the service's: by servers, tools, agents or approvals.
func (a *Agent) Narrows() bool {
	asksForApproval := a.Approval != "" && a.Approval != config.ApproveNever
	return a.Servers != nil || a.Tools != nil || len(a.Agents) > 0 || asksForApproval
}

// FilterTools returns those tools in all that the agent may use. Their NeedsApproval is set if the agent or the server
// requires approval. A tool is left out if it has the same name as one that asks another agent. If the agent narrows
// nothing, FilterTools returns all itself.
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

// hasAskTool reports whether name is the tool with which this agent asks one of its agents.
func (a *Agent) hasAskTool(name string) bool {
	id, hasPrefix := strings.CutPrefix(name, AskPrefix)
	return hasPrefix && slices.Contains(a.Agents, id)
}

// AllowsServer reports whether the agent may use the server called name.
func (a *Agent) AllowsServer(name string) bool {
	return a.Servers == nil || slices.Contains(a.Servers, name)
}

// AllowsTool reports whether the agent may use both the server and the server's tool.
func (a *Agent) AllowsTool(server, tool string) bool {
	if !a.AllowsServer(server) {
		return false
	}
	return a.Tools == nil || slices.ContainsFunc(a.Tools, func(glob string) bool {
		ok, err := path.Match(glob, tool)
		return ok && err == nil
	})
}

// NeedsApproval reports whether a person must approve each call of tool, by the server's configuration or a.Approval.
func (a *Agent) NeedsApproval(tool catalog.Tool) bool {
	return tool.NeedsApproval || tool.IsSelectedBy(a.Approval)
}

// ApplySampling returns a question's sampling parameters, with those that the question leaves out taken from the agent.
// An agent sets only temperature, seed and reasoning effort.
func (a *Agent) ApplySampling(sampling llm.Sampling) llm.Sampling {
	sampling.Temperature = cmp.Or(sampling.Temperature, a.Sampling.Temperature)
	sampling.Seed = cmp.Or(sampling.Seed, a.Sampling.Seed)
	sampling.ReasoningEffort = cmp.Or(sampling.ReasoningEffort, a.Sampling.ReasoningEffort)
	return sampling
}

// Find returns the agent with this id, or nil.
func Find(agents []Agent, id string) *Agent {
	if i := slices.IndexFunc(agents, func(a Agent) bool { return a.ID == id }); i >= 0 {
		return &agents[i]
	}
	return nil
}
