package mcp

import (
	"bytes"
	"encoding/json"

	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

// CheckArgs checks args against the tool's present input schema. It sends nothing. It returns the arguments to send:
// args unchanged if they fit, otherwise with JSON in strings decoded, if that makes them fit. If they do not fit
// either way, it returns args unchanged and a *CallError whose Fields have every problem. CheckArgs accepts all
// arguments if the tool is unknown, disabled or without a usable schema; Call reports an unknown or disabled tool.
func (c *Client) CheckArgs(tool string, args json.RawMessage) (json.RawMessage, error) {
	resolved, exists := c.catalog.Resolve(tool)
	if !exists || resolved.Disabled != "" {
		return args, nil
	}
	repaired, wrong := resolved.CheckArgs(args)
	if wrong != nil {
		return args, ArgumentsError(tool, resolved.Server, wrong)
	}
	return repaired, nil
}

// ArgumentsError returns the error that CheckArgs returns for arguments with the problems wrong. tool is the tool's
// name, and server the configured name of its server.
func ArgumentsError(tool, server string, wrong []ContentField) *CallError {
	return &CallError{Kind: InvalidArguments, Tool: wire.Printable(tool, 80), Server: server, Message: problemsText(wrong), Fields: wrong}
}

// checkArguments returns a failure if args do not fit the tool's input schema, otherwise nil. Unlike CheckArgs it does
// not repair them, because a person may have approved exactly these arguments.
func checkArguments(tool catalog.Resolved, args json.RawMessage) *transport.Failure {
	if wrong := tool.ValidateArgs(args); wrong != nil {
		return &transport.Failure{Kind: InvalidArguments, Public: problemsText(wrong), NotRun: true, Err: &wrongArguments{wrong}}
	}
	return nil
}

// problemsText describes the problems of a call's arguments for a model.
func problemsText(wrong []ContentField) string {
	return "the arguments do not fit the tool's input schema:" + content.ListProblems(wrong)
}

// checkCall returns a failure if call's arguments or context are too large, or if the arguments are not a JSON object;
// otherwise nil. It sets empty arguments to {}.
func checkCall(call *Call) *transport.Failure {
	if len(bytes.TrimSpace(call.Args)) == 0 {
		call.Args = json.RawMessage("{}")
	}
	contextSize := 0 // bytes
	for name, value := range call.Context {
		contextSize += len(name) + len(value)
	}
	switch {
	case len(call.Args) > maxArgs:
		return &transport.Failure{Kind: TooLarge, Public: "the arguments are too large", NotRun: true}
	case !wire.Valid(call.Args) || bytes.TrimSpace(call.Args)[0] != '{':
		return &transport.Failure{Kind: InvalidArguments, Public: "the arguments are not a JSON object", NotRun: true}
	case len(call.Context) > maxEntries || contextSize > maxContext:
		return &transport.Failure{Kind: InvalidArguments, Public: "the context is too large", NotRun: true}
	}
	return nil
}

// checkApproval returns a failure if tool needs an approval that call does not have, or has changed since a person
// approved call; otherwise nil.
func checkApproval(tool catalog.Resolved, call Call) *transport.Failure {
	isApproved := call.Approved != ""
	switch {
	case !isApproved && tool.NeedsApproval:
		return &transport.Failure{Kind: Denied, Public: "the call needs a person's approval", NotRun: true}
	case isApproved && call.Approved != tool.Version():
		return &transport.Failure{Kind: Denied, Public: "the tool has changed since a person approved the call", NotRun: true}
	}
	return nil
}
