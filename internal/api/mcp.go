package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"answerd/internal/agent/definition"
	"answerd/internal/api/mcptool"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp/mcpserver"
)

// maxBatch is the largest number of messages in one body. Only protocol 2025-03-26 allows a batch of messages.
const maxBatch = 32

// newMCPServer returns the MCP server at /mcp. It has a tool for the default agent and one for each named agent.
func (h *Handler) newMCPServer() *mcpserver.Handler {
	opts := mcpserver.Options{
		Tool: mcpserver.Tool{
			Name: mcptool.Name, Title: mcptool.Title, Description: mcptool.Description,
			InputSchema: mcptool.InputSchema, OutputSchema: mcptool.OutputSchema,
		},
		ServerName: "answerd", Version: h.Version,
		CallTool: h.callAnswerTool, Owner: func(r *http.Request) string { return sessionOwner(identity(r)) },
		Heartbeat: h.Heartbeat, Logger: h.Logger,
	}
	// Without AGENTS_FILE, the default agent has no name and is the only one.
	if h.Agent != nil && h.Agent.HasAgent(h.Agent.DefaultAgent()) {
		opts.MoreTools = h.agentTools
	}
	return mcpserver.New(opts)
}

// agentTools returns an MCP tool for each named agent that the caller may ask.
func (h *Handler) agentTools(r *http.Request) (tools []mcpserver.Tool) {
	for _, d := range h.Agent.Agents(identity(r)) {
		tool, _ := mcptool.AgentTool(d.ID, d.Description, d.OutputSchema)
		tools = append(tools, mcpserver.Tool(tool))
	}
	return tools
}

// sessionOwner returns a text that identifies id as the owner of a session. It encodes issuer and subject as JSON, so
// that two different pairs never give the same text.
func sessionOwner(id auth.Identity) string {
	b, _ := json.Marshal([]string{id.Issuer, id.Subject}) // cannot fail for strings
	return string(b)
}

// serveMCP serves POST /mcp, and DELETE /mcp, which ends a session of the protocol versions that
// have sessions.
func (h *Handler) serveMCP(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodPost {
		body, err := h.readBody(r)
		if err != nil {
			return err
		}
		if err := checkMCPBody(body); err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	// The SDK answers 403 for another caller's session and 404 for an unknown session. Callers must not learn which of
	// the two it is, so both become 404.
	hasSession := r.Header.Get("Mcp-Session-Id") != ""
	filter := &statusFilter{ResponseWriter: w, drops: func(status int) bool {
		return hasSession && (status == http.StatusForbidden || status == http.StatusNotFound)
	}}
	h.mcpServer.ServeHTTP(filter, r)
	if filter.dropped {
		return newProblem("not_found", "There is no such session.")
	}
	return nil
}

// checkMCPBody returns a problem if body is not JSON, or a batch of more than maxBatch messages.
func checkMCPBody(body []byte) error {
	var batch []json.RawMessage // a body that is not a batch is an object, which Unmarshal refuses
	switch {
	case !json.Valid(body):
		return newProblem("invalid_request", "The body is not JSON.")
	case json.Unmarshal(body, &batch) == nil && len(batch) > maxBatch:
		return newProblem("invalid_request", fmt.Sprintf("The body has more than %d messages.", maxBatch))
	}
	return nil
}

// callAnswerTool executes one tool call of an MCP client. It blocks until the call's run has ended, or is suspended for
// input that cannot arrive during this call. If the client can give the input with another call, the result has
// InputRequests. ctx ends when the call is cancelled.
func (h *Handler) callAnswerTool(ctx context.Context, call *mcpserver.Call) mcpserver.Result {
	t := &answerCall{
		h: h, call: call, caller: identity(call.Request), reporter: mcptool.NewProgressReporter(), blocked: make(chan struct{}),
	}
	if call.Tool != mcptool.Name {
		t.agent = call.Tool
		if d := definition.Find(h.Agent.Agents(t.caller), t.agent); d != nil {
			_, t.hasOwnOutput = mcptool.AgentTool(d.ID, d.Description, d.OutputSchema)
		}
	}
	run, err := t.awaitAnswer(ctx)
	if err != nil {
		return t.failedResult(ctx, run, err)
	}
	switch last := run.Last.Body.(type) {
	case event.FinalAnswer:
		if t.hasOwnOutput {
			return toCallResult(mcptool.OutputResult(last))
		}
		return toCallResult(mcptool.CompletedResult(run, last))
	case event.Suspended:
		return t.suspendedResult(run, last)
	}
	return t.failedResult(ctx, run, endProblem(run))
}

// toCallResult returns r as the type of mcpserver, which mcptool does not import.
func toCallResult(r mcptool.Result) mcpserver.Result {
	return mcpserver.Result{Text: r.Text, Structured: r.Structured, IsError: r.IsError}
}
