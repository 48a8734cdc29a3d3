package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// invocation is a call with what it takes to make it. Calls of a run and calls
// without a model differ in this and in nothing else.
type invocation struct {
	*call
	tool    mcp.Tool
	known   bool   // there is such a tool
	consent bool   // its caller, who is no model, agrees to it in advance
	refusal string // why the call is not made; "" if it is
	context map[string]string
	caller  auth.Identity // on whose behalf
	runID   string        // for the log; "" outside of runs
	said    *sayings      // what the server says meanwhile; nil where nobody reads it
	loop    *loop         // who answers what it asks; nil outside of runs
	place   int           // of the call in its turn, from 0
	past    *pastCall     // what became of it before the run came here; nil if nothing
	// own makes the call where the tool is one of ours and no server's.
	own func(context.Context, *invocation) (*content.Result, error)

	reported *content.Result // the tool's own report of its failure
	answered *content.Result // by a hook in place of the tool; nil where none did
	abort    *abortError     // of a hook that ends the run
	took     time.Duration   // of the call itself, without what came before and after

	rule     string   // of auth.Rules by which it may be made; "" where there are none
	decision decision // whether it might be made
	approved string   // the version of the tool that a person agreed to; "" if nobody was asked
}

// ending is how a call ended: one of the first two is set.
type ending struct {
	worked *event.ToolResult
	failed *event.ToolError
	result *content.Result // whole, of a call that worked
	where  string          // where the whole can be read; "" where it cannot
	abort  *abortError     // the run ends with the call, if this is set
}

func (e ending) ended() bool { return e.worked != nil || e.failed != nil }

// perform makes one call, under a span and into the metrics. Every failure of the
// call is an ending; an error is one of the log, and ends the run.
func (a *Agent) perform(ctx context.Context, in invocation) (ending, error) {
	ctx, span := a.Tracer.Start(ctx, "tool_call", trace.WithAttributes(
		attribute.String("tool", in.Tool), // the seed's name beside the conventions'
		attribute.String("gen_ai.operation.name", "execute_tool"),
		attribute.String("gen_ai.tool.name", in.Tool),
		attribute.String("gen_ai.tool.call.id", in.CallID),
		attribute.String("gen_ai.tool.type", "function"),
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("mcp.server.name", in.Server),
	))
	defer span.End()
	res, err := a.send(ctx, &in)
	err = a.instructive(&in, err)
	a.observe(ctx, span, &in, err)
	a.audit(ctx, &in, err)
	res, err = a.review(ctx, &in, res, err)
	if failed, ok := errors.AsType[*mcp.CallError](err); ok {
		return a.reportFailure(ctx, &in, failed), nil
	}
	if err != nil {
		return ending{}, err
	}
	return a.report(ctx, &in, res), nil
}

// observe takes how the call itself ended, whatever a hook makes of it, into the span
// and the metrics.
func (a *Agent) observe(ctx context.Context, span trace.Span, in *invocation, err error) {
	failed, ok := errors.AsType[*mcp.CallError](err)
	if !ok {
		if err == nil && in.answered == nil {
			a.metrics.toolTime(ctx, in.Call, "", in.took)
		}
		return
	}
	kind := string(failed.Kind)
	span.SetStatus(codes.Error, kind)
	span.SetAttributes(attribute.String("error.type", kind))
	a.metrics.toolTime(ctx, in.Call, kind, in.took)
}

// send takes the call through every step between the wish for it and its effect, or
// says at which one it ended. Every failure of the call is an *mcp.CallError. A hook's
// answer ends the way too: nothing is called, so nothing is to be permitted.
func (a *Agent) send(ctx context.Context, in *invocation) (*content.Result, error) {
	if in.past != nil && in.past.sent && !a.Tools.Repeatable(in.Tool) {
		return nil, in.lostCall()
	}
	for _, step := range []func(context.Context, *invocation) error{
		a.resolve,
		a.authorize, // before anybody is told of the call
		a.announce,
		a.validate,
		a.permit,
		a.authorize, // again: a person may have taken his time
		a.charge,
	} {
		if err := step(ctx, in); err != nil || in.answered != nil {
			return in.answered, err
		}
	}
	return a.exchange(ctx, in)
}

