package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// executeToolCall runs the steps of a tool call in order, and blocks until the call has ended:
//
//	resolve → authorize → pre-hook → validate → approve → authorize again → charge → execute → post-hook → record
//
// The first step that fails ends the call. A pre-hook that supplies a result also ends it. A call that fails is not an
// error here: its failure is an outcome, which the model reads. A non-nil error means that the event log failed or that
// another process continues the run; it ends the run in this process.
func (a *Agent) executeToolCall(ctx context.Context, exec toolExecution) (callOutcome, error) {
	ctx, span := a.startCallSpan(ctx, &exec)
	defer span.End()

	var err error
	for _, step := range a.stepsOfCall(&exec) {
		err = step(ctx, &exec)
		if err != nil || exec.hookResult != nil {
			break
		}
	}

	err = a.addSchemaHint(&exec, err)
	// Metrics and the audit line record the tool's own outcome, before the post-hook changes it.
	a.recordCallMetrics(ctx, span, &exec, err)
	if !exec.continuesLater(err) {
		a.writeAuditLine(ctx, &exec, err)
	}

	result, err := a.callPostHook(ctx, &exec, err)
	failed, isFailure := errors.AsType[*mcp.CallError](err)
	if err != nil && !isFailure {
		return callOutcome{}, err
	}
	var outcome callOutcome
	if isFailure {
		outcome = a.recordFailure(ctx, &exec, failed)
	} else {
		outcome = a.recordResult(ctx, &exec, result)
	}
	a.recordCallContent(span, &exec, outcome)
	return outcome.withChild(&exec), nil
}

// continuesLater reports whether err, with which the call stopped, means that the call has not ended: this process
// relinquished the run while the call waited for an answer or before it was decided. The process that continues the run
// continues the call.
func (exec *toolExecution) continuesLater(err error) bool {
	isUndecided := exec.decision.verdict == ""
	return errors.Is(err, errParked) || isUndecided && (errors.Is(err, errHandedOver) || errors.Is(err, errTakenOver))
}

// stepsOfCall returns the steps that executeToolCall takes before the post-hook.
func (a *Agent) stepsOfCall(exec *toolExecution) []func(context.Context, *toolExecution) error {
	type steps = []func(context.Context, *toolExecution) error
	if exec.pending != nil || exec.replayed.HasChild() {
		// Another process took the other steps and sent the call or started its child run. Continue after them.
		return steps{a.refuseRepetition, a.repeatDenial, a.resolveTool, a.authorizeCall, a.execute}
	}
	return steps{
		a.refuseRepetition,
		a.repeatDenial, // of a refusal before the approval
		a.resolveTool,
		a.authorizeCall, // before a hook or a person sees the call
		a.callPreHook,
		a.validateArgs, // before a person approves the arguments
		a.requireApproval,
		a.repeatDenial,  // of a refusal after the approval
		a.authorizeCall, // again, because the rules may have changed while a person decided
		a.chargeBudget,  // last of the checks, because a refused call must not use up the budget
		a.execute,
	}
}

// startCallSpan starts a tool call's span, with the attributes that the OpenTelemetry conventions for generative AI
// define for execute_tool. The span's name and the attribute tool are from the service that answerd replaced, because
// operators' queries use them.
func (a *Agent) startCallSpan(ctx context.Context, exec *toolExecution) (context.Context, trace.Span) {
	return a.Tracer.Start(ctx, "tool_call", trace.WithAttributes(
		attribute.String("tool", exec.Tool),
		attribute.String("gen_ai.operation.name", "execute_tool"),
		attribute.String("gen_ai.tool.name", exec.Tool),
		attribute.String("gen_ai.tool.call.id", exec.CallID),
		attribute.String("gen_ai.tool.type", "function"),
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("mcp.server.name", exec.Server),
	))
}

// refuseRepetition refuses a call that another process sent but whose end is not in the log, because the server may
// have executed it. It returns nil if the call was not sent, if its tool may be called twice (Tools.Repeatable), or if
// the server's last response required input, which means that the server has not executed the call yet. For a call that
// was sent, it also sets exec.decision, since the steps that decide about a call are not repeated.
func (a *Agent) refuseRepetition(_ context.Context, exec *toolExecution) error {
	if exec.replayed == nil || !exec.replayed.Sent {
		return nil
	}
	exec.decision = decision{verdict: allowed}
	if approval := exec.replayed.Resolution; approval != nil {
		exec.decision = decision{verdict: approved, by: approval.By}
	}
	requiredInput := exec.pending != nil && !exec.replayed.InFlight
	if requiredInput || a.Tools.Repeatable(a.currentToolName(exec)) {
		return nil
	}
	return exec.failure(mcp.UnknownOutcome, "The process that made this call is gone; the call may or may not have been carried out.")
}

