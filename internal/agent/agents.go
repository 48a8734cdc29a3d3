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

// Named agents (Options.Agents). A question selects an agent by id, and the agent's definition completes and restricts
// the request. A run keeps the definition that it started with, even in a process that takes it over. ReplaceAgents
// affects only runs that start later, including child runs of current runs.

// ErrUnknownAgent means that no agent has this id, or that the caller may not use the agent.
var ErrUnknownAgent = errors.New("no such agent")

// namedAgent is an agent that questions can select, or the agent that a run started with.
type namedAgent struct {
	definition.Agent
	prompt   *prompt.Prompt
	exported json.RawMessage // the definition without the prompt, for exports of runs
	// lastCatalog caches the catalog of all tools that the agent may use. Almost every run uses that catalog, and
	// computing it costs more than everything else at a run's start.
	lastCatalog atomic.Pointer[toolCatalog]
}

// newNamedAgent creates an agent from its definition: it compiles the prompt and encodes the definition for exports. It
// returns an error if the prompt does not compile.
func (a *Agent) newNamedAgent(d definition.Agent) (*namedAgent, error) {
	p, err := a.Prompt.WithTemplate(d.Prompt)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", d.ID, err)
	}
	n := &namedAgent{Agent: d, prompt: p}
	d.Prompt = "" // an export contains the prompt template elsewhere, in its settings
	if n.exported, err = json.Marshal(d); err != nil {
		return nil, fmt.Errorf("encode the agent %s: %w", d.ID, err)
	}
	return n, nil
}

// servedAgents are the agents that questions can select; the first one is the default.
type servedAgents struct {
	list []*namedAgent
	// unnamed means that AGENTS_FILE is not set. The only agent is then configured by the environment, and runs do not
	// store its id.
	unnamed bool
}

// ReplaceAgents replaces Options.Agents. If agents is empty, the only agent has the id definition.DefaultID. Current
// runs keep their definitions. It fails, and changes nothing, if a prompt does not compile.
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

// Agents returns the agents that caller may ask, in the order of AGENTS_FILE. The default agent comes first, if caller
// may ask it. An agent whose definition has no model is returned with the service's default model.
func (a *Agent) Agents(caller auth.Identity) []definition.Agent {
	access := a.Rules.Of(caller)
	defaultModel, _ := a.Models()
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

// DefaultAgent returns the id of the agent that answers questions which name no agent.
func (a *Agent) DefaultAgent() string { return a.agents.Load().list[0].ID }

// HasAgent reports whether AGENTS_FILE defines an agent with this id, whether or not the caller may use it.
func (a *Agent) HasAgent(id string) bool {
	served := a.agents.Load()
	return !served.unnamed && served.find(id) != nil
}

// IsAgent reports whether model, the model of a request in an API format that has no field for the agent, is the id of
// an agent. If caller may not use the agent, the error is that for a model that is not served, so that callers do not
// learn that the agent exists. If the access rules allow caller nothing, the error is ErrForbidden.
func (a *Agent) IsAgent(caller auth.Identity, model string) (bool, error) {
	if model == "" || !a.HasAgent(model) {
		return false, nil
	}
	_, err := a.selectAgent(caller, model)
	if errors.Is(err, ErrUnknownAgent) {
		return false, errUnknownModel
	}
	return err == nil, err
}

// AgentTools returns the names of the tools that the agent with this id may call for caller, including those that ask
// other agents. It returns an empty list, never nil, if the agent does not exist or caller may not use it.
func (a *Agent) AgentTools(ctx context.Context, caller auth.Identity, id string) []string {
	names := []string{}
	agent, err := a.selectAgent(caller, id)
	if err != nil {
		return names
	}
	request := Request{Agent: id, namedAgent: agent}
	for _, t := range request.filterTools(a.ToolsFor(ctx, caller)) {
		names = append(names, t.Name)
	}
	for _, t := range a.askTools(caller, request) {
		names = append(names, t.Name)
	}
	return names
}

// find returns the agent with this id, or nil if it does not exist. "" selects the default agent.
func (s *servedAgents) find(id string) *namedAgent {
	if id == "" {
		return s.list[0]
	}
	if i := slices.IndexFunc(s.list, func(n *namedAgent) bool { return n.ID == id }); i >= 0 {
		return s.list[i]
	}
	return nil
}

// selectAgent returns the agent with this id; "" selects the default agent. It returns ErrForbidden if the access rules
// allow caller nothing at all, and ErrUnknownAgent if the agent does not exist or caller may not use it.
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

// restoreAgent returns the agent of a run that another process started. stored is the definition in the run's
// checkpoint; nil means that the environment configured the agent.
func (a *Agent) restoreAgent(stored *definition.Agent) (*namedAgent, error) {
	if stored == nil {
		return &namedAgent{Agent: definition.Agent{ID: definition.DefaultID}, prompt: a.Prompt}, nil
	}
	return a.newNamedAgent(*stored)
}

// applyAgent selects the agent for request. It fills in the settings that request leaves out from the agent, and lowers
// request's limits to the agent's. The errors are those of selectAgent.
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
	request.MaxTokens = budget.Lower(request.MaxTokens, agent.MaxOutputTokens)
	request.MaxTurns = budget.Lower(request.MaxTurns, agent.MaxTurns)
	if len(request.OutputSchema) == 0 {
		request.OutputSchema = agent.OutputSchema
	}
	return nil
}

