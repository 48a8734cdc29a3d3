package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/admission"
	"answerd/internal/agent/budget"
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// executeToolCall runs the steps of a tool call in order:
//
//	resolve → authorize → pre-hook → validate → approve → authorize again → charge → execute → post-hook → record
//
// The order follows from what a step costs and shows. The rules come before the hook and the person, who must
// not see a call that nobody may make. Arguments are valid before a person approves them. The budget is charged
// last, since a call that is refused must not use it.
//
// The first step that fails ends the call. A pre-hook that answers in place of the tool also
// ends it, because no tool is called then. Every failure of the call is an outcome, which the
// model reads. An error means that the event log failed, and ends the run.
func (a *Agent) executeToolCall(ctx context.Context, x toolExecution) (callOutcome, error) {
	ctx, span := a.startCallSpan(ctx, &x)
	defer span.End()
	steps := []func(context.Context, *toolExecution) error{
		a.resolveTool,
		a.authorizeCall, // before a hook or a person sees the call
		a.callPreHook,
		a.validateArgs,
		a.requireApproval,
		a.repeatDenial,
		a.authorizeCall, // again, because a person may have needed a long time
		a.chargeBudget,
		a.execute,
	}
	if x.pending != nil || x.replayed.HasChild() { // another process took the other steps, and sent the call
		steps = []func(context.Context, *toolExecution) error{a.resolveTool, a.authorizeCall, a.execute}
	}
	err := a.refuseRepetition(&x)
	if err == nil {
		err = a.repeatDenial(ctx, &x)
	}
	for _, step := range steps {
		if err != nil || x.hookResult != nil {
			break
		}
		err = step(ctx, &x)
	}
	err = a.addSchemaHint(&x, err)
	// Metrics and the audit line record the tool's own outcome, before the post-hook changes it.
	a.recordCallMetrics(ctx, span, &x, err)
	a.writeAuditLine(ctx, &x, err)
	result, err := a.callPostHook(ctx, &x, err)
	var outcome callOutcome
	if failed, ok := errors.AsType[*mcp.CallError](err); ok {
		outcome = a.recordFailure(ctx, &x, failed)
	} else if err != nil {
		return callOutcome{}, err
	} else {
		outcome = a.recordResult(ctx, &x, result)
	}
	a.recordCallContent(span, &x, outcome)
	return outcome.withChild(&x), nil
}

// startCallSpan starts the span of a tool call, with the attributes that the OpenTelemetry
// conventions for generative AI define for the operation execute_tool. The name is the
// predecessor's, which people's queries know.
func (a *Agent) startCallSpan(ctx context.Context, x *toolExecution) (context.Context, trace.Span) {
	return a.Tracer.Start(ctx, "tool_call", trace.WithAttributes(
		attribute.String("tool", x.Tool), // the predecessor's attribute, in addition to that of the conventions
		attribute.String("gen_ai.operation.name", "execute_tool"),
		attribute.String("gen_ai.tool.name", x.Tool),
		attribute.String("gen_ai.tool.call.id", x.CallID),
		attribute.String("gen_ai.tool.type", "function"),
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("mcp.server.name", x.Server),
	))
}

// refuseRepetition refuses a call that a process sent before it died, because it is unknown
// whether the server executed it. It lets the call pass if its tool may be called twice, or if the
// server had required input, because then it has not executed the call yet.
func (a *Agent) refuseRepetition(x *toolExecution) error {
	if x.replayed == nil || !x.replayed.Sent {
		return nil
	}
	x.decision = decision{verdict: allowed}
	if b := x.replayed.Resolution; b != nil {
		x.decision = decision{verdict: approved, by: b.By}
	}
	if !x.replayed.InFlight && x.pending != nil || a.Tools.Repeatable(a.presentName(x)) {
		return nil
	}
	return x.failure(mcp.UnknownOutcome, "The process that made this call is gone; the call may or may not have been carried out.")
}