// resolveTool refuses a call if the run does not have the tool, or if the arguments are not a JSON object.
func (a *Agent) resolveTool(_ context.Context, exec *toolExecution) error {
	if !exec.toolExists {
		// The model may call a tool that it was not offered. If the access rules forbid that tool, report mcp.Denied,
		// not mcp.UnknownTool.
		tool, exists := a.Tools.Tool(exec.Tool)
		_, isAllowed := a.Rules.Of(exec.caller).AllowsTool(tool.Server, tool.Name)
		if exists && !isAllowed {
			exec.tool = tool // for the audit line; the model is not given the server's name
			return exec.denyByRules()
		}
		// After a takeover, the server may be down, so that its tools are not known to this process.
		if exec.loop != nil && slices.Contains(exec.loop.metadata.UnavailableServers, exec.Server) {
			return exec.failure(mcp.Unavailable, "MCP server "+exec.Server+": it is unavailable; do without it")
		}
		return exec.failure(mcp.UnknownTool, fmt.Sprintf("There is no tool named %q.", exec.Tool))
	}
	if exec.argsProblem != "" {
		return exec.failure(mcp.InvalidArguments, fmt.Sprintf("the arguments cannot be used: %s", exec.argsProblem))
	}
	return nil
}

// validateArgs checks the arguments against the tool's current schema, and stores them in exec.args with lossless
// repairs (Tools.CheckArgs). The tool_call event and the conversation already have the call, and keep the model's own
// text. If they do not conform to the schema, it returns the failure of the call.
func (a *Agent) validateArgs(_ context.Context, exec *toolExecution) error {
	if exec.refusal != "" || exec.builtin != nil {
		return nil // requireApproval refuses the call anyway, or the builtin tool checks its own arguments
	}
	args, err := a.Tools.CheckArgs(a.currentToolName(exec), exec.args)
	if err != nil {
		return err
	}
	exec.args = args
	return nil
}

// maxSchemaHint bounds the schema in an error about arguments, in bytes. The model has the
// complete schema in the tool's definition.
const maxSchemaHint = 16 << 10

// addSchemaHint adds the tool's input schema to an error about arguments, so that the model can correct them in one
// turn. It does not matter whether the agent or the server found the error. Other errors, and nil, are returned
// unchanged. The post-hook sees the error with the hint (docs/hooks.md).
func (a *Agent) addSchemaHint(exec *toolExecution, err error) error {
	failed, ok := errors.AsType[*mcp.CallError](err)
	if !ok || failed.Kind != mcp.InvalidArguments {
		return err
	}
	tool := exec.tool
	if current, exists := a.Tools.Tool(a.currentToolName(exec)); exists && exec.builtin == nil {
		tool = current // the definition may have changed since the run began
	}
	hinted := *failed
	hinted.Message += "\nTry again with the correct arguments. The tool's input schema: " + tool.SchemaExcerpt(failed.Fields, maxSchemaHint)
	return &hinted
}

// chargeBudget charges the call to the run's budget, or refuses it because a limit is reached. The result must not
// depend on which of the turn's calls is faster. So chargeBudget blocks while earlier calls of the turn may still use
// up the remaining calls (budget.TryCall). A blocked call counts as waiting, so that the run can be suspended. If the
// call is refused or ctx ends, the error is a *mcp.CallError; any other error comes from the log.
func (a *Agent) chargeBudget(ctx context.Context, exec *toolExecution) error {
	wasSent := exec.replayed != nil && (exec.replayed.Sent || exec.replayed.HasChild())
	if exec.loop == nil || wasSent {
		return nil // a direct call has no budget, and restoreCalls has charged a call that was sent
	}
	if err := exec.loop.run.awaitCharge(exec.CallID, ""); err != nil {
		return err
	}
	for {
		limit, charged, earlierDecided := exec.loop.budget.TryCall(exec.index)
		switch {
		case charged:
			return nil
		case limit != "":
			exec.decision = decision{verdict: denied, reason: "budget: " + limit}
			return exec.failure(mcp.Denied, fmt.Sprintf(recorded.BudgetUsedUp+" (%s).", limit))
		}
		if err := exec.loop.run.suspension.awaitEarlierCalls(ctx, exec.CallID, earlierDecided); err != nil {
			return exec.canceledOr(ctx, err)
		}
	}
}

