package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/record"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/usage"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm"
	"answerd/internal/llm/genai"
	"answerd/internal/mcp"
)

// metrics has the agent's instruments for runs and tool calls. Package llm/openai measures model calls.
type metrics struct {
	runs       metric.Int64Counter
	refused    metric.Int64Counter
	duration   metric.Float64Histogram
	active     metric.Int64UpDownCounter
	streams    metric.Int64UpDownCounter
	firstEvent metric.Float64Histogram
	tools      metric.Float64Histogram
	toolNames  *toolSeries // decides which time series contain the tool's name
}

// Limits on the time series of mcp.client.operation.duration that contain a tool's name. A series is a combination of
// server, tool and kind of failure, and takes 20 lines of /metrics. All metrics together must stay below 5,000 lines.
const (
	maxToolSeriesOfServer = 100 // per server
	maxToolSeries         = 150 // for all servers together
	maxToolSeriesByClaim  = 100 // for all servers with Options.CostClaim: package usage then has up to 3,000 lines
)

// toolSeries limits the time series that contain a tool's name, because servers choose these names and may change them
// at any time. The first series get the name; once the limit is reached, others do not.
type toolSeries struct {
	mu       sync.Mutex         // protects the fields below
	limit    int                // how many series may contain a tool's name, over all servers
	named    map[[3]string]bool // the series that contain it, by server, tool and kind of failure
	byServer map[string]int     // how many of named each server has
}

// label returns the attribute gen_ai.tool.name for a call: the tool's name, or "_other" if that would create a series
// beyond the limits. kind is the kind of failure, or "" if the call succeeded.
func (s *toolSeries) label(server, tool, kind string) string {
	key := [3]string{server, tool, kind}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.named[key] {
		if len(s.named) >= s.limit || s.byServer[server] >= maxToolSeriesOfServer {
			return "_other"
		}
		s.named[key] = true
		s.byServer[server]++
	}
	return tool
}

// newMetrics creates the agent's instruments. hasCostClaim says that Options.CostClaim is set, which leaves fewer
// series with tools' names.
func newMetrics(meter metric.Meter, hasCostClaim bool) (metrics, error) {
	limit := maxToolSeries
	if hasCostClaim {
		limit = maxToolSeriesByClaim
	}
	out := metrics{toolNames: &toolSeries{limit: limit, named: make(map[[3]string]bool), byServer: make(map[string]int)}}
	var errs [7]error
	out.runs, errs[0] = meter.Int64Counter("answerd.runs",
		metric.WithUnit("{run}"), metric.WithDescription("Runs that ended, by outcome."))
	out.duration, errs[1] = meter.Float64Histogram("answerd.run.duration",
		metric.WithUnit("s"), metric.WithDescription("From the start of a run to its terminal event."))
	out.active, errs[2] = meter.Int64UpDownCounter("answerd.runs.active",
		metric.WithUnit("{run}"), metric.WithDescription("Runs in progress."))
	out.streams, errs[3] = meter.Int64UpDownCounter("answerd.streams.active",
		metric.WithUnit("{stream}"), metric.WithDescription("Requests that read a run."))
	out.firstEvent, errs[4] = meter.Float64Histogram("answerd.time_to_first_event",
		metric.WithUnit("s"), metric.WithDescription("From the start of a run to the model's first output."))
	out.tools, errs[5] = meter.Float64Histogram("mcp.client.operation.duration",
		metric.WithUnit("s"), metric.WithDescription("Tool calls, by tool, server and kind of failure."))
	out.refused, errs[6] = meter.Int64Counter("answerd.runs.refused",
		metric.WithUnit("{run}"), metric.WithDescription("Runs and direct calls that were refused, by reason."))
	if err := errors.Join(errs[:]...); err != nil {
		return metrics{}, err
	}
	// Create the series that alerts watch with the value 0. Otherwise an alert on an increase would miss the first one.
	out.runs.Add(context.Background(), 0, endLabels(event.RunError{Code: "internal"}))
	for _, reason := range refusals {
		out.refused.Add(context.Background(), 0, metric.WithAttributes(attribute.String("reason", reason)))
	}
	return out, nil
}

// refusals maps the reason for a refusal to the metric's attribute reason.
var refusals = map[error]string{
	ErrOverloaded:  "full",
	ErrMemoryShort: "memory",
	ErrTooMany:     "caller_runs",
	ErrTooFast:     "caller_rate",
	usage.ErrSpent: "caller_budget",
}

