package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"
	"unicode/utf8"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/record"
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// call holds one tool call of a turn.
type call struct {
	event.Call
	args        jsonText // a JSON object; nil if the model's text is not one
	argsText    string   // the model's text if args is nil
	argsProblem string   // what is wrong with argsText
	byClient    bool     // the caller executes the call
	edited      bool     // a person changed args
	foundTools  []string // the names of the tools that a call of the search tool found
}

// toolExecution holds a tool call while it is executed. Calls of a run and direct calls differ
// only in the values of these fields.
type toolExecution struct {
	*call
	tool          catalog.Tool
	toolExists    bool              // the run has a tool of this name
	preapproved   bool              // the caller of a direct call has agreed to the call in advance
	refusal       string            // for the model: the limit of its turn that forbids the call; "" if none does
	contextParams map[string]string // Request.Context
	caller        auth.Identity     // on whose behalf the call is made
	runID         string            // "" for a direct call
	notifications *notificationSink // receives the server's notifications during the call; nil for a direct call
	loop          *loop             // answers the server's requests during the call; nil for a direct call
	index         int               // position of the call among those of its turn that the agent executes, from 0
	replayed      *replay.Call      // what other processes did for the call; nil if nothing
	pending       *pendingInput     // what its server requires before the call is sent again; nil if nothing
	askedAgent    string            // the id of the agent that the call asks; "" for any other tool
	// builtin executes a tool of the agent's own: the tool search, or asking an agent. nil for a server's tool.
	builtin func(context.Context, *toolExecution) (*content.Result, error)

	result     *content.Result // the result of a call that succeeded, set by execute
	childID    string          // the child run of a call that asks an agent; "" before it is started
	spent      *event.Spent    // what the child run has used; nil before it has ended
	toolReport *content.Result // the result with which the tool reported its own failure; nil otherwise
	hookResult *content.Result // a hook's answer in place of the tool's; nil if no hook answered
	abort      *abortError     // set by a hook that ends the run
	duration   time.Duration   // of the requests to the server together, or of builtin

	rule            string   // the rule of auth.Rules that allows the call; "" without rules
	decision        decision // whether the call may be made
	approvedVersion string   // the tool's version that a person approved; "" if no person was asked
}

// callOutcome says how a call ended: either resultEvent or errorEvent is set. Both are nil while it has not ended.
type callOutcome struct {
	resultEvent *event.ToolResult
	errorEvent  *event.ToolError
	fullResult  *content.Result // the result that resultEvent may have only a part of; nil if the call failed
	resultURL   string          // where the full result or report can be read; "" if nowhere
	abort       *abortError     // set if the run ends with the call
	spent       *event.Spent    // what the child run of the call has used; nil if it has none
}

const maxArgs = 64 << 10 // bytes of one call's arguments

const maxForModel = 256 << 10 // bytes of text that one result adds to the conversation

// decision records whether a call may be made, and who decided that.
type decision struct {
	verdict string // one of the constants below; "" until it is decided
	by      string // the subject of the person who decided; "" if no person was asked, or the person is anonymous
	reason  string // the reason of a denial
	edited  bool   // a person changed the arguments
}

// The verdicts of a decision.
const (
	allowed  = "allowed"  // no approval is needed
	approved = "approved" // a person approved this call
	denied   = "denied"
	replaced = "replaced" // a hook answered instead; the tool was not called
)

