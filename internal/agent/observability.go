package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/definition"
	"answerd/internal/agent/record"
	"answerd/internal/agent/usage"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm"
	"answerd/internal/llm/genai"
	"answerd/internal/mcp"
)

// metrics counts and measures runs and tool calls. Package llm/openai measures model calls.
type metrics struct {
	runs       metric.Int64Counter
	refused    metric.Int64Counter
	duration   metric.Float64Histogram
	active     metric.Int64UpDownCounter
	streams    metric.Int64UpDownCounter
	firstEvent metric.Float64Histogram
	tools      metric.Float64Histogram
	toolNames  *toolSeries                                // which tools the metric tools names
	endLabels  map[event.Type][2]metric.MeasurementOption // of runs and duration, for an end without a code
}

// Bounds of the time series of mcp.client.operation.duration that name their tool, of one server and
// of all. A series is a server, a tool and a kind of failure or none, and 20 lines of /metrics. With
// Options.CostClaim there are fewer, since the metrics of package usage need up to 3,000 lines then, and
// all metrics together stay below 5,000.
const (
	maxToolSeriesOfServer = 100
	maxToolSeries         = 150
	maxToolSeriesByClaim  = 100
)

// toolSeries remembers which series name their tool: servers choose the names of tools and may
// change them at any time. The first ones do, until there are too many.
type toolSeries struct {
	mu     sync.Mutex // protects the fields below
	most   int        // series that name their tool, of all servers
	named  map[[3]string]bool
	counts map[string]int // by server
}

// label returns the value of the metrics' attribute for a tool: its name, or "_other" for a new series beyond the
// limits.
func (s *toolSeries) label(server, tool, kind string) string {
	key := [3]string{server, tool, kind}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.named[key] {
		if len(s.named) >= s.most || s.counts[server] >= maxToolSeriesOfServer {
			return "_other"
		}
		s.named[key] = true
		s.counts[server]++
	}
	return tool
}

// newMetrics makes the agent's instruments. byClaim is whether Options.CostClaim is set, which leaves fewer series
// for the names of tools.
func newMetrics(meter metric.Meter, byClaim bool) (metrics, error) {
	most := maxToolSeries
	if byClaim {
		most = maxToolSeriesByClaim
	}
	out := metrics{
		toolNames: &toolSeries{most: most, named: make(map[[3]string]bool), counts: make(map[string]int)},
		endLabels: make(map[event.Type][2]metric.MeasurementOption),
	}
	for _, end := range []event.Body{event.FinalAnswer{}, event.Cancelled{}} {
		out.endLabels[end.Type()] = newEndLabels(end)
	}
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
	err := errors.Join(errs[:]...)
	if err == nil {
		out.runs.Add(context.Background(), 0, newEndLabels(event.RunError{Code: "internal"})[0]) // for the alert, as below
	}
	for _, reason := range refusals {
		if err == nil {
			// Export each series with 0 from the start. Otherwise an alert on an increase misses the first refusal.
			out.refused.Add(context.Background(), 0, metric.WithAttributes(attribute.String("reason", reason)))
		}
	}
	return out, err
}

// refusals maps errors to the values of the metric's attribute reason.
var refusals = map[error]string{
	ErrOverloaded:  "full",
	ErrMemoryShort: "memory",
	ErrTooMany:     "caller_runs",
	ErrTooFast:     "caller_rate",
	usage.ErrSpent: "caller_budget",
}

// countRefusal counts a refused request. err wraps one of the keys of refusals directly, as *Refusal and
// *usage.SpentError do.
func (m metrics) countRefusal(ctx context.Context, err error) {
	m.refused.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", refusals[errors.Unwrap(err)])))
}

// newEndLabels returns the labels of the metrics runs and duration.
func newEndLabels(end event.Body) [2]metric.MeasurementOption {
	outcome, code := attribute.String("outcome", string(end.Type())), ""
	if e, ok := end.(event.RunError); ok {
		code = e.Code
	}
	return [2]metric.MeasurementOption{
		metric.WithAttributeSet(attribute.NewSet(outcome, attribute.String("code", code))), metric.WithAttributeSet(attribute.NewSet(outcome)),
	}
}

// countRunEnd counts a run that got its terminal event here. A run that continues in another process is counted
// there, with the whole time since its start.
func (m metrics) countRunEnd(ctx context.Context, end event.Body, took time.Duration) {
	labels, known := m.endLabels[end.Type()]
	if !known {
		labels = newEndLabels(end)
	}
	m.active.Add(ctx, -1)
	m.runs.Add(ctx, 1, labels[0])
	m.duration.Record(ctx, took.Seconds(), labels[1])
}

