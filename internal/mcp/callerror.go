package mcp

import (
	"errors"
	"fmt"

	"answerd/internal/mcp/content"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

// ErrorKind says why a call failed. The values are those of the tool_error event.
type ErrorKind = transport.Kind

// The kinds of failed calls.
const (
	InvalidArguments = transport.InvalidArguments
	UnknownTool      = transport.UnknownTool
	Execution        = transport.Execution
	Timeout          = transport.Timeout
	Unavailable      = transport.Unavailable
	Protocol         = transport.Protocol
	TooLarge         = transport.TooLarge
	Cancelled        = transport.Cancelled
	UnknownOutcome   = transport.UnknownOutcome

	Denied ErrorKind = "denied" // answerd did not let it through
)

// CallError is a failed call. Message is fit for the model and the caller; Err is
// the cause, for the log only: it may name session ids or quote the server.
type CallError struct {
	Kind    ErrorKind
	Tool    string
	Server  string
	Message string
	Fields  []ContentField // of InvalidArguments, where we found them: all that is wrong
	Err     error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("call %s on %s: %s: %v", e.Tool, e.Server, e.Kind, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

// callError returns f as the error of a call.
func callError(f *transport.Failure, tool, server string) *CallError {
	message := f.Public
	if server != "" {
		message = "MCP server " + server + ": " + f.Public
	}
	if f.Kind == UnknownOutcome {
		message += "; the call may or may not have been carried out"
	}
	e := &CallError{Kind: f.Kind, Tool: wire.Printable(tool, 80), Server: server, Message: message, Err: f}
	if wrong, ok := errors.AsType[*wrongArguments](f.Err); ok {
		e.Fields = wrong.fields
	}
	return e
}

// decodeFailure returns the failure of a request whose result cannot be read.
func decodeFailure(err error) *transport.Failure {
	if bad, ok := errors.AsType[*content.DecodeError](err); ok {
		return transport.BadReply(bad.Reason, bad.Err)
	}
	return &transport.Failure{Kind: Protocol, Public: err.Error()}
}

// wrongArguments is the cause of a failure of arguments that were checked before they were sent.
type wrongArguments struct{ fields []ContentField }

func (*wrongArguments) Error() string { return "the arguments do not fit the tool's schema" }