// pendingInput holds what a call requires before it is sent again, and what any process needs to send it. It is
// stored in notes of the run, which readers never see, since the server's requestState may be a secret.
//
// In a multi round-trip request (protocol 2026-07-28) a server ends the request with a list of what it requires, and
// the client sends the request again with the answers. No connection is open between the two. So the run can be
// parked, and another process can send the request again, because the server has not executed the call yet. A
// question that a server asks within an open request (HeldOpen) keeps the run in this process instead.
type pendingInput struct {
	// Required is what the server of the call requires; nil if only a sign-in is missing.
	Required *content.InputRequired `json:"required,omitempty"`
	// Interrupts are the ids of the questions to the owner, by the key of the server's request.
	Interrupts map[string]string `json:"interrupts,omitempty"`
	Asked      int               `json:"asked,omitempty"` // how many questions the call has asked so far
	// SignIn is the sign-in that the owner has to do first; nil if none is needed. SignInInterrupt is the id of
	// the question that asks for it.
	SignIn          *content.SignIn `json:"sign_in,omitempty"`
	SignInInterrupt string          `json:"sign_in_interrupt,omitempty"`
	SignInExpires   int64           `json:"sign_in_expires,omitempty"` // in ms since the Unix epoch, of the log's time

	// The call as it was sent.
	Args            jsonText `json:"args"`
	Edited          bool     `json:"edited,omitempty"`
	ApprovedVersion string   `json:"approved_version,omitempty"`

	answers map[string]mcp.ElicitationResult // the owner's answers to Required; nil before the owner was asked
}

// notificationSink appends a server's notifications during one call as events. While the run is suspended, its
// methods block. Package mcp passes one notification at a time, and none after the call.
type notificationSink struct {
	run  *run
	call event.Call
	err  error // the first failure to append
}

// appendProgress appends a progress notification as tool_progress.
func (s *notificationSink) appendProgress(ctx context.Context, progress mcp.Progress) {
	s.appendEvent(ctx, event.ToolProgress{Call: s.call, Progress: progress.Progress, Total: progress.Total, Message: progress.Message})
}

// appendLog appends a log message, if message has data. If package mcp dropped messages before it (message.Omitted),
// appendLog first appends a warning with their number.
func (s *notificationSink) appendLog(ctx context.Context, message mcp.LogMessage) {
	if message.Omitted > 0 {
		text, _ := json.Marshal(fmt.Sprintf("%d log messages were left out here.", message.Omitted)) // strings always marshal
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: "warning", Logger: "answerd", Data: text})
	}
	if message.Data != nil {
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: message.Level, Logger: message.Logger, Data: message.Data})
	}
}

// appendEvent appends an event of the call, and blocks while the run is suspended. It stores the first error in
// s.err, because package mcp has no use for an error. execute and relayEvent check s.err, so that a log that fails
// ends the run.
func (s *notificationSink) appendEvent(ctx context.Context, body event.Body) {
	err := catchPanic(func() error { // a panic must not reach package mcp, whose goroutine this is
		if err := s.run.awaitOrder(ctx, body); err != nil {
			return err
		}
		if err := s.run.appendWhenResumed(ctx, body); err != nil {
			return err
		}
		return s.run.suspension.recheck()
	})
	if s.err == nil {
		s.err = err
	}
}

// parseArgs parses the model's arguments. It sets c.args if text is a JSON object; empty text counts as {}. Otherwise
// it keeps the text, cut to maxArgs bytes, in c.argsText and says in c.argsProblem what is wrong, for the model. It
// does not try to repair the text.
func (c *call) parseArgs(text string) {
	trimmed := bytes.TrimSpace([]byte(text))
	if len(trimmed) == 0 {
		trimmed = []byte("{}")
	}
	var object map[string]json.RawMessage
	err := json.Unmarshal(trimmed, &object)
	switch {
	case len(text) > maxArgs:
		c.argsProblem = fmt.Sprintf("they are longer than %d bytes", maxArgs)
		text = text[:maxArgs]
	case !utf8.Valid(trimmed):
		c.argsProblem = "they are not valid UTF-8"
	case err != nil:
		c.argsProblem = describeJSONError(trimmed, err)
	case object == nil:
		c.argsProblem = "they are not a JSON object but null"
	default:
		c.args = trimmed
		return
	}
	c.argsText = text
}