// countRefusal counts a refused request. err is a *Refusal or *usage.SpentError, which wraps one of the keys of
// refusals.
func (m metrics) countRefusal(ctx context.Context, err error) {
	m.refused.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", refusals[errors.Unwrap(err)])))
}

// endLabels returns the labels of answerd.runs for a run that ended with end. The code is "" unless the run failed.
func endLabels(end event.Body) metric.MeasurementOption {
	code := ""
	if e, ok := end.(event.RunError); ok {
		code = e.Code
	}
	return metric.WithAttributes(attribute.String("outcome", string(end.Type())), attribute.String("code", code))
}

// countRunEnd counts a run whose terminal event this process appended; took is the run's duration. If another process
// continues a run, that process counts it.
func (m metrics) countRunEnd(ctx context.Context, end event.Body, took time.Duration) {
	m.active.Add(ctx, -1)
	m.runs.Add(ctx, 1, endLabels(end))
	m.duration.Record(ctx, took.Seconds(), metric.WithAttributes(attribute.String("outcome", string(end.Type()))))
}

// countModelCall adds a model call of the run to the metrics of tokens and cost and to the caller's budgets. If one of
// these budgets is then used up, it sets callerSpent. Do not call it for replayed calls: the process that made them has
// counted them.
func (l *loop) countModelCall(ctx context.Context, used event.Usage) {
	model := l.run.req.Model
	defaultModel, profiles := l.agent.Models()
	_, isServed := profiles[model]
	if model != defaultModel && !isServed { // a name from a request would create a new time series
		model = usage.Other
	}
	if spent := l.agent.usage.Count(ctx, l.run.account, l.run.agentID(), model, used, l.budget.CostOf(used)); spent != nil {
		l.callerSpent.Store(spent)
	}
}

// logEnd logs one line at the run's end. Tokens and cost include those of the run's children, as in the answer's
// metadata, although each child run logs a line too.
func (l *loop) logEnd(ctx context.Context, end event.Body) {
	r, used := l.run, l.metadata.Usage
	attrs := []slog.Attr{
		slog.String("run_id", r.ID), slog.String("outcome", string(end.Type())), slog.String("subject", r.caller.Subject),
		slog.String("agent", r.agentID()), slog.String("model", cmp.Or(l.metadata.UpstreamModel, r.req.Model)),
		slog.Int("steps", l.step), slog.Int("tool_calls", len(l.metadata.ToolNames)),
		slog.Int64("input_tokens", used.InputTokens), slog.Int64("output_tokens", used.OutputTokens), slog.Int64("total_tokens", used.TotalTokens),
		slog.Int64("duration_ms", time.Since(l.started).Milliseconds()),
	}
	if cost := l.cost(); cost != nil {
		attrs = append(attrs, slog.Float64("cost", *cost))
	}
	if failed, ok := end.(event.RunError); ok {
		attrs = append(attrs, slog.String("code", failed.Code))
	}
	if r.ParentID != "" {
		attrs = append(attrs, slog.String("parent_run_id", r.ParentID))
	}
	l.agent.Logger.LogAttrs(ctx, slog.LevelInfo, "run ended", attrs...)
}

// recordToolTime records how long a call took. kind is the kind of failure, or "" if the call succeeded. It ignores
// calls without a server: the model may have made up their tools' names, and each name would create a time series.
func (m metrics) recordToolTime(ctx context.Context, call event.Call, kind string, took time.Duration) {
	if call.Server == "" {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("gen_ai.tool.name", m.toolNames.label(call.Server, call.Tool, kind)),
		attribute.String("mcp.server.name", call.Server),
	}
	if kind != "" {
		attrs = append(attrs, attribute.String("error.type", kind))
	}
	m.tools.Record(ctx, took.Seconds(), metric.WithAttributes(attrs...))
}

// recordCallMetrics records a call's duration in the metrics and its failure, if any, in the span. It records no
// duration if a hook supplied the result, since no tool was called, or if err is an error of the log.
func (a *Agent) recordCallMetrics(ctx context.Context, span trace.Span, exec *toolExecution, err error) {
	if failed, ok := errors.AsType[*mcp.CallError](err); ok {
		kind := string(failed.Kind)
		span.SetStatus(codes.Error, kind)
		span.SetAttributes(attribute.String("error.type", kind))
		a.metrics.recordToolTime(ctx, exec.Call, kind, exec.duration)
		return
	}
	if err == nil && exec.hookResult == nil {
		a.metrics.recordToolTime(ctx, exec.Call, "", exec.duration)
	}
}