// countModelCall counts a model call that the run has made, in the metrics of tokens and cost and
// towards the budgets of its caller. Calls that are replayed from the log were counted by the process
// that made them.
func (l *loop) countModelCall(ctx context.Context, u event.Usage) {
	model := l.run.req.Model
	if defaultModel, served := l.agent.Models(); model != defaultModel {
		if _, ok := served[model]; !ok { // a request named it, so it would create a new time series
			model = usage.Other
		}
	}
	if spent := l.agent.usage.Count(ctx, l.run.account, cmp.Or(l.run.Agent, definition.DefaultID), model, u, l.budget.CostOf(u)); spent != nil {
		l.callerSpent.Store(spent)
	}
}

// logEnd logs one line when the run has ended. As in its answer, tokens and cost include those of the
// run's children, which have lines of their own.
func (l *loop) logEnd(ctx context.Context, end event.Body) {
	r, used := l.run, l.metadata.Usage
	attrs := []slog.Attr{
		slog.String("run_id", r.ID), slog.String("outcome", string(end.Type())), slog.String("subject", r.caller.Subject),
		slog.String("agent", cmp.Or(r.Agent, definition.DefaultID)), slog.String("model", cmp.Or(l.metadata.UpstreamModel, r.req.Model)),
		slog.Int("steps", l.step), slog.Int("tool_calls", len(l.metadata.ToolNames)),
		slog.Int64("input_tokens", used.InputTokens), slog.Int64("output_tokens", used.OutputTokens), slog.Int64("total_tokens", used.TotalTokens),
		slog.Int64("duration_ms", time.Since(l.started).Milliseconds()),
	}
	if l.budget != nil { // nil if the run could not be prepared
		if cost := l.cost(); cost != nil {
			attrs = append(attrs, slog.Float64("cost", *cost))
		}
	}
	if failed, ok := end.(event.RunError); ok {
		attrs = append(attrs, slog.String("code", failed.Code))
	}
	if r.ParentID != "" {
		attrs = append(attrs, slog.String("parent_run_id", r.ParentID))
	}
	l.agent.Logger.LogAttrs(ctx, slog.LevelInfo, "run ended", attrs...)
}

// recordToolTime measures a call. kind is the kind of its failure; "" if it succeeded.
func (m metrics) recordToolTime(ctx context.Context, c event.Call, kind string, took time.Duration) {
	if c.Server == "" {
		return // a name that the model invented would create a new time series
	}
	attrs := []attribute.KeyValue{
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("gen_ai.tool.name", m.toolNames.label(c.Server, c.Tool, kind)),
		attribute.String("mcp.server.name", c.Server),
	}
	if kind != "" {
		attrs = append(attrs, attribute.String("error.type", kind))
	}
	m.tools.Record(ctx, took.Seconds(), metric.WithAttributes(attrs...))
}

// recordCallMetrics records how long the call took and how it failed, in the span and the metrics.
func (a *Agent) recordCallMetrics(ctx context.Context, span trace.Span, exec *toolExecution, err error) {
	failed, ok := errors.AsType[*mcp.CallError](err)
	if !ok {
		if err == nil && exec.hookResult == nil {
			a.metrics.recordToolTime(ctx, exec.Call, "", exec.duration)
		}
		return
	}
	kind := string(failed.Kind)
	span.SetStatus(codes.Error, kind)
	span.SetAttributes(attribute.String("error.type", kind))
	a.metrics.recordToolTime(ctx, exec.Call, kind, exec.duration)
}

// writeAuditLine logs one line for every call, however it ended: who called what for whom, who
// allowed it, and the outcome. It includes the values of arguments only if the operator enabled
// that. err is the outcome of the call before the post-hook changed it.
func (a *Agent) writeAuditLine(ctx context.Context, exec *toolExecution, err error) {
	actor := "model"
	if exec.loop == nil {
		actor = "caller"
	}

	outcome, cause := "ok", err
	if failed, ok := errors.AsType[*mcp.CallError](err); ok {
		outcome, cause = string(failed.Kind), failed.Err
		if failed.Kind == mcp.InvalidArguments && !a.AuditArguments {
			cause = nil // the cause may quote the arguments, since it can come from the server
		}
	} else if err != nil {
		outcome = string(mcp.UnknownOutcome) // the log failed; the call may have been executed
	}

	verdict := exec.decision
	switch {
	case exec.hookResult != nil:
		verdict = decision{verdict: replaced}
	case verdict.verdict == "": // it failed before a decision was needed, because it was not a possible call
		verdict = decision{verdict: denied, reason: cmp.Or(exec.refusal, outcome)}
	}

	attrs := []slog.Attr{
		slog.String("actor", actor), slog.String("subject", exec.caller.Subject), slog.String("issuer", exec.caller.Issuer),
		slog.String("call_id", exec.CallID), slog.String("server", cmp.Or(exec.Server, exec.tool.Server)), slog.String("tool", exec.Tool),
		slog.String("tool_version", exec.tool.Version()), slog.String("args_sha256", argsDigest(jsonText(exec.argsAsWritten()))),
		slog.String("decision", verdict.verdict), slog.String("outcome", outcome), slog.Int64("duration_ms", exec.duration.Milliseconds()),
	}

	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}

	add("run_id", exec.runID)
	add("decided_by", verdict.by)
	add("reason", verdict.reason)
	add("rule", exec.rule)
	if verdict.edited {
		attrs = append(attrs, slog.Bool("args_edited", true))
	}
	if a.AuditArguments {
		add("args", string(exec.args))
	}
	level := slog.LevelInfo
	if cause != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", cause.Error()))
	}
	a.Logger.LogAttrs(ctx, level, "tool call", attrs...)
}

