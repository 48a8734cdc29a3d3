package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/event"
	"answerd/internal/mcp"
)

// Bounds of one turn.
const (
	maxCallsPerTurn = 32
	maxArgs         = 64 << 10  // bytes of one call's arguments
	maxForModel     = 256 << 10 // bytes of one result in the conversation
)

// denied is the kind of a call that we did not let through. The other kinds are
// those of package mcp.
const denied mcp.ErrorKind = "denied"

type jsonText = json.RawMessage

// call is one tool call of a turn.
type call struct {
	event.Call
	args     jsonText // a JSON object; nil if the model wrote something else
	argsText string   // then this is what it wrote
	bad      string   // and this is what is wrong with it
}

// outcome is how a call ended, for the conversation and for the metadata.
type outcome struct {
	forModel string
	failed   bool
	result   jsonText
}

// parse reads the arguments as the model wrote them. They are never guessed: what is
// not a JSON object is kept as text and answered with what is wrong (S1.3).
func (c *call) parse(text string) {
	trimmed := bytes.TrimSpace([]byte(text))
	if len(trimmed) == 0 {
		trimmed = []byte("{}")
	}
	var object map[string]json.RawMessage
	switch err := json.Unmarshal(trimmed, &object); {
	case len(text) > maxArgs:
		c.bad = fmt.Sprintf("they are longer than %d bytes", maxArgs)
		text = text[:maxArgs]
	case !utf8.Valid(trimmed):
		c.bad = "they are not valid UTF-8"
	case err != nil:
		c.bad = "they are not a JSON object: " + err.Error()
	case object == nil:
		c.bad = "they are not a JSON object but null"
	default:
		c.args = trimmed
		return
	}
	c.argsText = text
}

// written is the arguments as the model wrote them, for the conversation.
func (c *call) written() string {
	if c.args != nil {
		return string(c.args)
	}
	return c.argsText
}

// params is the arguments in the metadata, where every element is an object.
func (c *call) params() jsonText {
	if c.args != nil {
		return c.args
	}
	quoted, _ := json.Marshal(map[string]string{"args_text": c.argsText})
	return quoted
}

// callAll runs the calls of a turn at the same time. Every call gets its outcome
// and its event, whatever happens to the others; the error is one that ends the run.
func (l *loop) callAll(ctx context.Context, calls []*call, last bool) ([]outcome, error) {
	outcomes := make([]outcome, len(calls))
	errs := make([]error, len(calls)+1)
	var wg sync.WaitGroup
	for i, c := range calls {
		refusal := ""
		switch {
		case last:
			refusal = "No tool can be called any more in this run."
		case i >= maxCallsPerTurn:
			refusal = fmt.Sprintf("Only %d calls can be made in one turn.", maxCallsPerTurn)
		case !l.budget.takeCall():
			refusal = "The run's budget of tool calls is used up."
		}
		wg.Go(func() {
			defer recovered(&errs[i])
			outcomes[i], errs[i] = l.callOne(ctx, c, refusal)
		})
	}
	wg.Wait()
	errs[len(calls)] = l.budget.reportCalls(ctx, l.run.out)
	if err := context.Cause(ctx); err != nil {
		return outcomes, err
	}
	return outcomes, errors.Join(errs...)
}