// execute sends the call to its server and waits for the result, or executes one of the agent's built-in tools. It sets
// exec.result, or returns the failure as a *mcp.CallError. If the server's result reports an error, execute sets
// exec.toolReport and returns a failure too. Any other error ends the run.
func (a *Agent) execute(ctx context.Context, exec *toolExecution) (err error) {
	started := time.Now()
	if exec.builtin != nil {
		defer func() { exec.duration = time.Since(started) }()
		exec.result, err = exec.builtin(ctx, exec)
		return err
	}

	request := a.callRequest(ctx, exec)
	var result *content.Result
	if exec.loop == nil {
		result, err = a.Tools.Call(ctx, request)
		exec.duration = time.Since(started)
	} else {
		result, err = exec.loop.sendCall(ctx, exec, request)
	}
	if exec.notifications != nil && exec.notifications.err != nil {
		return fmt.Errorf("append a notification of the server: %w", exec.notifications.err)
	}
	if err != nil {
		failed, isFailure := errors.AsType[*mcp.CallError](err)
		isCanceled := isFailure && failed.Kind == mcp.Cancelled
		if isCanceled && errors.Is(context.Cause(ctx), budget.ErrToolTimeUsed) {
			return exec.canceledFailure(ctx) // its message gives the model the reason
		}
		return err
	}
	if result.IsError {
		exec.toolReport = result
		return exec.failure(mcp.ResultErrorKind(result), result.Text())
	}
	exec.result = result
	return nil
}

// callRequest builds the request to the call's server. In a run, the server's notifications during the call become
// events; in a direct call they are ignored.
func (a *Agent) callRequest(ctx context.Context, exec *toolExecution) mcp.Call {
	request := mcp.Call{
		Tool:      a.currentToolName(exec),
		Server:    exec.Server,
		Args:      exec.args,
		Check:     true,
		Context:   exec.contextParams,
		Meta:      exec.requestMeta(ctx),
		Principal: exec.caller,
		Approved:  exec.approvedVersion,
		CallID:    exec.CallID,
		RunID:     exec.runID,
	}
	if exec.loop != nil {
		request.ThreadID = exec.loop.run.ThreadID
		request.Progress = func(p mcp.Progress) { exec.notifications.appendProgress(ctx, p) }
		request.Log = func(m mcp.LogMessage) { exec.notifications.appendLog(ctx, m) }
	}
	return request
}

