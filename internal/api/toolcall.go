package api

import (
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

// toolCodes is what each kind of a failed call means to a caller over HTTP. Only what
// the caller can mend is 4xx. A tool that ran and reports failure is 502, as a model
// that fails is. None comes with Retry-After: whether a call may be sent again, the
// caller must judge by its kind.
var toolCodes = map[string]string{
	"unknown_tool":      "not_found",
	"invalid_arguments": "unprocessable",
	"denied":            "forbidden",
	"unavailable":       "unavailable",
	"timeout":           "tool_timeout",
	"cancelled":         "server_shutdown", // the other cause is a caller that left
}

// toolProblem is the problem of a call that failed. What toolCodes doesn't list is
// the tool's or its server's failure.
func toolProblem(e *agent.ToolCallError) *problem {
	code, ok := toolCodes[e.Kind]
	if !ok {
		code = "tool_error"
	}
	p := newProblem(code, e.Payload)
	if len(e.Errors) > 0 {
		p.Detail = "The arguments do not fit the tool's input schema."
	}
	for _, f := range e.Errors {
		p.Errors = append(p.Errors, native.FieldError{Pointer: "/args" + f.Pointer, Detail: f.Detail})
	}
	p.Kind, p.CallID = e.Kind, e.CallID
	return p
}