// budgetLimits returns the limits that an agent's runs cannot exceed: of the service's and the agent's, the lower ones.
// For a nil agent, these are the service's.
func (a *Agent) budgetLimits(agent *namedAgent) Budget {
	if agent == nil {
		return a.Budget
	}
	return agent.Budget.Within(a.Budget)
}

// ToolSearch configures when the model gets a search tool, and the tools found with it, instead of all tools.
type ToolSearch = toolsearch.Options

// toolCatalog holds the tools that a run may use. It is immutable, because runs share it.
type toolCatalog struct {
	*toolsearch.Catalog
	source []catalog.Tool   // the list that the catalog was filtered from; nil if it is not cached
	list   *record.ToolList // the tools in the form that exports use
}

// newToolCatalog returns a catalog of tools. The caller must not change the slice afterwards.
func newToolCatalog(tools []catalog.Tool) *toolCatalog {
	return &toolCatalog{Catalog: toolsearch.NewCatalog(tools), list: record.NewToolList(tools)}
}

// catalogFor returns the catalog of those tools in all that request may use. It uses n.lastCatalog if request does not
// restrict its tools and all is the same slice as in the last call. The caller must not change the catalog.
func (n *namedAgent) catalogFor(all []catalog.Tool, request Request) *toolCatalog {
	if len(all) == 0 || request.restrictsTools() {
		return newToolCatalog(request.filterTools(all))
	}
	// Package mcp returns the same slice until a tool changes.
	if last := n.lastCatalog.Load(); last != nil && len(all) == len(last.source) && &all[0] == &last.source[0] {
		return last
	}
	created := newToolCatalog(request.filterTools(all))
	created.source = all
	n.lastCatalog.Store(created)
	return created
}

// UsableTools returns the tools that request may use for caller, or nil if caller may not use the request's agent. The
// caller of UsableTools must not change the returned slice, which may be shared.
func (a *Agent) UsableTools(ctx context.Context, caller auth.Identity, request Request) []catalog.Tool {
	var err error
	if request.namedAgent, err = a.selectAgent(caller, request.Agent); err != nil {
		return nil
	}
	return request.filterTools(a.ToolsFor(ctx, caller))
}

const afterToolsFor, beforeToolsFor = true, false // the values of waited in unavailableServers