// describeJSONError explains to the model why text is not a JSON object, if possible with the position of the
// invalid byte. err is the error of unmarshalling text.
func describeJSONError(text []byte, err error) string {
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return "they are a JSON " + wrongType.Value + ", not an object"
	}
	// Unlike Unmarshal, a Decoder has an error of its own for text that ends too early.
	var value json.RawMessage
	if errors.Is(json.NewDecoder(bytes.NewReader(text)).Decode(&value), io.ErrUnexpectedEOF) {
		return "they end before the JSON object is complete"
	}
	broken, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return "they are not a JSON object"
	}
	// Offset counts the bytes that were read, including the invalid one.
	at := max(0, min(int(broken.Offset)-1, len(text)-1))
	excerpt := bytes.ToValidUTF8(text[at:min(len(text), at+20)], nil)
	return fmt.Sprintf("they are not a JSON object: at byte %d, %q is not valid JSON", at+1, excerpt)
}

// argsAsWritten returns the model's arguments unchanged, for the conversation.
func (c *call) argsAsWritten() string {
	if c.args != nil {
		return string(c.args)
	}
	return c.argsText
}

// executor returns who executes the call, for its events: event.Client for a tool of the caller, "" for answerd.
func (c *call) executor() event.Executor {
	if c.byClient {
		return event.Client
	}
	return ""
}

// isSet reports whether o says how the call ended. Before a turn's calls are executed, only the calls that have
// ended in another process have an outcome (restoreCalls).
func (o callOutcome) isSet() bool { return o.resultEvent != nil || o.errorEvent != nil }

// failure returns a failure of the call with a message for the model and the caller.
func (exec *toolExecution) failure(kind mcp.ErrorKind, message string) error {
	return &mcp.CallError{Kind: kind, Tool: exec.Tool, Server: exec.Server, Message: message}
}

// canceledFailure returns the failure of a call that ended because ctx did. Usually the run or its caller has ended
// too, and the message is not read. But a run whose time for tools is used up continues, and its model needs the
// reason.
func (exec *toolExecution) canceledFailure(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), budget.ErrToolTimeUsed) {
		return exec.failure(mcp.Cancelled, "The run's time for tools is used up, so the call was given up.")
	}
	return exec.failure(mcp.Cancelled, recorded.CallCancelled)
}

// recordedDecision returns what a rule or a hook decided about the call in the recording that the run repeats. It
// returns the zero value if the call had no such decision or the run is not a rerun.
func (exec *toolExecution) recordedDecision() recorded.Decision {
	if exec.loop == nil || exec.loop.agent.Repeat == nil {
		return recorded.Decision{}
	}
	return exec.loop.agent.Repeat.Decision(exec.runID, exec.CallID)
}

// contentList returns the content blocks of a result, never nil.
func contentList(res *content.Result) []jsonText {
	if res.Content == nil {
		return []jsonText{}
	}
	return res.Content
}

// Bounds of what one result adds to events and metadata, in bytes of JSON.
const (
	maxInEvent  = 256 << 10 // of an event: payload, content and structured content together
	maxInline   = 64 << 10  // of one block in an event, in characters of base64
	maxMetadata = 1 << 20   // of the metadata of a run: arguments and results of all its calls
	minMetadata = 1 << 10   // of one call in the metadata, however much the other calls used
)

// recordResult returns the outcome of a call that succeeded. The event of a run's call is bounded by maxInEvent; a
// result that exceeds the bound is also stored in full. The event of a direct call has the full result.
//
// The result is stored before the caller appends its event, because a reader of the event may follow its URL at
// once. If it cannot be stored, the event says that it is truncated and has no URL.
func (a *Agent) recordResult(ctx context.Context, exec *toolExecution, res *content.Result) callOutcome {
	result := &event.ToolResult{
		Call: exec.Call, Args: exec.args, DurationMS: exec.duration.Milliseconds(), SchemaViolations: fieldErrors(res.Violations),
	}
	outcome := callOutcome{fullResult: res, resultEvent: result}
	if exec.runID == "" {
		result.Payload = res.Payload()
		result.Content = contentList(res)
		result.Structured = res.Structured
		return outcome
	}
	outcome.resultURL = a.resultPath(exec.runID, exec.CallID)
	brief := res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline, URL: outcome.resultURL})
	if brief.Incomplete {
		if !a.storeResult(ctx, exec, res) {
			outcome.resultURL = ""
			brief = res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline})
		}
		result.Truncated = &event.Truncated{Bytes: res.Size(), URL: outcome.resultURL}
	}
	result.Payload = brief.Payload
	result.Content = brief.Content
	result.Structured = brief.Structured
	return outcome
}

