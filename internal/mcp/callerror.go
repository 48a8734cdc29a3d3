package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/catalog"
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

	Denied ErrorKind = "denied" // answerd or the user refused the call
)

// CallError is the error of a failed call. Message may be shown to the model and to users. Err is the cause, for the
// log only: it may contain session ids or quote the server.
type CallError struct {
	Kind    ErrorKind
	Tool    string
	Server  string
	Message string
	Fields  []ContentField // all problems that answerd found in the arguments; nil if the server refused them
	Err     error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("call %s on %s: %s: %v", e.Tool, e.Server, e.Kind, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

// callError converts failure to the error of a call of tool, with a message for the model and the user. server is the
// configured name of the tool's server; "" if it is unknown.
func callError(failure *transport.Failure, tool, server string) *CallError {
	message := failure.Public
	if server != "" {
		message = "MCP server " + server + ": " + failure.Public
	}
	message += nextStep(failure)
	e := &CallError{Kind: failure.Kind, Tool: wire.Printable(tool, 80), Server: server, Message: message, Err: failure}
	if wrong, ok := errors.AsType[*wrongArguments](failure.Err); ok {
		e.Fields = wrong.fields
	}
	return e
}

// nextSteps maps a failure's kind to what the model or the user can do about it. The missing kinds have messages that
// say so already, or that the server wrote.
var nextSteps = map[ErrorKind]string{
	Unavailable:    "; try again later, or do without it",
	Timeout:        "; try again later, or ask for less",
	Protocol:       "; the operator finds the cause in the log",
	TooLarge:       "; try again with less",
	UnknownOutcome: "; the call may or may not have been carried out, so look before you repeat it",
}

// nextStep returns the text to add to a failure's message: what the model or the user can do about it. It returns ""
// if the message says so already.
func nextStep(f *transport.Failure) string {
	if f.Kind == Unavailable && errors.Is(f, transport.ErrCredentials) {
		return "; send another token, or ask the operator to correct the auth of this server"
	}
	if f.Kind == Timeout && !f.NotRun {
		return nextSteps[UnknownOutcome] + ", or ask for less"
	}
	return nextSteps[f.Kind]
}

// decodeResult decodes the result of tools/call, or of resources/read if tool is the tool that reads resources.
func decodeResult(raw json.RawMessage, tool catalog.Resolved) (*content.Result, *transport.Failure) {
	decode := content.Decode
	if tool.ReadsResources {
		decode = content.DecodeResource
	}
	result, err := decode(raw)
	if err != nil {
		return nil, decodeFailure(err)
	}
	return result, nil
}

// decodeFailure converts err, with which package content failed to decode a call's result, to the call's failure.
func decodeFailure(err error) *transport.Failure {
	if bad, ok := errors.AsType[*content.DecodeError](err); ok {
		return transport.BadReply(bad.Reason, bad.Err)
	}
	if deep, ok := errors.AsType[*content.DepthError](err); ok {
		return &transport.Failure{Kind: TooLarge, Public: deep.Error() + "; it begins with " + deep.Preview, Err: err}
	}
	return &transport.Failure{Kind: Protocol, Public: err.Error()}
}

// wrongArguments is the cause of a failed call that was not sent, because answerd's own check found problems in the
// arguments.
type wrongArguments struct{ fields []ContentField }

func (*wrongArguments) Error() string { return "the arguments do not fit the tool's schema" }

// maxErrorText bounds the part of an error's text that is compared with the patterns below, in bytes.
const maxErrorText = 2 << 10

var (
	// wrongArgumentsText matches the text of an error result with which servers refuse a call's arguments. MCP has no
	// code for this case, so the patterns are the texts of the SDKs that servers are built with. They do not match
	// what a tool says about its own data ("validation error in row 3").
	wrongArgumentsText = regexp.MustCompile(`(?i)` +
		`^validating "?arguments"?` + // go-sdk
		`|^(mcp error -32602: )?(input validation error|invalid (arguments|params|parameters) for tool\b)` + // TypeScript; Python, low level
		`|^(error (calling|executing) tool .{1,300}: )?\d+ validation errors? for (\w+arguments|call\[.{1,300}\])` + // Python: pydantic
		`|unexpected_keyword_argument|got an unexpected keyword argument` + // FastMCP
		`|^(mcp error |error )?-32602\b` +
		`|^(invalid|bad) (arguments?|params|parameters)\b` +
		`|^failed to deserialize parameters\b`) // Rust: rmcp
	// unknownToolText matches the text with which servers report an unknown tool. Its error code is that of invalid
	// parameters (2025-11-25 server/tools, error handling).
	unknownToolText = regexp.MustCompile(`(?i)^(mcp error -32602: )?(unknown tool\b|tool .{1,300} (not found|does not exist|disabled)\b)`)
)

// ResultErrorKind returns the kind of error that a Result with IsError reports. It is UnknownTool or InvalidArguments
// if an MCP SDK uses the result's text for these, otherwise Execution.
func ResultErrorKind(r *content.Result) ErrorKind {
	text := wire.Truncate(r.Text(), maxErrorText)
	switch {
	case transport.IsUnrelatedToArguments(text):
		return Execution
	case unknownToolText.MatchString(text):
		return UnknownTool
	case wrongArgumentsText.MatchString(text):
		return InvalidArguments
	}
	return Execution
}

// contextFailure returns the failure of a call that was not sent because ctx ended: Timeout after a deadline,
// otherwise Cancelled.
func contextFailure(ctx context.Context) *transport.Failure {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &transport.Failure{Kind: Timeout, Public: "no answer in time", NotRun: true, Err: context.Cause(ctx)}
	}
	return &transport.Failure{Kind: Cancelled, Public: "cancelled", NotRun: true, Err: context.Cause(ctx)}
}

// shutdownFailure returns the failure of a call that was not sent because the Client was closed. err is the cause.
func shutdownFailure(err error) *transport.Failure {
	return &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: err}
}

// isHeaderMismatch reports whether the server refused a call's headers. It does so if the tool's x-mcp-header
// annotations have changed since the tools were listed (2026-07-28 basic/transports/streamable-http, "Client
// Behavior").
func isHeaderMismatch(f *transport.Failure) bool {
	e, ok := errors.AsType[*jsonrpc.Error](f.Err)
	return ok && e.Code == sdk.CodeHeaderMismatch
}
