package api

import (
	"cmp"
	"errors"
	"net/http"

	"answerd/internal/agent"
	"answerd/internal/agent/definition"
	"answerd/internal/api/native"
	"answerd/internal/auth"
	"answerd/internal/help"
)

// listTools serves GET /tools: the tools that the agent may call for this caller.
func (h *Handler) listTools(w http.ResponseWriter, r *http.Request) error {
	return answerJSON(w, map[string]any{"tools": h.Agent.ToolsFor(r.Context(), identity(r))})
}

// listAgents serves GET /agents: the named agents that this caller may ask.
func (h *Handler) listAgents(w http.ResponseWriter, r *http.Request) error {
	list := native.AgentList{Agents: []native.Agent{}}
	for _, d := range h.Agent.Agents(identity(r)) {
		list.Agents = append(list.Agents, h.describeAgent(r, d))
	}
	return answerJSON(w, list)
}

// getAgent serves GET /agents/{id}.
func (h *Handler) getAgent(w http.ResponseWriter, r *http.Request) error {
	d := definition.Find(h.Agent.Agents(identity(r)), pathParam(r, "id"))
	if d == nil {
		return agent.ErrUnknownAgent
	}
	return answerJSON(w, h.describeAgent(r, *d))
}

// describeAgent describes the agent d as this caller sees it: Tools lists only the tools that the access rules allow
// the caller.
func (h *Handler) describeAgent(r *http.Request, d definition.Agent) native.Agent {
	return native.Agent{
		ID: d.ID, Description: d.Description, Model: d.Model, Default: d.ID == h.Agent.DefaultAgent(),
		Tools: h.Agent.AgentTools(r.Context(), identity(r), d.ID), OutputSchema: d.OutputSchema, Examples: append([]string{}, d.Examples...),
	}
}

// selectAgent lets a request name an agent as its model, for API formats that have no field for agents. If req.Model is
// the id of a named agent, selectAgent sets req.Agent to it and clears req.Model. No agent has the id of a model, so
// the two cannot be confused. If the caller may not use the agent, the error is that of Agent.IsAgent, which does not
// reveal that the agent exists.
func (h *Handler) selectAgent(caller auth.Identity, req *agent.Request) error {
	isAgent, err := h.Agent.IsAgent(caller, req.Model)
	if err != nil || !isAgent {
		return err
	}
	id := req.Model
	req.Model = ""
	return setAgent(req, id)
}

// setAgent sets req.Agent to id, which the request has outside of the native fields: as the model, in the path, or as
// the MCP tool. The error is an *agent.InvalidError if the native field names another agent.
func setAgent(req *agent.Request, id string) error {
	if req.Agent != "" && req.Agent != id {
		return &agent.InvalidError{Pointer: "/agent", Detail: "the request also names the agent " + id}
	}
	req.Agent = id
	return nil
}

// callTool serves POST /tools/{name}/call: one tool call without a model. A successful call has the same body as the
// event tool_result, so that clients can read both in the same way.
func (h *Handler) callTool(w http.ResponseWriter, r *http.Request) error {
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	call, err := native.DecodeToolCall(body)
	if err != nil {
		return err
	}
	call.Tool = pathParam(r, "name")
	result, err := h.Agent.CallTool(r.Context(), identity(r), call)
	if err != nil {
		return err
	}
	return answerJSON(w, result)
}

// listServers serves GET /servers: the MCP servers that this caller may use.
func (h *Handler) listServers(w http.ResponseWriter, r *http.Request) error {
	return answerJSON(w, map[string]any{"servers": h.Agent.ServersFor(identity(r))})
}

// refreshServer serves POST /servers/{name}/refresh: it lists the server's tools again and answers with the server's
// state. If the server cannot be used, it answers with the problem unavailable, which gives the reason.
func (h *Handler) refreshServer(w http.ResponseWriter, r *http.Request) error {
	name := pathParam(r, "name")
	refreshErr := h.Agent.Refresh(r.Context(), identity(r), name)
	if errors.Is(refreshErr, agent.ErrUnknownServer) {
		return refreshErr
	}
	for _, s := range h.Agent.Tools.Servers() {
		if s.Name != name {
			continue
		}
		if refreshErr != nil {
			reason := cmp.Or(s.Reason, "The MCP server did not answer.")
			h.Logger.WarnContext(r.Context(), "refresh failed", "server", name, "reason", reason, help.Servers.Attr())
			return newProblem("unavailable", reason)
		}
		return answerJSON(w, s)
	}
	return agent.ErrUnknownServer // removed from mcp.json since the refresh
}

// listPrompts serves GET /servers/{name}/prompts. It caches nothing: each request goes to the MCP server.
func (h *Handler) listPrompts(w http.ResponseWriter, r *http.Request) error {
	name := pathParam(r, "name")
	list, err := h.Agent.Prompts(r.Context(), identity(r), name)
	if errors.Is(err, agent.ErrUnknownServer) {
		return err
	}
	if err != nil {
		h.Logger.WarnContext(r.Context(), "cannot list prompts", "server", name, "error", err, help.Servers.Attr())
		return newProblem("unavailable", "The MCP server did not answer.")
	}
	return answerJSON(w, list)
}
