package api

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/native"
)

// listTools serves GET /tools: the tools that the agent may call for this caller.
func (h *Handler) listTools(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"tools": h.Agent.ToolsFor(r.Context(), identity(r))})
	return nil
}

// callTool serves POST /tools/{name}/call: one tool call without a model. The body of a successful
// call is that of the event tool_result, so that both are read in the same way.
func (h *Handler) callTool(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "application/json"); err != nil {
		return err
	}
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	call, err := native.DecodeToolCall(body)
	if err != nil {
		return err
	}
	call.Tool = chi.URLParam(r, "name")
	result, err := h.Agent.CallTool(r.Context(), identity(r), call)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", result)
	return nil
}

// listServers serves GET /servers: the MCP servers that this caller may use.
func (h *Handler) listServers(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"servers": h.Agent.ServersFor(identity(r))})
	return nil
}

// refreshServer serves POST /servers/{name}/refresh: it lists the server's tools again and answers
// with the server's state.
func (h *Handler) refreshServer(w http.ResponseWriter, r *http.Request) error {
	name := chi.URLParam(r, "name")
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
			h.Logger.WarnContext(r.Context(), "refresh failed", "server", name, "reason", reason)
			return newProblem("unavailable", reason)
		}
		writeJSON(w, http.StatusOK, "application/json", s)
	}
	return nil
}

// listPrompts serves GET /servers/{name}/prompts. It asks the server each time.
func (h *Handler) listPrompts(w http.ResponseWriter, r *http.Request) error {
	name := chi.URLParam(r, "name")
	list, err := h.Agent.Prompts(r.Context(), identity(r), name)
	if errors.Is(err, agent.ErrUnknownServer) {
		return err
	}
	if err != nil {
		h.Logger.WarnContext(r.Context(), "cannot list prompts", "server", name, "error", err)
		return newProblem("unavailable", "The MCP server did not answer.")
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"prompts": list})
	return nil
}