// resolveTool refuses a call of a tool that does not exist, and one whose arguments are not a
// JSON object.
func (a *Agent) resolveTool(_ context.Context, x *toolExecution) error {
	// A model may call a tool that it was not offered. If the rules forbid that tool, the call
	// is denied, not unknown.
	if tool, exists := a.Tools.Tool(x.Tool); !x.exists && exists && !a.mayUse(x.caller, tool) {
		x.tool = tool // for the audit line; the caller does not learn the server
		return x.denyByRules()
	}
	switch {
	case !x.exists:
		return x.failure(mcp.UnknownTool, fmt.Sprintf("There is no tool named %q.", x.Tool))
	case x.argsProblem != "":
		return x.failure(mcp.InvalidArguments, fmt.Sprintf("the arguments cannot be used: %s", x.argsProblem))
	}
	return nil
}

// validateArgs checks the arguments against the current schema of the tool before anything is
// sent, and applies the lossless repairs. The conversation and the event tool_call keep the
// model's own text.
func (a *Agent) validateArgs(_ context.Context, x *toolExecution) error {
	if x.refusal != "" || x.builtin != nil {
		return nil // a repeated check cannot succeed, and a builtin tool checks its own arguments
	}
	args, err := a.Tools.CheckArgs(a.presentName(x), x.args)
	if err != nil {
		return err
	}
	x.args = args
	return nil
}

// maxSchemaHint bounds the schema in an error about arguments, in bytes. The model has the
// complete schema in the tool's definition.
const maxSchemaHint = 16 << 10

// addSchemaHint adds the tool's input schema to an error about arguments, so that the model can
// correct them in one turn. It does not matter whether the agent or the server found the error.
// The hint is added before the post-hook sees the error (docs/hooks.md).
func (a *Agent) addSchemaHint(x *toolExecution, err error) error {
	failed, ok := errors.AsType[*mcp.CallError](err)
	if !ok || failed.Kind != mcp.InvalidArguments {
		return err
	}
	tool := x.tool
	if current, exists := a.Tools.Tool(a.presentName(x)); exists && x.builtin == nil {
		tool = current // the definition may have changed since the run began
	}
	hinted := *failed
	hinted.Message += "\nTry again with the correct arguments. The tool's input schema: " + tool.SchemaExcerpt(failed.Fields, maxSchemaHint)
	return &hinted
}

// chargeBudget counts the call, or refuses it because a limit is reached. Calls of a turn are
// charged in call order, see budget.TryCall. A call that blocks for an earlier one counts as
// waiting, so that the run can be suspended meanwhile.
func (a *Agent) chargeBudget(ctx context.Context, x *toolExecution) error {
	if x.loop == nil || x.replayed != nil && x.replayed.Sent || x.replayed.HasChild() {
		return nil // a direct call has no budget; a call that was sent is already charged
	}
	if err := x.loop.run.awaitCharge(x.CallID, ""); err != nil {
		return err
	}
	for {
		limit, charged, changed := x.loop.budget.TryCall(x.index)
		switch {
		case charged:
			return nil
		case limit != "":
			x.decision = decision{verdict: denied, why: "budget: " + limit}
			return x.failure(mcp.Denied, fmt.Sprintf(recorded.BudgetUsedUp+" (%s).", limit))
		}
		if err := x.loop.run.suspension.waitTurn(ctx, x.CallID, changed); err != nil && ctx.Err() == nil {
			return err // the error of the log
		} else if err != nil {
			return x.canceledFailure(ctx)
		}
	}
}

