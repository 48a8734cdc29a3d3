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

// Named agents (Options.Agents): a question selects an agent by its id, and the agent's definition completes
// and restricts the request. A run keeps the definition that it started with, also in a process that
// takes the run over. ReplaceAgents affects only runs that start later, including child runs of runs in progress.

// ErrUnknownAgent means that no agent has the id, or that the caller may not use the agent that has it.
var ErrUnknownAgent = errors.New("no such agent")

// namedAgent is an agent that questions can select, or the one that a run has started with.
type namedAgent struct {
	definition.Agent
	prompt   *prompt.Prompt
	exported json.RawMessage  // the definition without its prompt, for exports of runs
	catalogs toolCatalogCache // caches the catalog of all tools that the agent may use
}

// newNamedAgent returns the agent of a definition. It compiles the prompt and encodes the definition for exports.
func (a *Agent) newNamedAgent(d definition.Agent) (*namedAgent, error) {
	p, err := a.Prompt.WithTemplate(d.Prompt)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", d.ID, err)
	}
	n := &namedAgent{Agent: d, prompt: p}
	d.Prompt = "" // an export has the template in its settings
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

// Agents returns the agents that a caller may ask, in the order of AGENTS_FILE. The default agent comes first if the
// caller may ask it. Agents without a model have the service's default model.
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

// HasAgent reports whether AGENTS_FILE has an agent with that id, even if the caller may not use it. API formats
// that name agents in the field for the model use this to tell an agent from a model.
func (a *Agent) HasAgent(id string) bool {
	served := a.agents.Load()
	return !served.unnamed && served.find(id) != nil
}

// AgentTools returns the names of the tools that an agent may call for a caller, those that ask other agents
// included. If the caller may not use the agent or the agent does not exist, the list is empty. It is never nil.
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
	request.namedAgent = n
	for _, t := range a.askTools(caller, request) {
		names = append(names, t.Name)
	}
	return names
}

// defaultModel returns the model of requests that name no model, and whose agent has none.
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

// selectAgent returns the agent with that id; "" selects the default agent. It returns ErrForbidden if the rules
// allow the caller nothing, and ErrUnknownAgent if there is no such agent or the caller may not use it.
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

// agentID returns the id of the run's agent for logs, metrics and deliveries: definition.DefaultID without AGENTS_FILE.
func (r *run) agentID() string { return cmp.Or(r.Agent, definition.DefaultID) }

// restoreAgent returns the agent of a run that another process started, from the definition in the run's checkpoint.
// A nil definition means that the run's agent has no name: its settings are those of the environment.
func (a *Agent) restoreAgent(stored *definition.Agent) (*namedAgent, error) {
	if stored == nil {
		return &namedAgent{Agent: definition.Agent{ID: definition.DefaultID}, prompt: a.Prompt}, nil
	}
	return a.newNamedAgent(*stored)
}