// auditOutcome returns what the audit line says about a call that ended with err: its outcome, and the cause of a
// failure. cause is nil if the call succeeded or the line must not show the cause.
func (a *Agent) auditOutcome(err error) (outcome string, cause error) {
	failed, isFailure := errors.AsType[*mcp.CallError](err)
	switch {
	case err == nil:
		return "ok", nil
	case !isFailure:
		return string(mcp.UnknownOutcome), err // the log failed; the call may have been executed
	case failed.Kind == mcp.InvalidArguments && !a.AuditArguments:
		return string(failed.Kind), nil // the cause may come from the server and quote the arguments
	}
	return string(failed.Kind), failed.Err
}

// writeAuditLine logs the line that every call gets when it ends, however it ended. The line says whether the model or
// the caller of a direct call made it, for which user, who allowed it, and how it ended. It contains the values of
// arguments only with Options.AuditArguments. err is the call's error before the post-hook changed it, or nil.
func (a *Agent) writeAuditLine(ctx context.Context, exec *toolExecution, err error) {
	actor := "model"
	if exec.loop == nil {
		actor = "caller"
	}
	outcome, cause := a.auditOutcome(err)
	decided := exec.decision
	switch {
	case exec.hookResult != nil:
		decided = decision{verdict: replaced}
	case decided.verdict == "": // the call failed before the decision, for example because its tool is unknown
		decided = decision{verdict: denied, reason: cmp.Or(exec.refusal, outcome)}
	}

	attrs := []slog.Attr{
		slog.String("actor", actor), slog.String("subject", exec.caller.Subject), slog.String("issuer", exec.caller.Issuer),
		slog.String("call_id", exec.CallID), slog.String("server", cmp.Or(exec.Server, exec.tool.Server)), slog.String("tool", exec.Tool),
		slog.String("tool_version", exec.tool.Version()), slog.String("args_sha256", replay.ArgsDigest([]byte(exec.argsAsWritten()))),
		slog.String("decision", decided.verdict), slog.String("outcome", outcome), slog.Int64("duration_ms", exec.duration.Milliseconds()),
	}
	addIfSet := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	addIfSet("run_id", exec.runID)
	addIfSet("decided_by", decided.by)
	addIfSet("reason", decided.reason)
	addIfSet("rule", exec.rule)
	if decided.edited {
		attrs = append(attrs, slog.Bool("args_edited", true))
	}
	if a.AuditArguments {
		addIfSet("args", string(exec.args))
	}
	level := slog.LevelInfo
	if cause != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", cause.Error()))
	}
	a.Logger.LogAttrs(ctx, level, "tool call", attrs...)
}

// startRunSpan starts a run's span and returns a context with it. The span has the attributes that the OpenTelemetry
// conventions for generative AI define for invoke_agent. Package telemetry copies those that identify the run to the
// spans below it.
func (a *Agent) startRunSpan(r *run) context.Context {
	attributes := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "invoke_agent"),
		attribute.String("gen_ai.provider.name", "answerd"),
		attribute.String("gen_ai.agent.name", r.agentID()),
		attribute.String("gen_ai.request.model", r.req.Model),
		attribute.String("gen_ai.conversation.id", r.ThreadID),
		attribute.String("answerd.run_id", r.ID),
		// The agent and the thread once more, for backends that use OpenInference or the session conventions.
		attribute.String("agent.name", r.agentID()),
		attribute.String("session.id", r.ThreadID),
	}
	if a.TraceUsers && r.caller.Subject != "" {
		attributes = append(attributes, attribute.String("enduser.id", r.caller.Subject), attribute.String("user.id", r.caller.Subject))
	}
	if a.TraceContent {
		attributes = append(attributes, genai.Input([]llm.Message{{Role: llm.User, Text: r.req.questionText()}})...)
	}
	ctx, _ := a.Tracer.Start(r.ctx, "tool_calling_loop", trace.WithAttributes(attributes...))
	return ctx
}

// recordRunEnd records in the run's span how the run ended and what it cost. It leaves out tokens: the spans of the
// model calls have them, and backends that add up all spans would count them twice.
func (a *Agent) recordRunEnd(span trace.Span, l *loop, end event.Body) {
	if cost := l.cost(); cost != nil {
		span.SetAttributes(attribute.Float64("answerd.cost", *cost))
	}
	switch end := end.(type) {
	case event.RunError:
		span.SetStatus(codes.Error, end.Code)
		span.SetAttributes(attribute.String("error.type", end.Code))
	case event.FinalAnswer:
		span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{end.FinishReason}))
		if a.TraceContent {
			span.SetAttributes(genai.Output(end.Answer, nil, end.FinishReason))
		}
	}
}

