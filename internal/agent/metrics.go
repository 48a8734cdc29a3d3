package agent

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/event"
)

// metrics are what the agent counts. Model time and tokens are counted by llm.
type metrics struct {
	runs       metric.Int64Counter
	refused    metric.Int64Counter
	duration   metric.Float64Histogram
	active     metric.Int64UpDownCounter
	streams    metric.Int64UpDownCounter
	firstEvent metric.Float64Histogram
	tools      metric.Float64Histogram
}

func newMetrics(m metric.Meter) (metrics, error) {
	var out metrics
	var errs [7]error
	out.runs, errs[0] = m.Int64Counter("answerd.runs", metric.WithUnit("{run}"), metric.WithDescription("Runs that ended, by outcome."))
	out.duration, errs[1] = m.Float64Histogram("answerd.run.duration", metric.WithUnit("s"), metric.WithDescription("From the start of a run to its terminal event."))
	out.active, errs[2] = m.Int64UpDownCounter("answerd.runs.active", metric.WithUnit("{run}"), metric.WithDescription("Runs that go on."))
	out.streams, errs[3] = m.Int64UpDownCounter("answerd.streams.active", metric.WithUnit("{stream}"), metric.WithDescription("Requests that read a run."))
	out.firstEvent, errs[4] = m.Float64Histogram("answerd.time_to_first_event", metric.WithUnit("s"), metric.WithDescription("From the start of a run to the first thing that the model says."))
	out.tools, errs[5] = m.Float64Histogram("mcp.client.operation.duration", metric.WithUnit("s"), metric.WithDescription("Tool calls, by tool, server and kind of failure."))
	out.refused, errs[6] = m.Int64Counter("answerd.runs.refused", metric.WithUnit("{run}"), metric.WithDescription("Runs and direct calls that found no place, by reason."))
	err := errors.Join(errs[:]...)
	for _, reason := range refusals {
		if err == nil {
			// There from the start: an alert on the first refusal needs a zero to rise from.
			out.refused.Add(context.Background(), 0, metric.WithAttributes(attribute.String("reason", reason)))
		}
	}
	return out, err
}

// refusals are the reasons as a metric names them.
var refusals = map[error]string{ErrOverloaded: "full", ErrMemoryShort: "memory", ErrTooMany: "caller_runs", ErrTooFast: "caller_rate"}

func (m metrics) refuse(ctx context.Context, err error) {
	m.refused.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", refusals[errors.Unwrap(err)])))
}

func (m metrics) ended(ctx context.Context, end event.Body, took time.Duration) {
	outcome := attribute.String("outcome", string(end.Type()))
	code := ""
	if e, ok := end.(event.RunError); ok {
		code = e.Code
	}
	m.active.Add(ctx, -1)
	m.runs.Add(ctx, 1, metric.WithAttributes(outcome, attribute.String("code", code)))
	m.duration.Record(ctx, took.Seconds(), metric.WithAttributes(outcome))
}

func (m metrics) toolTime(ctx context.Context, c event.Call, kind string, took time.Duration) {
	if c.Server == "" {
		return // a name that the model made up would be a series of its own
	}
	attrs := []attribute.KeyValue{
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("gen_ai.tool.name", c.Tool),
		attribute.String("mcp.server.name", c.Server),
	}
	if kind != "" {
		attrs = append(attrs, attribute.String("error.type", kind))
	}
	m.tools.Record(ctx, took.Seconds(), metric.WithAttributes(attrs...))
}
