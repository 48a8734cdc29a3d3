package api

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/native"
)

// callTool is POST /tools/{name}/call: one call without a model. The body of a call
// that worked is what tool_result would carry.
func (h *Handler) callTool(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "application/json"); err != nil {
		return err
	}
	body, err := h.body(r)
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

// tools is GET /tools: what the agent can call.
func (h *Handler) tools(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"tools": h.Agent.ToolsFor(r.Context(), identity(r))})
	return nil
}

// servers is GET /servers.
func (h *Handler) servers(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"servers": h.Agent.ServersFor(identity(r))})
	return nil
}

// refresh is POST /servers/{name}/refresh: list the server's tools again (S2.12).
func (h *Handler) refresh(w http.ResponseWriter, r *http.Request) error {
	name := chi.URLParam(r, "name")
	err := h.Agent.Refresh(r.Context(), identity(r), name)
	if errors.Is(err, agent.ErrUnknownServer) {
		return err
	}
	for _, s := range h.Agent.Tools.Servers() {
		switch {
		case s.Name != name:
		case err != nil:
			reason := cmp.Or(s.Reason, "The MCP server did not answer.")
			h.Logger.WarnContext(r.Context(), "refresh failed", "server", name, "reason", reason)
			return newProblem("unavailable", reason)
		default:
			writeJSON(w, http.StatusOK, "application/json", s)
		}
	}
	return nil
}

// prompts is GET /servers/{name}/prompts: what the server has, asked for now.
func (h *Handler) prompts(w http.ResponseWriter, r *http.Request) error {
	name := chi.URLParam(r, "name")
	list, err := h.Agent.Prompts(r.Context(), identity(r), name)
	if errors.Is(err, agent.ErrUnknownServer) {
		return err
	}
	if err != nil {
		h.Logger.WarnContext(r.Context(), "prompts could not be listed", "server", name, "error", err)
		return newProblem("unavailable", "The MCP server did not answer.")
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"prompts": list})
	return nil
}
