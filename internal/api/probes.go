package api

import (
	"errors"
	"io/fs"
	"net/http"
	"strings"
)

// getHealth serves GET /healthz. It answers 200 whenever the process can. It checks neither the MCP servers nor the
// log, because a failing liveness probe causes a restart, which would repair neither.
func (h *Handler) getHealth(w http.ResponseWriter, r *http.Request) error {
	return answerJSON(w, map[string]string{"status": "ok"})
}

// getReadiness serves GET /readyz, which says whether load balancers should send requests here. An MCP server that is
// down does not make the service unready; the body shows it. An unreachable event log does, because runs can then be
// neither started nor read.
func (h *Handler) getReadiness(w http.ResponseWriter, r *http.Request) error {
	servers := h.Agent.Tools.Servers()
	state := "ready"
	for _, s := range servers {
		if s.State == "failed" || s.State == "degraded" {
			state = "degraded"
		}
	}
	code := http.StatusServiceUnavailable
	switch {
	case h.unready.Load():
		state = "draining"
	case !h.Agent.Tools.Ready():
		state = "starting"
	case h.Log.Ready(r.Context()) != nil:
		state = "log_unavailable"
	default:
		code = http.StatusOK
	}
	writeJSON(w, code, "application/json", map[string]any{"status": state, "servers": servers})
	return nil
}

// getOpenAPI serves GET /openapi.yaml, which describes the native API, and GET /openapi/{file}, which has the documents
// of the other API formats and the JSON Schemas. It answers 404 for any other file.
func (h *Handler) getOpenAPI(w http.ResponseWriter, r *http.Request) error {
	if h.OpenAPI == nil {
		return notFound(w, r)
	}
	document, err := fs.ReadFile(h.OpenAPI, strings.TrimPrefix(r.URL.Path, "/"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return notFound(w, r)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/yaml")
	if strings.HasSuffix(r.URL.Path, ".json") {
		w.Header().Set("Content-Type", "application/schema+json")
	}
	_, _ = w.Write(document) // fails only if the caller has left
	return nil
}

// getConsole serves the console's page and files. If a file does not exist, it answers with a problem document instead
// of the console's own 404.
func (h *Handler) getConsole(w http.ResponseWriter, r *http.Request) error {
	f := &statusFilter{ResponseWriter: w, drops: func(status int) bool { return status == http.StatusNotFound }}
	h.Console.ServeHTTP(f, r)
	if f.dropped {
		return notFound(w, r)
	}
	return nil
}