// unavailableServers returns the names of the servers that request would use but that are unavailable. waited says that
// ToolsFor has been called before, which waits for servers that are still connecting; servers that have never connected
// then count as unavailable too.
func (a *Agent) unavailableServers(caller auth.Identity, request Request, waited bool) []string {
	access := a.Rules.Of(caller)
	return slices.DeleteFunc(a.Tools.Unavailable(waited), func(name string) bool {
		return !request.namedAgent.AllowsServer(name) || !access.AllowsServer(name) || !matches(request.Servers, name)
	})
}

// checkToolsAvailable returns a *ToolsUnavailableError if the question depends on tools but can use none, because
// servers are down. A question depends on tools if it names servers or tools, or requires a call. Without this check,
// the model would answer without the tools, and the API client might not notice. It waits for servers that are still
// connecting.
func (a *Agent) checkToolsAvailable(ctx context.Context, caller auth.Identity, request Request) error {
	needsTools := request.ToolChoice == ToolRequired || len(request.Servers) > 0 || len(request.Tools) > 0
	if request.ToolChoice == ToolNone || !needsTools {
		return nil
	}
	tools := request.filterTools(a.ToolsFor(ctx, caller))
	down := a.unavailableServers(caller, request, afterToolsFor)
	var asks []askTool
	if len(request.Servers) == 0 { // a question that names servers depends on their tools, not on other agents
		asks = a.askTools(caller, request)
	}
	if len(down) == 0 || request.hasAvailableTool(tools, down, asks) {
		return nil
	}
	// The tools of a server that never connected are unknown, so the question may mean any of them: name all servers.
	return &ToolsUnavailableError{Servers: down}
}

// hasAvailableTool reports whether the model can call a tool of a server that is not in down, or one of asks, the tools
// that ask other agents. The API client's tools count only if the model must call a tool. With ForcedTool, only that
// tool counts.
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

