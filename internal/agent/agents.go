package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/definition"
	"answerd/internal/agent/prompt"
	"answerd/internal/agent/record"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/auth"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
)

// Named agents (Options.Agents): a question selects one by its id, and the agent's definition completes
// and restricts the request. A run keeps the definition that it started with, also in a process that
// takes it over; ReplaceAgents affects later runs only, and that includes the children that a run asks
// from then on.

// ErrUnknownAgent means that no agent has the id, or that the caller may not use the agent that has it.
var ErrUnknownAgent = errors.New("no such agent")

// namedAgent is an agent that questions can select, or the one that a run has started with.
type namedAgent struct {
	definition.Agent
	prompt   *prompt.Prompt
	exported json.RawMessage  // the definition without its prompt, for exports of runs
	catalogs toolCatalogCache // of all the tools that the agent may use
}

// newNamedAgent returns the agent of a definition, with its prompt and the form in which exports have it.
func (a *Agent) newNamedAgent(d definition.Agent) (*namedAgent, error) {
	p, err := a.Prompt.WithTemplate(d.Prompt)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", d.ID, err)
	}
	n := &namedAgent{Agent: d, prompt: p}
	d.Prompt = "" // an export has the template
	if n.exported, err = json.Marshal(d); err != nil {
		return nil, fmt.Errorf("encode the agent %s: %w", d.ID, err)
	}
	return n, nil
}

// servedAgents are the agents that questions can select; the first one is the default.
type servedAgents struct {
	list []*namedAgent
	// unnamed means that AGENTS_FILE is not set. The only agent then has the settings of the
	// environment, and runs do not store its id.
	unnamed bool
}

// ReplaceAgents replaces Options.Agents. If agents is empty, there is one agent, with the id
// definition.DefaultID. Runs in progress keep their definitions.
func (a *Agent) ReplaceAgents(agents []definition.Agent) error {
	served := &servedAgents{unnamed: len(agents) == 0}
	if served.unnamed {
		agents = []definition.Agent{{ID: definition.DefaultID}}
	}
	for _, d := range agents {
		n, err := a.newNamedAgent(d)
		if err != nil {
			return err
		}
		served.list = append(served.list, n)
	}
	a.agents.Store(served)
	return nil
}

// Agents returns the agents that a caller may ask, in the order of the file, the default one first if
// the caller may ask it.
func (a *Agent) Agents(caller auth.Identity) []definition.Agent {
	access, defaultModel := a.Rules.Of(caller), a.defaultModel()
	var out []definition.Agent
	for _, n := range a.agents.Load().list {
		d := n.Agent
		d.Model = cmp.Or(d.Model, defaultModel)
		if access.AllowsAgent(d.ID) && access.AllowsModel(d.Model) {
			out = append(out, d)
		}
	}
	return out
}

// DefaultAgent returns the id of the agent of questions that name none.
func (a *Agent) DefaultAgent() string { return a.agents.Load().list[0].ID }

// HasAgent reports whether AGENTS_FILE has an agent with that id, also one that the caller may not use. API formats without
// a field for agents use this to tell an agent from a model.
func (a *Agent) HasAgent(id string) bool {
	served := a.agents.Load()
	return !served.unnamed && served.find(id) != nil
}

// AgentTools returns the names of the tools that an agent may call for a caller. It never returns nil, also
// if the agent was removed after the caller had listed it.
func (a *Agent) AgentTools(ctx context.Context, caller auth.Identity, id string) []string {
	request := Request{Agent: id}
	names := []string{}
	for _, t := range a.UsableTools(ctx, caller, request) {
		names = append(names, t.Name)
	}
	n, err := a.selectAgent(caller, id)
	if err != nil {
		return names
	}
	request.as = n
	for _, t := range a.askTools(caller, request) {
		names = append(names, t.Name)
	}
	return names
}

func (a *Agent) defaultModel() string {
	model, _ := a.Models()
	return model
}

// find returns the agent with that id, the default agent for "", and nil if there is none.
func (s *servedAgents) find(id string) *namedAgent {
	if id == "" {
		return s.list[0]
	}
	if i := slices.IndexFunc(s.list, func(n *namedAgent) bool { return n.ID == id }); i >= 0 {
		return s.list[i]
	}
	return nil
}

// selectAgent returns the agent with that id, "" being the default one, or ErrUnknownAgent.
func (a *Agent) selectAgent(caller auth.Identity, id string) (*namedAgent, error) {
	agent := a.agents.Load().find(id)
	access := a.Rules.Of(caller)
	switch {
	case agent == nil:
		return nil, ErrUnknownAgent
	case access.AllowsNothing():
		return nil, ErrForbidden
	case !access.AllowsAgent(agent.ID):
		return nil, ErrUnknownAgent
	}
	return agent, nil
}

// storedAgentID returns what runs store of the agent: "" if the service has no names for agents.
func (a *Agent) storedAgentID(n *namedAgent) string {
	if n.ID == definition.DefaultID && a.agents.Load().unnamed {
		return ""
	}
	return n.ID
}

// restoreAgent returns the agent of a run that another process started with the definition; nil means one without a
// name.
func (a *Agent) restoreAgent(d *definition.Agent) (*namedAgent, error) {
	if d == nil {
		return &namedAgent{Agent: definition.Agent{ID: definition.DefaultID}, prompt: a.Prompt}, nil
	}
	return a.newNamedAgent(*d)
}