// startRunSpan starts the span of a run, with the attributes that the OpenTelemetry conventions for
// generative AI define for the operation invoke_agent. Package telemetry copies those that identify the run
// to the spans below it.
func (a *Agent) startRunSpan(r *run) context.Context {
	attributes := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "invoke_agent"),
		attribute.String("gen_ai.provider.name", "answerd"),
		attribute.String("gen_ai.agent.name", cmp.Or(r.Agent, "default")),
		attribute.String("gen_ai.request.model", r.req.Model),
		attribute.String("gen_ai.conversation.id", r.ThreadID),
		attribute.String("answerd.run_id", r.ID),
		// The same for backends that follow OpenInference, or the conventions for sessions.
		attribute.String("agent.name", cmp.Or(r.Agent, "default")),
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

// recordRunEnd records in the span how a run ended. Tokens are in the spans of the model calls, so that
// backends that add them up count them once.
func (a *Agent) recordRunEnd(span trace.Span, l *loop, end event.Body) {
	if l.budget != nil { // the run got as far as its first turn
		if cost := l.cost(); cost != nil {
			span.SetAttributes(attribute.Float64("answerd.cost", *cost))
		}
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

// recordCallContent records the arguments and the result of a tool call in its span, if the operator
// wants that: those that readers of the run see.
func (a *Agent) recordCallContent(span trace.Span, exec *toolExecution, o callOutcome) {
	if !a.TraceContent || !span.IsRecording() {
		return
	}
	span.SetAttributes(genai.Arguments(exec.argsAsWritten()))
	switch {
	case o.errorEvent != nil:
		span.SetAttributes(genai.Result(o.errorEvent.Payload))
	case o.resultEvent != nil:
		span.SetAttributes(genai.Result(string(o.resultEvent.Payload)))
	}
}

// recordBeginning stores what the export of the run needs and its events do not have. If that fails the
// run continues, and its export says what is missing.
func (l *loop) recordBeginning(ctx context.Context) {
	r := &l.run.req
	begin := record.Beginning{
		Request: r.forExport(), Settings: l.settingsForExport(), System: l.messages[0].Text, History: l.historyLen, Tools: l.catalog.list,
		Requests: l.agent.RecordModelRequests,
	}
	if m := l.messages[1:]; len(m) != 1 || m[0].Text != r.questionText() || len(m[0].Media) > 0 {
		begin.Messages = m
	}
	for _, t := range l.askTools {
		begin.Offered = append(begin.Offered, t.Tool)
	}
	if l.search != nil {
		t := l.search.Tool
		begin.Offered = append(begin.Offered, llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema})
	}
	if err := l.agent.recorder.Begin(ctx, l.run.ID, begin); err != nil && ctx.Err() == nil {
		l.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "the export of a run will not be complete",
			slog.String("run_id", l.run.ID), slog.String("error", err.Error()))
	}
}

// recordRequest stores a request to the model, if RecordModelRequests is set.
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
		s.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "a model request is not recorded",
			slog.String("run_id", s.run.ID), slog.String("error", err.Error()))
	}
}

// forExport returns the request without what the start event of its run has.
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

// settingsForExport returns the settings that the run depends on.
func (l *loop) settingsForExport() export.Settings {
	a, as, p := l.agent, l.run.req.namedAgent, l.profile
	source := as.prompt.Options()
	return export.Settings{
		Agent: as.exported,
		Prompt: export.Template{
			Template:     source.Template,
			Username:     source.Username,
			Timezone:     source.Location.String(),
			Instructions: l.instructions,
		},
		Budget: export.Budget(a.budgetLimits(as)), Search: export.Search(a.ToolSearch), Output: a.MaxOutputTokens,
		Model: export.Model{
			ID:              p.ID,
			ContextTokens:   l.window.Size(),
			MaxOutputTokens: p.MaxOutputTokens,
			Images:          p.Images,
			Audio:           p.Audio,
			PDF:             p.PDF,
			Price:           p.Price,
		},
	}
}

// Export returns the document of a run that has ended. Errors: record.ErrNotEnded, or those of the log.
func (a *Agent) Export(ctx context.Context, run string) (*export.Document, error) {
	return a.recorder.Export(ctx, run)
}

// argsDigest returns the SHA-256 of the bytes of arguments, in hex.
func argsDigest(args jsonText) string {
	sum := sha256.Sum256(args)
	return hex.EncodeToString(sum[:])
}