// execute sends the call to its server and waits for the result, or executes a tool of the agent's own. It sets
// x.result, or returns the failure; a result that reports an error is a failure too. Any other error than a
// *mcp.CallError ends the run.
func (a *Agent) execute(ctx context.Context, x *toolExecution) (err error) {
	started := time.Now()
	if x.builtin != nil {
		defer func() { x.duration = time.Since(started) }()
		x.result, err = x.builtin(ctx, x)
		return err
	}
	request := mcp.Call{
		Tool: a.presentName(x), Server: x.Server, Args: x.args, Check: true, Context: x.contextParams, Meta: x.requestMeta(ctx), Principal: x.caller, Approved: x.approvedVersion,
		CallID: x.CallID, RunID: x.runID,
	}
	if x.loop != nil {
		request.ThreadID = x.loop.run.ThreadID
	}
	if x.notifications != nil {
		request.Progress = func(p mcp.Progress) { x.notifications.appendProgress(ctx, p) }
		request.Log = func(m mcp.LogMessage) { x.notifications.appendLog(ctx, m) }
	}
	var result *content.Result
	if x.loop != nil {
		if result, err = x.loop.sendCall(ctx, x, request); err == nil {
			x.loop.run.hold(result.Size())
		}
	} else {
		result, err = a.Tools.Call(ctx, request)
		x.duration = time.Since(started)
	}
	if x.notifications != nil && x.notifications.err != nil {
		return fmt.Errorf("append a notification of the server: %w", x.notifications.err)
	}
	if failed, ok := errors.AsType[*mcp.CallError](err); ok && failed.Kind == mcp.Cancelled && errors.Is(context.Cause(ctx), budget.ErrToolTimeUsed) {
		return x.canceledFailure(ctx)
	}
	if err != nil {
		return err
	}
	if result.IsError {
		x.toolReport = result
		return x.failure(mcp.ResultErrorKind(result), result.Text())
	}
	x.result = result
	return nil
}

// sendCall sends a call of the run. While its server requires input (2026-07-28), or a sign-in of the
// owner of the run, sendCall asks them and sends the call again; meanwhile the run may be parked, and
// another process go on here. Other questions of the server are answered while the call is open.
func (l *loop) sendCall(ctx context.Context, x *toolExecution, request mcp.Call) (*content.Result, error) {
	if err := l.withdrawQuestions(ctx, x.replayed, x.pending.interruptIDs()...); err != nil {
		return nil, err
	}
	request.Suspend, request.Sample = true, l.sampleForServer
	request.Elicit = func(ctx context.Context, e mcp.Elicitation) (mcp.ElicitationResult, error) {
		return l.elicitInput(ctx, x.Call, e)
	}
	for {
		if err := l.settlePending(ctx, x, &request); err != nil {
			return nil, err
		}
		interrupt := newID("int") // of the sign-in, if one is needed
		request.Tool, request.Waiter = l.agent.presentName(x), waiterName(l.run.ID, interrupt)
		// The note precedes the request: a process that takes over the run must not send the
		// request again. writeNote also stores the events before it. If the process dies between the
		// note and the request, the call counts as sent although it was not, which is the safe mistake.
		if err := l.run.writeNote(ctx, replay.NoteSent, replay.CallKey(x.CallID)); err != nil && ctx.Err() != nil {
			return nil, x.canceledFailure(ctx)
		} else if err != nil {
			return nil, err
		}
		started := time.Now()
		result, err := l.agent.Tools.Call(ctx, request)
		x.duration += time.Since(started)
		switch {
		case err != nil:
			return nil, err
		case result.SignIn != nil:
			err = l.saveSignIn(ctx, x, result.SignIn, interrupt)
		case result.InputRequired != nil:
			err = l.savePending(ctx, x, result.InputRequired)
		default:
			return result, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// requestMeta returns the _meta of the request: the W3C trace context, which continues the trace
// on servers that are not reached over HTTP, and the number of agents that the question has
// passed through.
func (x *toolExecution) requestMeta(ctx context.Context) map[string]any {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	meta := make(map[string]any, len(carrier)+1)
	meta[HopsKey] = x.nextHops()
	for k, v := range carrier {
		meta[k] = v
	}
	return meta
}

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

// endDirectCall counts a direct call as ended, and lets Drain check whether it was the last one.
func (a *Agent) endDirectCall() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.directCalls--
	a.signalIdle()
}