// callOne takes one call to its tool_result or tool_error.
func (l *loop) callOne(ctx context.Context, c *call, refusal string) (outcome, error) {
	ctx, span := l.agent.Tracer.Start(ctx, "tool_call", trace.WithAttributes(
		attribute.String("tool", c.Tool), // the seed's name beside the conventions'
		attribute.String("gen_ai.operation.name", "execute_tool"),
		attribute.String("gen_ai.tool.name", c.Tool),
		attribute.String("gen_ai.tool.call.id", c.CallID),
		attribute.String("gen_ai.tool.type", "function"),
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("mcp.server.name", c.Server),
	))
	defer span.End()
	started := time.Now()
	res, err := l.perform(ctx, c, refusal)
	took := time.Since(started)

	var failed *mcp.CallError
	if errors.As(err, &failed) {
		span.SetStatus(codes.Error, string(failed.Kind))
		span.SetAttributes(attribute.String("error.type", string(failed.Kind)))
		if failed.Err != nil {
			l.agent.Logger.WarnContext(ctx, "tool call failed", "run_id", l.run.ID, "tool", c.Tool, "server", c.Server, "kind", string(failed.Kind), "error", failed.Err)
		}
		l.agent.metrics.toolTime(ctx, c.Call, string(failed.Kind), took)
		message := clip(failed.Message)
		quoted, _ := json.Marshal(map[string]string{"error": message})
		return outcome{forModel: string(quoted), failed: true, result: quoted}, l.run.out.Append(ctx, event.ToolError{
			Call: c.Call, Args: c.args, ArgsText: c.argsText, Payload: message, Kind: string(failed.Kind), DurationMS: took.Milliseconds(),
		})
	}
	if err != nil {
		return outcome{}, err
	}
	l.agent.metrics.toolTime(ctx, c.Call, "", took)
	payload, content := res.Payload(), res.Content
	if content == nil {
		content = []jsonText{} // structured content alone; readers expect a list
	}
	return outcome{forModel: clip(res.Text()), result: payload}, l.run.out.Append(ctx, event.ToolResult{
		Call: c.Call, Args: c.args, Payload: payload, Content: content, Structured: res.Structured, DurationMS: took.Milliseconds(),
	})
}

// perform makes the call, or says why it is not made. Every failure of a call is an
// *mcp.CallError; any other error ends the run.
func (l *loop) perform(ctx context.Context, c *call, refusal string) (*mcp.Result, error) {
	fail := func(kind mcp.ErrorKind, message string) (*mcp.Result, error) {
		return nil, &mcp.CallError{Kind: kind, Tool: c.Tool, Server: c.Server, Message: message}
	}
	tool, known := l.tools[c.Tool]
	switch {
	case !known:
		return fail(mcp.UnknownTool, fmt.Sprintf("There is no tool named %q.", c.Tool))
	case c.bad != "":
		return fail(mcp.InvalidArguments, fmt.Sprintf("The arguments cannot be used: %s. Try again with the correct arguments. The tool's input schema: %s", c.bad, tool.InputSchema))
	case refusal != "":
		return fail(denied, refusal)
	}
	progress := make(chan error, 1)
	res, err := l.agent.Tools.Call(ctx, mcp.Call{
		Tool: c.Tool, Args: c.args, Context: l.run.req.Context, Meta: traceMeta(ctx),
		Progress: func(p mcp.Progress) {
			e := event.ToolProgress{Call: c.Call, Progress: p.Progress, Total: p.Total, Message: p.Message}
			if err := l.run.out.Append(ctx, e); err != nil {
				select {
				case progress <- err:
				default: // the first one is enough
				}
			}
		},
	})
	select {
	case err := <-progress:
		return nil, fmt.Errorf("report progress: %w", err)
	default:
	}
	if err != nil {
		return nil, err
	}
	if res.IsError {
		return fail(mcp.Execution, res.Text())
	}
	return res, nil
}

// traceMeta is the W3C trace context for the _meta of an MCP request, which is how
// a server that is not reached over HTTP continues the trace.
func traceMeta(ctx context.Context) map[string]any {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	meta := make(map[string]any, len(carrier))
	for k, v := range carrier {
		meta[k] = v
	}
	return meta
}

// clip bounds what one result adds to the conversation, and says what it cut.
func clip(text string) string {
	if len(text) <= maxForModel {
		return text
	}
	cut := maxForModel
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return fmt.Sprintf("%s\n[cut here: %d of %d bytes are shown]", text[:cut], cut, len(text))
}