// sendCall sends one of the run's calls and returns its result. If the server's response requires input (protocol
// 2026-07-28) or a sign-in, sendCall asks the run's owner and sends the call again, as often as the server requires.
// While it waits for the owner, the run may be parked; another process then continues at this question. Questions that
// the server asks during the call (request.Elicit) are answered while the call is in flight. The result counts as
// memory of the run. A failure of the call is a *mcp.CallError; any other error ends the run.
func (l *loop) sendCall(ctx context.Context, exec *toolExecution, request mcp.Call) (*content.Result, error) {
	if err := l.withdrawQuestions(ctx, exec.replayed, exec.pending.interruptIDs()...); err != nil {
		return nil, err
	}
	request.Suspend = true
	request.Sample = l.sampleForServer
	request.Elicit = func(ctx context.Context, e mcp.Elicitation) (mcp.ElicitationResult, error) {
		return l.elicitInput(ctx, exec.Call, e)
	}
	for {
		if err := l.settlePending(ctx, exec, &request); err != nil {
			return nil, err
		}
		signInID := newID("int") // the id of the question that asks for a sign-in, if one is needed
		request.Tool = l.agent.currentToolName(exec)
		request.Waiter = waiterName(l.run.ID, signInID)
		result, err := l.sendOnce(ctx, exec, request)
		switch {
		case err != nil:
			return nil, err
		case result.SignIn != nil:
			err = l.saveSignIn(ctx, exec, result.SignIn, signInID)
		case result.InputRequired != nil:
			err = l.savePending(ctx, exec, result.InputRequired)
		default:
			l.run.reserveMemory(result.Size())
			return result, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// sendOnce sends a call once, after it has stored a note that says so, and adds the duration of the request to
// exec.duration. The note precedes the request, because a process that takes over the run must not send the request
// again. If this process dies between the two, the call counts as sent although it was not. That is safe: it is not
// executed twice.
func (l *loop) sendOnce(ctx context.Context, exec *toolExecution, request mcp.Call) (*content.Result, error) {
	if err := l.run.writeNote(ctx, replay.NoteSent, replay.CallKey(exec.CallID)); err != nil {
		return nil, exec.canceledOr(ctx, err)
	}
	started := time.Now()
	defer func() { exec.duration += time.Since(started) }()
	return l.agent.Tools.Call(ctx, request)
}

// requestMeta returns the _meta of the request to the server. It contains the number of agents that the question has
// passed through (HopsKey) and the W3C trace context: only servers that are reached over HTTP get a header with the
// trace context.
func (exec *toolExecution) requestMeta(ctx context.Context) map[string]any {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	hops := 1 // this agent counts too
	if exec.loop != nil {
		hops += exec.loop.run.req.Hops
	}
	meta := map[string]any{HopsKey: hops}
	for k, v := range carrier {
		meta[k] = v
	}
	return meta
}

// ToolCall is a tool call that an API client requests directly, without a model.
type ToolCall struct {
	Tool    string          // the name as GET /tools shows it, even if that list leaves this tool out
	Args    json.RawMessage // a JSON object of at most 64 KiB; empty means {}
	Context map[string]string
	// Approved means that the caller agrees to call a tool that needs approval. A run would ask the caller instead.
	Approved bool
}

// ToolCallError is the error of a direct call, with the fields of the tool_error event. API clients may see its text.
type ToolCallError struct{ event.ToolError }

func (e *ToolCallError) Error() string { return e.Kind + ": " + e.Payload }

// CallTool executes one call for caller and waits for its result, without a run or a model. The call takes the same
// steps as in a run (executeToolCall). It may use tools that are hidden from models (auto_register_tools: false). It is
// cancelled when ctx ends, or when Drain stops waiting for it.
//
// While in flight, the call counts towards Options.MaxRuns, and Drain waits for it until Drain's own ctx ends. The
// error is a *ToolCallError, ErrDraining or a *Refusal.
func (a *Agent) CallTool(ctx context.Context, caller auth.Identity, request ToolCall) (event.ToolResult, error) {
	slot, err := a.acquireSlot(ctx, caller, memoryOf(len(request.Args)), func(*admission.Slot) { a.directCalls++ })
	if err != nil {
		return event.ToolResult{}, err
	}
	defer a.runs.Done()
	defer a.endDirectCall()
	defer slot.Release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopAfterFunc := context.AfterFunc(a.ctx, func() { cancel(context.Cause(a.ctx)) }) // Drain ends a.ctx
	defer stopAfterFunc()

	tool, known := a.Tools.Tool(request.Tool)
	if !known {
		a.Tools.ToolsFor(ctx, caller) // waits for servers that are still being connected
		tool, known = a.Tools.Tool(request.Tool)
	}
	// The caller may have made up the name. It appears in logs and in the error, so truncate it and drop invalid UTF-8.
	name := strings.ToValidUTF8(request.Tool[:min(len(request.Tool), maxToolName)], "")
	c := &call{Call: event.Call{CallID: newID("call"), Tool: name, Server: tool.Server}}
	c.parseArgs(string(request.Args))
	end, err := a.executeToolCall(ctx, toolExecution{
		call:          c,
		tool:          tool,
		toolExists:    known,
		contextParams: request.Context,
		caller:        caller,
		preapproved:   request.Approved,
	})
	if err != nil {
		return event.ToolResult{}, err
	}
	if end.errorEvent != nil {
		return event.ToolResult{}, &ToolCallError{*end.errorEvent}
	}
	return *end.resultEvent, nil
}

// endDirectCall counts a direct call as ended, and wakes Drain to check whether it was the last one.
func (a *Agent) endDirectCall() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.directCalls--
	a.signalIdle()
}