// recordCallContent records a call's arguments and result in its span, if Options.TraceContent is set. The result is
// what readers of the run see, after the post-hook.
func (a *Agent) recordCallContent(span trace.Span, exec *toolExecution, outcome callOutcome) {
	if !a.TraceContent || !span.IsRecording() {
		return
	}
	var text string
	if outcome.errorEvent != nil {
		text = outcome.errorEvent.Payload
	} else {
		text = string(outcome.resultEvent.Payload)
	}
	span.SetAttributes(genai.Arguments(exec.argsAsWritten()), genai.Result(text))
}

// recordBeginning stores what the run's export needs but its events do not contain. If that fails, it logs a warning,
// and the export will say what is missing.
func (l *loop) recordBeginning(ctx context.Context) {
	r := &l.run.req
	beginning := record.Beginning{
		Request: r.forExport(), Settings: l.settingsForExport(), System: l.messages[0].Text, History: l.historyLen, Tools: l.catalog.list,
		Requests: l.agent.RecordModelRequests,
	}
	messages := l.messages[1:] // without the system prompt
	isOnlyQuestion := len(messages) == 1 && messages[0].Text == r.questionText() && len(messages[0].Media) == 0
	if !isOnlyQuestion { // the start event has the question
		beginning.Messages = messages
	}
	for _, t := range l.askTools {
		beginning.Offered = append(beginning.Offered, t.Tool)
	}
	if l.search != nil {
		t := l.search.Tool
		beginning.Offered = append(beginning.Offered, llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema})
	}
	if err := l.agent.recorder.Begin(ctx, l.run.ID, beginning); err != nil && ctx.Err() == nil {
		l.agent.Logger.WarnContext(ctx, "the export of a run will not be complete", "run_id", l.run.ID, "error", err.Error())
	}
}

// recordRequest counts a request to the model and, if Options.RecordModelRequests is set, stores it for the export. It
// only logs errors.
func (s *modelStream) recordRequest(ctx context.Context, request llm.Request) {
	s.requestCount++
	if !s.agent.RecordModelRequests {
		return
	}
	attempt := 0
	if s.run.job != nil {
		attempt = s.run.job.Attempt()
	}
	if err := s.agent.recorder.AddRequest(ctx, s.run.ID, s.step, s.requestCount, attempt, request); err != nil && ctx.Err() == nil {
		s.agent.Logger.WarnContext(ctx, "a model request is not recorded", "run_id", s.run.ID, "error", err.Error())
	}
}

// forExport returns the request as the run's export contains it, without what the start event already has.
func (r *Request) forExport() export.Request {
	out := export.Request{
		Instructions: r.Instructions, OutputSchema: r.OutputSchema, Sampling: r.Sampling, MaxTokens: r.MaxTokens, ToolChoice: r.ToolChoice,
		ForcedTool: r.ForcedTool, Servers: r.Servers, Tools: r.Tools, MaxTurns: r.MaxTurns, Budget: export.Budget(r.Budget), AskAtLimit: r.AskAtLimit,
		Context: r.Context, Interactive: r.Interactive, FormsDeclined: r.FormsDeclined, ApprovalsDeclined: r.ApprovalsDeclined,
		Level: r.parent.Level, Hops: r.Hops,
	}
	for _, t := range r.ClientTools {
		out.ClientTools = append(out.ClientTools, export.ClientTool(t))
	}
	if r.Prompt != nil {
		p := export.ServerPrompt(*r.Prompt)
		out.Prompt = &p
	}
	return out
}

// settingsForExport returns the settings of the service, agent and model that a rerun needs.
func (l *loop) settingsForExport() export.Settings {
	agent, profile := l.run.req.namedAgent, l.profile
	template := agent.prompt.Options()
	return export.Settings{
		Agent: agent.exported,
		Prompt: export.Template{
			Template: template.Template, Username: template.Username, Timezone: template.Location.String(), Instructions: l.instructions,
		},
		Budget: export.Budget(l.agent.budgetLimits(agent)),
		Search: export.Search(l.agent.ToolSearch),
		Output: l.agent.MaxOutputTokens,
		Model: export.Model{
			ID: profile.ID, ContextTokens: l.window.Size(), MaxOutputTokens: profile.MaxOutputTokens,
			Images: profile.Images, Audio: profile.Audio, PDF: profile.PDF, Price: profile.Price,
		},
	}
}

// Export returns the export of a run that has ended. The error is record.ErrNotEnded or an error of the log.
func (a *Agent) Export(ctx context.Context, run string) (*export.Document, error) {
	return a.recorder.Export(ctx, run)
}
