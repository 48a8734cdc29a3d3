package api

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
)

// health is GET /healthz: the process answers.
func (h *Handler) health(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
	return nil
}

// ready is GET /readyz: whether new questions should be sent here. An MCP server
// that is down does not make the service unready; it is shown. An event log that is
// away does: nothing could be started, or read.
func (h *Handler) ready(w http.ResponseWriter, r *http.Request) error {
	servers := h.Agent.Tools.Servers()
	status, state := http.StatusOK, "ready"
	for _, s := range servers {
		if s.State == "failed" || s.State == "degraded" {
			state = "degraded"
		}
	}
	switch {
	case h.unready.Load():
		status, state = http.StatusServiceUnavailable, "draining"
	case !h.Agent.Tools.Ready():
		status, state = http.StatusServiceUnavailable, "starting"
	case h.Log.Ready(r.Context()) != nil:
		status, state = http.StatusServiceUnavailable, "log_unavailable"
	}
	writeJSON(w, status, "application/json", map[string]any{"status": state, "servers": servers})
	return nil
}

// openAPI is GET /openapi.yaml.
func (h *Handler) openAPI(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(h.OpenAPI)
	return err
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
			h.Logger.WarnContext(r.Context(), "refresh failed", "server", name, "error", err)
			return newProblem("unavailable", cmp.Or(s.Reason, "The MCP server did not answer."))
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
