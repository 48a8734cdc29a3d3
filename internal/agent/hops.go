package agent

import (
	"context"
	"errors"
	"math"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const (
	// HopsKey is the entry of an MCP request's _meta that says how many agents a question
	// has come through. Names before the slash are reversed domains (MCP basic, _meta).
	HopsKey = "io.answerd/hops"
	// MaxHops is how many it may be. Agents that have each other for tools would go on
	// for ever, and each of their questions costs a model.
	MaxHops = 3
)

// ErrTooManyHops: the question has come through more than MaxHops agents.
var ErrTooManyHops = errors.New("the question has come through too many agents")

// ParseHops is how many agents a call came through, by its _meta. ok is false for what is no
// count: whoever writes something else there has a reason to.
func ParseHops(meta map[string]any) (hops int, ok bool) {
	v, given := meta[HopsKey]
	if !given {
		return 0, true
	}
	n, ok := v.(float64)
	if !ok || n < 0 || n != math.Trunc(n) {
		return 0, false
	}
	return int(min(n, MaxHops+1)), true
}

// hops are those of a call that the run makes.
func (in *invocation) hops() int {
	if in.loop == nil {
		return 1
	}
	return in.loop.run.req.Hops + 1
}

// ContinueTrace is ctx in the trace of a caller that tells of it in carrier, as W3C
// trace context. Where ctx is in that trace already, it is nearer to us than the caller.
func ContinueTrace(ctx context.Context, carrier map[string]string) context.Context {
	of := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(carrier))
	span := trace.SpanContextFromContext(of)
	if !span.IsValid() || span.TraceID() == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, span)
}
