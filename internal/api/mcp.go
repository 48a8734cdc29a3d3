package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"answerd/internal/api/mcptool"
	"answerd/internal/api/native"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp/mcpserver"
)

// maxMessages is how many messages the oldest versions of MCP may send in one body.
const maxMessages = 32

// newHost is the agent as a tool of MCP hosts.
func (h *Handler) newHost() *mcpserver.Handler {
	return mcpserver.New(mcpserver.Options{
		Tool: mcpserver.Tool{
			Name: mcptool.Name, Title: mcptool.Title, Description: mcptool.Description,
			InputSchema: mcptool.InputSchema, OutputSchema: mcptool.OutputSchema,
		},
		ServerName: "answerd", Version: h.Version,
		Call: h.answerTool, Owner: func(r *http.Request) string { return ownerName(identity(r)) },
		Heartbeat: h.Heartbeat, Logger: h.Logger,
	})
}

// ownerName tells callers apart. JSON keeps the two names from running together.
func ownerName(id auth.Identity) string {
	b, _ := json.Marshal([]string{id.Issuer, id.Subject}) // of strings
	return string(b)
}

// mcp is POST /mcp, and DELETE /mcp for the sessions of the older protocols.
func (h *Handler) mcp(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodPost {
		body, err := h.body(r)
		if err != nil {
			return err
		}
		var batch []json.RawMessage
		switch {
		case !json.Valid(body):
			return newProblem("invalid_request", "The body is not JSON.")
		case json.Unmarshal(body, &batch) == nil && len(batch) > maxMessages:
			return newProblem("invalid_request", fmt.Sprintf("The body has more than %d messages.", maxMessages))
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	h.host.ServeHTTP(w, r)
	return nil
}

// answerTool is one call of the tool: a run read to its end, as POST /answer is, or to
// where it waits for a person whom only another call can ask.
func (h *Handler) answerTool(ctx context.Context, c *mcpserver.Call) mcpserver.Result {
	t := &toolCall{h: h, call: c, caller: identity(c.Request), narrator: mcptool.NewProgressReporter(), patience: make(chan struct{})}
	run, err := t.answer(ctx)
	if err != nil {
		return shown(t.failed(ctx, run, err))
	}
	switch end := run.Last.Body.(type) {
	case event.FinalAnswer:
		return shown(mcptool.Completed(run, end))
	case event.Suspended:
		questions := t.askable(end.Interrupts)
		if len(questions) == 0 {
			return shown(mcptool.Suspended(h.status(run)))
		}
		return mcpserver.Result{InputRequests: questions, RequestState: native.EventID(run.Last)}
	}
	return shown(t.failed(ctx, run, endProblem(run)))
}

func shown(r mcptool.Result) mcpserver.Result {
	return mcpserver.Result{Text: r.Text, Structured: r.Structured, IsError: r.IsError}
}
