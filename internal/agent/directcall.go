package agent

import (
	"context"
	"encoding/json"
	"strings"

	"answerd/internal/agent/admission"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// ToolCall is a tool call that a caller requests directly, without a model.
type ToolCall struct {
	Tool    string          // the name as in GET /tools, even if that does not list the tool
	Args    json.RawMessage // a JSON object of at most 64 KiB; empty means {}
	Context map[string]string
	// Approved means that the caller agrees to the call of a tool that needs approval. In a run,
	// this caller would be asked.
	Approved bool
}

// ToolCallError is the error of a direct call, with the fields of the event tool_error. Its text
// may be shown to the caller.
type ToolCallError struct{ event.ToolError }

func (e *ToolCallError) Error() string { return e.Kind + ": " + e.Payload }

// CallTool executes one call for caller and waits for its result, without a run and without a
// model. It uses the same steps as a run's call, so both succeed or fail for the same reasons.
// It may also call tools that are hidden from the model (auto_register_tools: false). The call
// is cancelled when ctx ends.
//
// While in flight, the call counts towards Options.MaxRuns, and Drain waits for it. Errors:
// *ToolCallError, ErrDraining, *Refusal.
func (a *Agent) CallTool(ctx context.Context, caller auth.Identity, r ToolCall) (event.ToolResult, error) {
	slot, err := a.acquireSlot(ctx, caller, memoryOf(len(r.Args)), func(*admission.Slot) { a.directCalls++ })
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
		a.Tools.ToolsFor(ctx, caller) // waits for servers that are still being connected
		tool, known = a.Tools.Tool(r.Tool)
	}
	// The caller may have invented the name: truncate it and drop invalid UTF-8 before events
	// repeat it.
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
