package agent

import (
	"context"
	"encoding/json"
	"strings"

	"answerd/internal/agent/admission"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// ToolCall is a tool call that no model asked for.
type ToolCall struct {
	Tool    string          // the name under which GET /tools lists it, or would
	Args    json.RawMessage // a JSON object of at most 64 KiB; empty means {}
	Context map[string]string
	// Approved says that caller, who is the person that a run would ask, agrees to the
	// call of a tool that needs approval.
	Approved bool
}

// ToolCallError is a direct call that failed: what tool_error would say of it. Its
// text is fit for the caller.
type ToolCallError struct{ event.ToolError }

func (e *ToolCallError) Error() string { return e.Kind + ": " + e.Payload }

// CallTool executes one call for caller and waits for its result, without a run and without a
// model. It takes the same steps as a run's call, so it succeeds here if and only if it does there;
// besides, it may call tools that are hidden from the model (auto_register_tools: false). The call
// ends with ctx.
//
// It takes one of Options.MaxRuns while it is in flight, and Drain waits for it.
// Errors: *ToolCallError, ErrDraining, *Refusal.
func (a *Agent) CallTool(ctx context.Context, caller auth.Identity, r ToolCall) (event.ToolResult, error) {
	slot, err := a.acquireSlot(ctx, caller, func(*admission.Slot) { a.directCalls++ })
	if err != nil {
		return event.ToolResult{}, err
	}
	defer a.runs.Done()
	defer a.endDirectCall()
	defer slot.Release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.ctx, func() { cancel(context.Cause(a.ctx)) })()

	tool, known := a.Tools.Tool(r.Tool)
	if !known {
		a.Tools.ToolsFor(ctx, caller) // waits for servers that are only being connected
		tool, known = a.Tools.Tool(r.Tool)
	}
	// What somebody makes up is not repeated at length, nor as broken text.
	name := strings.ToValidUTF8(r.Tool[:min(len(r.Tool), maxToolName)], "")
	c := &call{Call: event.Call{CallID: newID("call"), Tool: name, Server: tool.Server}}
	c.parseArgs(string(r.Args))
	end, err := a.executeToolCall(ctx, toolExecution{call: c, tool: tool, exists: known, contextParams: r.Context, caller: caller, preapproved: r.Approved})
	if err != nil {
		return event.ToolResult{}, err
	}
	if end.errorEvent != nil {
		return event.ToolResult{}, &ToolCallError{*end.errorEvent}
	}
	return *end.resultEvent, nil
}

func (a *Agent) endDirectCall() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.directCalls--
	a.signalIdle()
}
