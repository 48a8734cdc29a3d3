package api

import (
	"net/http"
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