// applyAgent selects the agent of request. It completes request with the settings of the agent that request leaves
// out, and lowers its limits to the agent's.
func (a *Agent) applyAgent(caller auth.Identity, request *Request) error {
	agent, err := a.selectAgent(caller, strings.TrimSpace(request.Agent))
	if err != nil {
		return err
	}
	request.namedAgent = agent
	request.Agent = agent.ID
	if agent.ID == definition.DefaultID && a.agents.Load().unnamed {
		request.Agent = "" // AGENTS_FILE is not set
	}
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

// budgetLimits returns the limits that no question can raise: the lower of the service's and the agent's. A nil
// agent has no limits of its own.
func (a *Agent) budgetLimits(agent *namedAgent) Budget {
	if agent == nil {
		return a.Budget
	}
	return agent.Budget.Within(a.Budget)
}

// ToolSearch sets when a model is offered a search tool and the tools that it has found, instead of all tools.
type ToolSearch = toolsearch.Options

// toolCatalog holds the tools that a run may use. Runs share it, so it never changes.
type toolCatalog struct {
	*toolsearch.Catalog
	source []catalog.Tool   // the tools from which those of the catalog were chosen; nil if it is not cached
	list   *record.ToolList // the tools as exports have them
}

// newToolCatalog returns the catalog of tools. The slice must not change any more.
func newToolCatalog(tools []catalog.Tool) *toolCatalog {
	return &toolCatalog{Catalog: toolsearch.NewCatalog(tools), list: record.NewToolList(tools)}
}

// toolCatalogCache caches the catalog of all tools of an agent. Almost every run uses this catalog, and computing
// it costs more than the rest of a run's start.
type toolCatalogCache struct{ last atomic.Pointer[toolCatalog] }

// catalogFor returns the catalog of those tools of all that request may use, from the cache if request does not
// restrict its tools and all is the same slice as last time. The caller must not change the catalog.
func (c *toolCatalogCache) catalogFor(all []catalog.Tool, request Request) *toolCatalog {
	if len(all) == 0 || request.restrictsTools() {
		return newToolCatalog(request.filterTools(all))
	}
	// Package mcp returns the same slice until a tool changes.
	if last := c.last.Load(); last != nil && len(all) == len(last.source) && &all[0] == &last.source[0] {
		return last
	}
	created := newToolCatalog(request.filterTools(all))
	created.source = all
	c.last.Store(created)
	return created
}

// UsableTools returns the tools that a request of the caller may use; nil if the caller may not use its agent. The
// slice is shared: do not change it.
func (a *Agent) UsableTools(ctx context.Context, caller auth.Identity, request Request) []catalog.Tool {
	var err error
	if request.namedAgent, err = a.selectAgent(caller, request.Agent); err != nil {
		return nil
	}
	return request.filterTools(a.ToolsFor(ctx, caller))
}

// unavailableServers returns the names of the servers that the request would use and that cannot be used at present.
// waited means that the caller has waited for the servers' tools (ToolsFor): then servers that have never been
// connected count too.
func (a *Agent) unavailableServers(caller auth.Identity, request Request, waited bool) []string {
	access := a.Rules.Of(caller)
	return slices.DeleteFunc(a.Tools.Unavailable(waited), func(name string) bool {
		agentAllows := request.namedAgent == nil || request.namedAgent.AllowsServer(name)
		return !agentAllows || !access.AllowsServer(name) || !matches(request.Servers, name)
	})
}

// checkToolsAvailable returns a *ToolsUnavailableError for a question that depends on tools of servers that are
// down: it names servers or tools, or requires a call, and no tool that it may use is available. The model would
// otherwise answer without the tools, and the caller might not notice. It waits for servers that are being connected.
func (a *Agent) checkToolsAvailable(ctx context.Context, caller auth.Identity, request Request) error {
	needsTools := request.ToolChoice == ToolRequired || len(request.Servers) > 0 || len(request.Tools) > 0
	if request.ToolChoice == ToolNone || !needsTools {
		return nil
	}
	tools := request.filterTools(a.ToolsFor(ctx, caller))
	down := a.unavailableServers(caller, request, true)
	var asks []askTool
	if len(request.Servers) == 0 { // a question that names servers depends on their tools, and not on other agents
		asks = a.askTools(caller, request)
	}
	if len(down) == 0 || request.hasAvailableTool(tools, down, asks) {
		return nil
	}
	// The tools of a server that was never listed are not known: the question may mean any of them.
	return &ToolsUnavailableError{Servers: down}
}

// hasAvailableTool reports whether the model can call one of asks (tools that ask other agents) or a tool of a
// server that is not down. Tools of the caller count only if the model must call a tool. With ForcedTool, only the
// tool with that name counts.
func (r Request) hasAvailableTool(tools []catalog.Tool, down []string, asks []askTool) bool {
	mayCall := func(name string) bool { return r.ForcedTool == "" || name == r.ForcedTool }
	if slices.ContainsFunc(asks, func(t askTool) bool { return mayCall(t.Name) }) {
		return true
	}
	isUp := func(t catalog.Tool) bool { return !slices.Contains(down, t.Server) }
	if slices.ContainsFunc(tools, func(t catalog.Tool) bool { return isUp(t) && mayCall(t.Name) }) {
		return true
	}
	mustCall := r.ToolChoice == ToolRequired || r.ForcedTool != ""
	return mustCall && slices.ContainsFunc(r.ClientTools, func(t ClientTool) bool { return mayCall(t.Name) })
}

// askTools returns the tools with which a run of the request asks other agents. There is one for each agent that the
// request's agent lists, that exists at present, that the caller may use, and that Request.Tools allows. A run at
// definition.MaxLevels cannot ask further agents.
func (a *Agent) askTools(caller auth.Identity, request Request) (tools []askTool) {
	if len(request.namedAgent.Agents) == 0 || request.ToolChoice == ToolNone || request.parent.Level >= definition.MaxLevels {
		return nil
	}
	served, access := a.agents.Load(), a.Rules.Of(caller)
	for _, id := range request.namedAgent.Agents {
		name := definition.AskPrefix + id
		asked := served.find(id)
		if asked == nil || !access.AllowsAgent(id) || !matches(request.Tools, name) {
			continue
		}
		description := "Asks the agent " + id + ", which has tools of its own, and returns its answer."
		if asked.Description != "" {
			description += " " + asked.Description
		}
		tools = append(tools, askTool{llm.Tool{Name: name, Description: description, Schema: askSchema}, id})
	}
	return tools
}

// askSchema is the input schema of the tools that ask other agents.
var askSchema = json.RawMessage(`{"type":"object","properties":{"question":{"type":"string","minLength":1,` +
	`"description":"One whole question. The agent sees nothing else of this conversation."}},"required":["question"],"additionalProperties":false}`)

// hasAskTool reports whether one of tools has the name.
func hasAskTool(tools []askTool, name string) bool {
	return slices.ContainsFunc(tools, func(t askTool) bool { return t.Name == name })
}

// servedModels are the models that requests may name, see Options.
type servedModels struct {
	defaultModel string
	profiles     map[string]llm.Profile
}

// Models returns Options.DefaultModel and Options.Profiles, or what has replaced them. The caller
// must not change the map.
func (a *Agent) Models() (defaultModel string, profiles map[string]llm.Profile) {
	m := a.models.Load()
	return m.defaultModel, m.profiles
}

// ReplaceModels replaces Options.DefaultModel and Options.Profiles. Runs in progress keep the profiles of their models.
func (a *Agent) ReplaceModels(defaultModel string, profiles map[string]llm.Profile) {
	a.models.Store(&servedModels{defaultModel, profiles})
}

// profileOf returns the profile of a model; the zero value for a model that is not served. If the operator lists no
// models, the model's id decides whether it takes images.
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

// updateOffered sets l.offered, the tools that the model is offered: the caller's tools, those that ask other agents,
// and the servers' tools or what the tool search shows in their place. The first two kinds stay the same for the whole
// run; because they come first, the beginning of the prompt stays cacheable.
func (l *loop) updateOffered() {
	fixed := slices.Clone(l.clientTools)
	for _, t := range l.askTools {
		fixed = append(fixed, t.Tool)
	}
	switch {
	case l.search != nil:
		l.offered = append(fixed, l.search.Shown()...)
	case len(fixed) > 0:
		l.offered = append(fixed, l.catalog.Offered...)
	default:
		l.offered = l.catalog.Offered
	}
}

// newToolSearch returns a tool search over the catalog. It returns nil if the model is offered all tools instead: if
// they are few for the model's window (Options.ToolSearch), or if the request restricts the tools or requires a call.
func (l *loop) newToolSearch() *toolsearch.Search {
	if l.run.req.restrictsTools() || l.run.req.ToolChoice == ToolRequired {
		return nil
	}
	return l.agent.ToolSearch.Search(l.catalog.Catalog, l.window.Size())
}

// fitTools adapts the offered tools to the model's window after its size was learned. If all tools would take too much
// of the window, it starts the tool search, which changes the system prompt; tools that the run has called stay
// offered. A search that was started before shows fewer tools if the window requires that. The error is that of the
// system prompt.
func (l *loop) fitTools(ctx context.Context) (err error) {
	if l.search == nil {
		l.search = l.newToolSearch()
		if l.search == nil {
			return nil
		}
		var called []string
		for _, m := range l.messages {
			for _, c := range m.Calls {
				called = append(called, c.Name)
			}
		}
		l.search.Offer(called...)
		l.clientTools = l.run.req.clientTools(l.catalog, l.search, l.askTools)
		l.messages[0].Text, err = l.systemPrompt(ctx, []catalog.Tool{l.search.Tool})
	}
	l.search.Fit(l.window.Size())
	l.updateOffered()
	return err
}

// offeredTools returns the tools that a model request offers; nil in the final turn.
func (l *loop) offeredTools(final bool) []llm.Tool {
	if final {
		return nil
	}
	return l.offered
}

// answerTokens returns how many tokens the next answer may have; 0 means no limit. It is the lowest of the request's
// limit, the operator's, the model's, and the rest of the run's budget. If one of these is set, or the endpoint has
// refused prompt and answer together (answerRefused), the room that the prompt leaves in the window limits it too.
// final is whether the turn is the last one, for which the budget keeps a reserve.
func (l *loop) answerTokens(final bool) int64 {
	limit := budget.LowerTokens(l.run.req.MaxTokens, l.agent.MaxOutputTokens)
	limit = budget.LowerTokens(limit, l.profile.MaxOutputTokens)
	limit = budget.LowerTokens(limit, l.budget.AnswerTokens(l.lastPromptTokens, final))
	if limit == 0 && !l.answerRefused {
		return 0
	}
	return budget.LowerTokens(limit, l.window.AnswerRoom())
}

// modelRequest returns the request of a turn, from 1. The final turn offers no tools.
func (l *loop) modelRequest(turn int, final bool) llm.Request {
	req := &l.run.req
	r := llm.Request{
		Model: req.Model, Messages: l.messages, ToolChoice: llm.None, MaxTokens: l.answerTokens(final),
		Sampling: req.Sampling, OutputSchema: req.OutputSchema, Preferred: l.preferredModel,
	}
	if tools := l.offeredTools(final); len(tools) > 0 {
		r.Tools = tools
		r.ToolChoice = llm.Auto
		if turn == 1 && req.ToolChoice == ToolRequired {
			// Only in the first turn: a model that must always call a tool never answers.
			r.ToolChoice = llm.Required
			r.MustCall = req.ForcedTool
		}
	}
	return r
}