// recordFailure returns the outcome of a call that failed. The event has at most maxForModel bytes of the message.
// If the tool itself reported the failure (exec.toolReport) and the event cannot show all of the report, the report
// is also stored in full. If the report is not stored although something is missing in the event, resultURL is "".
func (a *Agent) recordFailure(ctx context.Context, exec *toolExecution, failed *mcp.CallError) callOutcome {
	failure := &event.ToolError{
		Call:       exec.Call,
		Args:       exec.args,
		ArgsText:   exec.argsText,
		Kind:       string(failed.Kind),
		Errors:     fieldErrors(failed.Fields),
		DurationMS: exec.duration.Milliseconds(),
	}
	outcome := callOutcome{abort: exec.abort, errorEvent: failure}
	if exec.runID != "" {
		outcome.resultURL = a.resultPath(exec.runID, exec.CallID)
	}
	text, truncated := content.TruncateText(failed.Message, maxForModel, outcome.resultURL)
	// With hooks, the report is not stored: a hook saw only the text of the failure, and so must readers.
	mayStore := exec.runID != "" && exec.toolReport != nil && a.Hooks == nil
	mustStore := mayStore && (truncated || !exec.toolReport.IsText())
	isStored := mustStore && a.storeResult(ctx, exec, exec.toolReport)
	switch {
	case isStored:
		failure.Truncated = &event.Truncated{Bytes: exec.toolReport.Size(), URL: outcome.resultURL}
	case mustStore || truncated: // nothing was stored, so the text must not refer to resultURL
		outcome.resultURL = ""
		text, _ = content.TruncateText(failed.Message, maxForModel, "")
		failure.Truncated = &event.Truncated{Bytes: len(failed.Message)}
	}
	failure.Payload = text
	return outcome
}

// storeResult stores a full result in the log of its run, for Agent.Result, and reports whether that succeeded. It does
// so even if ctx has ended, as for the event of the result. A failure is only logged: the run continues, because its
// events have what the model was given.
func (a *Agent) storeResult(ctx context.Context, exec *toolExecution, res *content.Result) bool {
	encoded, err := encodeResult(exec.Call, res)
	if err == nil {
		err = a.Log.SaveResult(context.WithoutCancel(ctx), exec.runID, exec.CallID, encoded)
	}
	if err != nil {
		a.Logger.WarnContext(ctx, "the whole result of a call could not be stored",
			"run_id", exec.runID, "call_id", exec.CallID, "bytes", res.Size(), "error", err)
	}
	return err == nil
}

// encodeResult returns the JSON object that Agent.Result decodes. The content is already JSON, and large. It is copied
// behind the members of the header and not parsed again.
func encodeResult(call event.Call, res *content.Result) ([]byte, error) {
	header, err := json.Marshal(storedResultHeader{CallID: call.CallID, Tool: call.Tool, Server: call.Server, IsError: res.IsError})
	if err != nil {
		return nil, err
	}
	const brackets = 64 // at least the bytes of the names and brackets below
	encoded := bytes.NewBuffer(make([]byte, 0, len(header)+res.Size()+len(res.Content)+brackets))
	encoded.Write(header[:len(header)-len("}")])
	encoded.WriteString(`,"content":[`)
	for i, block := range res.Content {
		if i > 0 {
			encoded.WriteByte(',')
		}
		encoded.Write(block)
	}
	encoded.WriteByte(']')
	if res.Structured != nil {
		encoded.WriteString(`,"structured":`)
		encoded.Write(res.Structured)
	}
	encoded.WriteByte('}')
	return encoded.Bytes(), nil
}

