package agent

import (
	"context"
	"errors"

	"answerd/internal/event"
	"answerd/internal/mcp"
)

// maxSchemaHint bounds the schema in an answer to bad arguments, in bytes. The model was
// given all of it with the tool.
const maxSchemaHint = 16 << 10

// validate checks the arguments against the tool as it is now, before anything is sent,
// and puts in their place what fits without loss (S1.5). The conversation and the
// tool_call event keep what the model wrote.
func (a *Agent) validate(_ context.Context, in *invocation) error {
	if in.refusal != "" || in.own != nil {
		return nil // nobody is to try again; or it is no server's tool
	}
	args, err := a.Tools.CheckArgs(in.Tool, in.args)
	if err != nil {
		return err
	}
	in.args = args
	return nil
}

// instructive adds to an error about the arguments, whoever found it, what the model
// needs to write them again in one turn: the hint of seed 000, in front of all hooks
// (S0.3).
func (a *Agent) instructive(in *invocation, err error) error {
	failed, ok := errors.AsType[*mcp.CallError](err)
	if !ok || failed.Kind != mcp.InvalidArguments {
		return err
	}
	tool := in.tool
	if now, there := a.Tools.Tool(in.Tool); there && in.own == nil {
		tool = now // S3.8
	}
	better := *failed
	better.Message += "\nTry again with the correct arguments. The tool's input schema: " + tool.SchemaExcerpt(failed.Fields, maxSchemaHint)
	return &better
}

// fieldErrors are the fields of a call as events have them.
func fieldErrors(fields []mcp.ContentField) []event.FieldError {
	var out []event.FieldError
	for _, f := range fields {
		out = append(out, event.FieldError(f))
	}
	return out
}