// applyAgent selects the agent of request, completes request with what the agent sets and request leaves out, and lowers
// its limits to the agent's.
func (a *Agent) applyAgent(caller auth.Identity, request *Request) error {
	agent, err := a.selectAgent(caller, strings.TrimSpace(request.Agent))
	if err != nil {
		return err
	}
	request.as, request.Agent = agent, a.storedAgentID(agent)
	request.Model = cmp.Or(request.Model, agent.Model)
	request.Sampling = agent.ApplySampling(request.Sampling)
	request.MaxTokens = budget.LowerTokens(request.MaxTokens, agent.MaxOutputTokens)
	exceedsAgent := request.MaxTurns <= 0 || request.MaxTurns > agent.MaxTurns
	if agent.MaxTurns > 0 && exceedsAgent {
		request.MaxTurns = agent.MaxTurns
	}
	if len(request.OutputSchema) == 0 {
		request.OutputSchema = agent.OutputSchema
	}
	return nil
}

// budgetLimits returns the limits that no question can raise: the service's and the agent's.
func (a *Agent) budgetLimits(n *namedAgent) Budget {
	if n == nil {
		return a.Budget
	}
	return n.Budget.Within(a.Budget)
}

// ToolSearch sets when a model is offered a search tool and the tools that it has found, instead of all tools.
type ToolSearch = toolsearch.Options

// toolCatalog holds the tools that a run may use. Runs share it, so it never changes.
type toolCatalog struct {
	*toolsearch.Catalog
	source []catalog.Tool // that the tools were chosen from
	list   *record.ToolList
}

// newToolCatalog returns the catalog of some tools, which must not change any more.
func newToolCatalog(tools []catalog.Tool) *toolCatalog {
	return &toolCatalog{Catalog: toolsearch.NewCatalog(tools), list: record.NewToolList(tools)}
}

// toolCatalogCache caches the catalog of all tools of an agent. Almost every run uses it, and computing
// one costs more than the rest of a run's start.
type toolCatalogCache struct{ last atomic.Pointer[toolCatalog] }

// catalogFor returns the catalog of the tools in all that r may use. The caller must not change
// it.
func (c *toolCatalogCache) catalogFor(all []catalog.Tool, r Request) *toolCatalog {
	if len(all) == 0 || r.restrictsTools() {
		return newToolCatalog(r.filterTools(all))
	}
	// Package mcp returns the same slice until a tool changes.
	if last := c.last.Load(); last != nil && len(all) == len(last.source) && &all[0] == &last.source[0] {
		return last
	}
	made := newToolCatalog(r.filterTools(all))
	made.source = all
	c.last.Store(made)
	return made
}

// UsableTools returns the tools that a request of the caller may use; none if they may not use its agent.
// The caller must not change the slice.
func (a *Agent) UsableTools(ctx context.Context, caller auth.Identity, r Request) []catalog.Tool {
	var err error
	if r.as, err = a.selectAgent(caller, r.Agent); err != nil {
		return nil
	}
	return r.filterTools(a.ToolsFor(ctx, caller))
}

// askTools returns the tools with which a run of the request asks other agents: those that the agent lists, that
// exist at present, and that the caller may use.
func (a *Agent) askTools(caller auth.Identity, r Request) (tools []askTool) {
	if len(r.as.Agents) == 0 || r.ToolChoice == ToolNone || r.parent.Level >= definition.MaxLevels {
		return nil
	}
	served, access := a.agents.Load(), a.Rules.Of(caller)
	for _, id := range r.as.Agents {
		n, name := served.find(id), definition.AskPrefix+id
		if n == nil || !access.AllowsAgent(id) || !matches(r.Tools, name) {
			continue
		}
		description := "Asks the agent " + id + ", which has tools of its own, and returns its answer."
		if n.Description != "" {
			description += " " + n.Description
		}
		tools = append(tools, askTool{llm.Tool{Name: name, Description: description, Schema: askSchema}, id})
	}
	return tools
}

var askSchema = json.RawMessage(`{"type":"object","properties":{"question":{"type":"string","minLength":1,` +
	`"description":"One whole question. The agent sees nothing else of this conversation."}},"required":["question"],"additionalProperties":false}`)

// servedModels are the models that requests may name, see Options.
type servedModels struct {
	byDefault string
	profiles  map[string]llm.Profile
}

// Models returns Options.DefaultModel and Options.Profiles, or what has replaced them. The caller
// must not change the map.
func (a *Agent) Models() (defaultModel string, profiles map[string]llm.Profile) {
	m := a.models.Load()
	return m.byDefault, m.profiles
}

// ReplaceModels replaces Options.DefaultModel and Options.Profiles. Runs in progress keep the
// profiles of their models.
func (a *Agent) ReplaceModels(defaultModel string, profiles map[string]llm.Profile) {
	a.models.Store(&servedModels{defaultModel, profiles})
}

// profileOf returns the profile of a model. If the operator lists no models, the model's id decides
// whether it takes images.
func (a *Agent) profileOf(model string) llm.Profile {
	_, profiles := a.Models()
	if len(profiles) == 0 {
		return llm.Profile{ID: model, Images: llm.AcceptsImages(model)}
	}
	return profiles[model]
}

// priceOf returns the price of a model; nil if the operator has set none.
func (a *Agent) priceOf(model string) *llm.Price {
	_, profiles := a.Models()
	return profiles[model].Price
}

// hasAskTool reports whether one of the tools, each of which asks another agent, has the name.
func hasAskTool(tools []askTool, name string) bool {
	return slices.ContainsFunc(tools, func(t askTool) bool { return t.Name == name })
}