// askTools returns the tools with which a run of request asks other agents. The request's agent lists the agents that
// it may ask. An agent is left out if it no longer exists, if caller may not use it, or if the request does not allow
// its tool. At definition.MaxLevels a run cannot ask other agents.
func (a *Agent) askTools(caller auth.Identity, request Request) (tools []askTool) {
	if len(request.namedAgent.Agents) == 0 || request.ToolChoice == ToolNone || request.parent.Level >= definition.MaxLevels {
		return nil
	}
	served, access := a.agents.Load(), a.Rules.Of(caller)
	for _, id := range request.namedAgent.Agents {
		name := definition.AskPrefix + id
		asked := served.find(id)
		if asked == nil || !access.AllowsAgent(id) || !request.matchesTool(name) {
			continue
		}
		description := definition.AskSentence(id)
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

// hasAskTool reports whether tools contains a tool called name.
func hasAskTool(tools []askTool, name string) bool {
	return slices.ContainsFunc(tools, func(t askTool) bool { return t.Name == name })
}

// servedModels holds the models that requests may name; see Options.
type servedModels struct {
	defaultModel string
	profiles     map[string]llm.Profile
}

// Models returns Options.DefaultModel and Options.Profiles, or what replaced them. The caller must not change the map.
func (a *Agent) Models() (defaultModel string, profiles map[string]llm.Profile) {
	m := a.models.Load()
	return m.defaultModel, m.profiles
}

// ReplaceModels replaces Options.DefaultModel and Options.Profiles. Current runs keep their models' profiles.
func (a *Agent) ReplaceModels(defaultModel string, profiles map[string]llm.Profile) {
	a.models.Store(&servedModels{defaultModel, profiles})
}

// profileOf returns a model's profile. It returns the zero value if the model is not served. If the operator has
// configured no models, every model is served, and its name decides whether it accepts images.
func (a *Agent) profileOf(model string) llm.Profile {
	_, profiles := a.Models()
	if len(profiles) == 0 {
		return llm.Profile{ID: model, Images: llm.AcceptsImages(model)}
	}
	return profiles[model]
}

// priceOf returns a model's price, or nil if none is configured.
func (a *Agent) priceOf(model string) *llm.Price {
	_, profiles := a.Models()
	return profiles[model].Price
}

// usePriceOf sets the price at which the budget charges the next tokens. answered is the model that answered, which may
// be a fallback of the requested model. If the fallback's price is unknown, the requested model's price applies.
func (l *loop) usePriceOf(answered string) {
	price := l.profile.Price
	if answered != l.run.req.Model {
		price = cmp.Or(l.agent.priceOf(answered), price)
	}
	l.budget.SetPrice(price)
}

// updateOffered sets l.offered, the tools that the model is offered: the API client's tools, the tools that ask other
// agents, and then the servers' tools, or what the tool search shows instead. The first two kinds do not change during
// a run. They come first, so that endpoints can cache the beginning of the prompt.
func (l *loop) updateOffered() {
	fixed := slices.Clone(l.clientTools)
	for _, t := range l.askTools {
		fixed = append(fixed, t.Tool)
	}
	serverTools := l.catalog.Offered
	if l.search != nil {
		serverTools = l.search.Shown()
	}
	l.offered = serverTools // shared with other runs, so it is copied before anything is added
	if len(fixed) > 0 {
		l.offered = append(fixed, serverTools...)
	}
}

// newToolSearch returns a tool search over the catalog, or nil if the model is to be offered all tools. It returns nil
// if the tools are few for the model's window (Options.ToolSearch), if the request restricts the tools, or if it
// requires a call.
func (l *loop) newToolSearch() *toolsearch.Search {
	if l.run.req.restrictsTools() || l.run.req.ToolChoice == ToolRequired {
		return nil
	}
	return l.agent.ToolSearch.Search(l.catalog.Catalog, l.window.Size())
}

// fitTools adapts the offered tools to the size of the model's window, once the endpoint has revealed it. If all tools
// take too much of the window, fitTools starts a tool search. If a search is already in use, it may show fewer tools.
// An error comes from building the system prompt.
func (l *loop) fitTools(ctx context.Context) error {
	if l.search == nil {
		search := l.newToolSearch()
		if search == nil {
			return nil
		}
		if err := l.switchToSearch(ctx, search); err != nil {
			return err
		}
	}
	l.search.Fit(l.window.Size())
	l.updateOffered()
	return nil
}

// switchToSearch makes the run use search, and adapts the client tools and the system prompt to it. Tools that the run
// has already called stay offered. An error comes from building the system prompt.
func (l *loop) switchToSearch(ctx context.Context, search *toolsearch.Search) (err error) {
	l.search = search
	var called []string
	for _, m := range l.messages {
		for _, c := range m.Calls {
			called = append(called, c.Name)
		}
	}
	search.Offer(called...)
	l.clientTools = l.run.req.clientTools(l.catalog, search, l.askTools)
	l.messages[0].Text, err = l.systemPrompt(ctx)
	return err
}

// offeredTools returns the tools that the next model request offers. It returns nil in the final turn.
func (l *loop) offeredTools(final bool) []llm.Tool {
	if final {
		return nil
	}
	return l.offered
}

// answerTokens returns how many tokens the next answer may have; 0 means no limit. It is the lowest of the request's
// limit, the operator's, the model's, and the rest of the run's budget. If any of these is set, or the endpoint has
// refused prompt and answer together (answerRefused), the answer must also fit into the window behind the prompt. final
// says that this is the last turn, for which the budget keeps a reserve.
func (l *loop) answerTokens(final bool) int64 {
	limit := budget.Lower(l.run.req.MaxTokens, l.agent.MaxOutputTokens)
	limit = budget.Lower(limit, l.profile.MaxOutputTokens)
	limit = budget.Lower(limit, l.budget.AnswerTokens(l.lastPromptTokens, final))
	isLimited := limit != 0
	if !isLimited && !l.answerRefused {
		return 0
	}
	return budget.Lower(limit, l.window.AnswerTokens())
}

// modelRequest returns the model request for a turn, counted from 1. In the final turn it offers no tools.
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