// fail is the failure of the call with a message for the model and the caller.
func (in *invocation) fail(kind mcp.ErrorKind, message string) error {
	return &mcp.CallError{Kind: kind, Tool: in.Tool, Server: in.Server, Message: message}
}

// givenUp is the failure of a call that ctx ended: as a rule the run or its caller is
// gone, but a run whose time for tools is over goes on, and its model should know.
func (in *invocation) givenUp(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errToolTime) {
		return in.fail(mcp.Cancelled, "The run's time for tools is used up, so the call was given up.")
	}
	return in.fail(mcp.Cancelled, "The call was cancelled.")
}

// resolve refuses what is no call of a tool that there is.
func (a *Agent) resolve(_ context.Context, in *invocation) error {
	// What the model was not offered it may know of all the same.
	if tool, exists := a.Tools.Tool(in.Tool); !in.known && exists && !a.mayUse(in.caller, tool) {
		in.tool = tool // for the log; the caller is not told of its server
		return in.forbid()
	}
	switch {
	case !in.known:
		return in.fail(mcp.UnknownTool, fmt.Sprintf("There is no tool named %q.", in.Tool))
	case in.bad != "":
		return in.fail(mcp.InvalidArguments, fmt.Sprintf("the arguments cannot be used: %s", in.bad))
	}
	return nil
}

// charge takes the call from the run's budget, or refuses it.
func (a *Agent) charge(ctx context.Context, in *invocation) error {
	if in.loop == nil || in.past != nil && in.past.sent { // which counts already
		return nil
	}
	switch limit, err := in.loop.budget.takeCall(ctx, in.place, in.CallID); {
	case err != nil && ctx.Err() == nil:
		return err // the log's
	case err != nil:
		return in.givenUp(ctx)
	case limit != "":
		in.decision = decision{verdict: denied, why: "budget: " + limit}
		return in.fail(mcp.Denied, fmt.Sprintf("The run's budget is used up (%s).", limit))
	}
	return nil
}

// exchange sends the call to its server and waits for the result.
func (a *Agent) exchange(ctx context.Context, in *invocation) (*content.Result, error) {
	started := time.Now()
	if in.own != nil {
		defer func() { in.took = time.Since(started) }()
		return in.own(ctx, in)
	}
	call := mcp.Call{Tool: in.Tool, Args: in.args, Check: true, Context: in.context, Meta: in.meta(ctx), Principal: in.caller, Approved: in.approved}
	if in.said != nil {
		call.Progress = func(p mcp.Progress) { in.said.progress(ctx, p) }
		call.Log = func(m mcp.LogMessage) { in.said.log(ctx, m) }
	}
	if l := in.loop; l != nil {
		if err := l.withdraw(ctx, in.past); err != nil {
			return nil, err
		}
		// Before the request can leave: whoever takes the run over must not make it again.
		if err := l.run.note(ctx, noteSent, callMark(in.CallID)); err != nil && ctx.Err() != nil {
			return nil, in.givenUp(ctx)
		} else if err != nil {
			return nil, err
		}
		call.Sample = l.sample
		call.Elicit = func(ctx context.Context, e mcp.Elicitation) (mcp.ElicitationResult, error) {
			return l.elicit(ctx, in.Call, e)
		}
	}
	res, err := a.Tools.Call(ctx, call)
	in.took = time.Since(started)
	if in.said != nil && in.said.err != nil {
		return nil, fmt.Errorf("report what the server says: %w", in.said.err)
	}
	if failed, ok := errors.AsType[*mcp.CallError](err); ok && failed.Kind == mcp.Cancelled && errors.Is(context.Cause(ctx), errToolTime) {
		return nil, in.givenUp(ctx)
	}
	if err != nil {
		return nil, err
	}
	if res.IsError {
		in.reported = res
		return nil, in.fail(mcp.ResultErrorKind(res), res.Text())
	}
	return res, nil
}

// meta is the _meta of the request: the W3C trace context, which is how a server that is
// not reached over HTTP continues the trace, and how far the question has come.
func (in *invocation) meta(ctx context.Context) map[string]any {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	meta := make(map[string]any, len(carrier)+1)
	meta[HopsKey] = in.hops()
	for k, v := range carrier {
		meta[k] = v
	}
	return meta
}