// storedResultHeader holds the members of a stored result that its server did not send.
type storedResultHeader struct {
	CallID  string `json:"call_id"`
	Tool    string `json:"tool"`
	Server  string `json:"server"`
	IsError bool   `json:"is_error"`
}

// Result holds the complete result of a call of a run.
type Result struct {
	CallID     string          `json:"call_id"`
	Tool       string          `json:"tool"`
	Server     string          `json:"server"`
	IsError    bool            `json:"is_error"`
	Payload    json.RawMessage `json:"payload"` // not stored, because it follows from Content and Structured
	Content    []jsonText      `json:"content"`
	Structured json.RawMessage `json:"structured,omitempty"`
}

// Result returns the full result of a call of a run, of which the event may have only a part. Errors:
// event.ErrNotFound if the run has no such call, or the call has not ended; event.ErrGone if the result
// is no longer stored; or the log's.
func (a *Agent) Result(ctx context.Context, run, callID string) (Result, error) {
	if record.IsReserved(callID) {
		return Result{}, event.ErrNotFound
	}
	stored, err := a.Log.Result(ctx, run, callID)
	if errors.Is(err, event.ErrNotFound) {
		return a.resultFromEvents(ctx, run, callID)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read a result: %w", err)
	}
	var r Result
	if err := json.Unmarshal(stored, &r); err != nil {
		return Result{}, fmt.Errorf("decode a kept result: %w", err)
	}
	r.Payload = (&content.Result{Content: r.Content, Structured: r.Structured}).Payload()
	return r, nil
}

// resultFromEvents returns the result of a call from the run's events, if its event is complete: such a result is
// not stored separately. Errors: event.ErrNotFound, event.ErrGone if the event has only a part, or the log's.
func (a *Agent) resultFromEvents(ctx context.Context, run, callID string) (Result, error) {
	for e, err := range a.eventsSoFar(ctx, run) {
		if err != nil {
			return Result{}, err
		}
		result, isComplete := resultOfEvent(e.Body)
		switch {
		case result.CallID == "" || result.CallID != callID:
		case !isComplete: // the full result is not in the log, since Result looked for it first
			return Result{}, event.ErrGone
		default:
			return result, nil
		}
	}
	return Result{}, event.ErrNotFound
}

// resultOfEvent returns the result in the event that ended a call. isComplete is false if the event has only a part of
// the result. For any other event, both results are zero.
func resultOfEvent(body event.Body) (result Result, isComplete bool) {
	switch b := body.(type) {
	case event.ToolResult:
		result = Result{CallID: b.CallID, Tool: b.Tool, Server: b.Server, Payload: b.Payload, Content: b.Content, Structured: b.Structured}
		return result, b.Truncated == nil
	case event.ToolError:
		quoted, _ := json.Marshal(b.Payload) // strings always marshal
		text := jsonText(`{"type":"text","text":` + string(quoted) + `}`)
		result = Result{CallID: b.CallID, Tool: b.Tool, Server: b.Server, IsError: true, Payload: quoted, Content: []jsonText{text}}
		return result, b.Truncated == nil
	}
	return Result{}, false
}

// resultPath returns the URL path at which a result can be read in full.
func (a *Agent) resultPath(runID, callID string) string {
	return a.BasePath + "/runs/" + runID + "/results/" + url.PathEscape(callID)
}

// fieldErrors converts problems of single fields to the type that events have.
func fieldErrors(fields []mcp.ContentField) []event.FieldError {
	var out []event.FieldError
	for _, f := range fields {
		out = append(out, event.FieldError(f))
	}
	return out
}

// withChild returns o with what the child run of the call has used, and adds the id of the child run to the event
// of o. It changes nothing for a call without a child run.
func (o callOutcome) withChild(exec *toolExecution) callOutcome {
	o.spent = exec.spent
	if exec.childID == "" {
		return o
	}
	if o.errorEvent != nil {
		o.errorEvent.ChildRunID = exec.childID
	} else {
		o.resultEvent.ChildRunID = exec.childID
	}
	return o
}
