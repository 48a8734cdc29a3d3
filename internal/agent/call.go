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

// call holds one tool call from a model's answer.
type call struct {
	event.Call
	args        jsonText // a JSON object; nil if the model's text is not one
	argsText    string   // the model's text if it is not a JSON object; "" otherwise
	argsProblem string   // what is wrong with argsText, for the model
	byClient    bool     // the API client executes the call
	edited      bool     // a person changed args
	foundTools  []string // the names of the tools that a call of the search tool found
}

// toolExecution holds a tool call while it is executed. Calls of a run and direct calls differ only in the values of
// these fields.
type toolExecution struct {
	*call
	tool          catalog.Tool
	toolExists    bool              // the run has a tool of this name
	preapproved   bool              // the caller of a direct call agreed to the call in advance
	refusal       string            // tells the model which limit of the turn forbids the call; "" if none does
	contextParams map[string]string // Request.Context
	caller        auth.Identity     // the user for whom the call is made
	runID         string            // "" for a direct call
	notifications *notificationSink // receives the server's notifications during the call; nil for a direct call
	loop          *loop             // answers the server's requests during the call; nil for a direct call
	index         int               // the call's position among the turn's calls that the agent executes, from 0
	replayed      *replay.Call      // what an earlier process did for the call; nil if nothing
	pending       *pendingInput     // what the call still needs before it is sent again; nil if nothing
	askedAgent    string            // the id of the agent that the call asks; "" for other tools
	// builtin executes a tool that the agent itself provides: the tool search, or asking an agent. It is nil for other
	// tools.
	builtin func(context.Context, *toolExecution) (*content.Result, error)

	result     *content.Result // the result of a call that succeeded, set by execute
	childID    string          // the id of the child run of a call that asks an agent; "" before the child starts
	spent      *event.Spent    // what the child run has used; nil before the child has ended
	toolReport *content.Result // the result with which the tool reported a failure; nil if it reported none
	hookResult *content.Result // the result that a hook supplied instead of the tool's; nil if none did
	abort      *abortError     // set if a hook ends the run
	duration   time.Duration   // how long the requests to the server, or builtin, took in total

	rule            string   // the access rule that allows the call; "" without rules
	decision        decision // whether the call may be made
	approvedVersion string   // the version of the tool that a person approved; "" if no person was asked
}

// callOutcome says how a call ended: resultEvent or errorEvent is set. Both are nil until the call has ended.
type callOutcome struct {
	resultEvent *event.ToolResult
	errorEvent  *event.ToolError
	fullResult  *content.Result // the complete result, of which resultEvent may have only a part; nil if the call failed
	resultURL   string          // where to read the full result or report; "" if it cannot be read
	abort       *abortError     // set if the run ends with the call
	spent       *event.Spent    // what the call's child run has used; nil if it has none
}

const maxForModel = 256 << 10 // bytes of text that one result adds to the conversation

// decision says whether a call may be made, and who decided.
type decision struct {
	verdict string // one of the constants below; "" until it is decided
	by      string // the subject of the person who decided; "" if no person was asked, or the person is anonymous
	reason  string // why the call was denied
	edited  bool   // a person changed the arguments
}

// The verdicts of a decision.
const (
	allowed  = "allowed"  // no approval is needed
	approved = "approved" // a person approved this call
	denied   = "denied"
	replaced = "replaced" // a hook supplied a result, and the tool was not called
)

// pendingInput holds what a call needs before it is sent again, and everything that any process needs to send it. It is
// stored in the run's notes, which readers never see, because the server's requestState may be secret.
//
// In a multi round-trip request (protocol 2026-07-28), the server answers with a list of what it requires, and the
// client sends the request again with the answers. No connection is open in between. So the run can be parked, and
// another process can send the request again; this is safe because the server has not executed the call yet. A question
// that a server asks during an open request (HeldOpen), in contrast, keeps the run in this process.
type pendingInput struct {
	// Required is what the call's server requires; nil if only a sign-in is missing.
	Required *content.InputRequired `json:"required,omitempty"`
	// Interrupts maps each of the server's requests, by key, to the id of the question to the run's owner.
	Interrupts map[string]string `json:"interrupts,omitempty"`
	Asked      int               `json:"asked,omitempty"` // how many questions the call has asked so far
	// SignIn is the sign-in that the owner must complete first; nil if none is needed. SignInInterrupt is the id of the
	// question about it.
	SignIn          *content.SignIn `json:"sign_in,omitempty"`
	SignInInterrupt string          `json:"sign_in_interrupt,omitempty"`
	SignInExpires   int64           `json:"sign_in_expires,omitempty"` // in ms since the Unix epoch, by the log's clock

	// The next three fields hold the call as it was sent.
	Args            jsonText `json:"args"`
	Edited          bool     `json:"edited,omitempty"`
	ApprovedVersion string   `json:"approved_version,omitempty"`

	answers map[string]mcp.ElicitationResult // the owner's answers to Required; nil before the owner was asked
}

// notificationSink appends the notifications that a server sends during one call. Its methods block while the run is
// suspended. Package mcp delivers one notification at a time, and none after the call.
type notificationSink struct {
	run  *run
	call event.Call
	err  error // the first failure to append
}

// appendProgress appends a progress notification as tool_progress.
func (s *notificationSink) appendProgress(ctx context.Context, progress mcp.Progress) {
	s.appendEvent(ctx, event.ToolProgress{Call: s.call, Progress: progress.Progress, Total: progress.Total, Message: progress.Message})
}

// appendLog appends the log message if it has data. If package mcp dropped messages before this one (message.Omitted),
// appendLog first appends a warning that says how many.
func (s *notificationSink) appendLog(ctx context.Context, message mcp.LogMessage) {
	if message.Omitted > 0 {
		text, _ := json.Marshal(fmt.Sprintf("%d log messages were left out here.", message.Omitted)) // strings always marshal
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: "warning", Logger: "answerd", Data: text})
	}
	if message.Data != nil {
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: message.Level, Logger: message.Logger, Data: message.Data})
	}
}

// appendEvent appends an event of the call, and blocks while the run is suspended. It stores the first error, or a
// panic, in s.err instead of returning it: package mcp, in whose goroutine it runs, cannot end the run. execute and
// relayEvent check s.err, so that the run ends if the log fails.
func (s *notificationSink) appendEvent(ctx context.Context, body event.Body) {
	err := catchPanic(func() error {
		if err := s.run.awaitOrder(ctx, body); err != nil {
			return err
		}
		if err := s.run.appendWhenResumed(ctx, body); err != nil {
			return err
		}
		return s.run.suspension.suspendAsRecorded()
	})
	if s.err == nil {
		s.err = err
	}
}

// parseArgs parses the model's arguments. If text is a JSON object, or empty, which counts as {}, it sets c.args.
// Otherwise it stores the text, cut to the limit, in c.argsText, and an explanation for the model in c.argsProblem.
// It does not try to repair the text.
func (c *call) parseArgs(text string) {
	trimmed := bytes.TrimSpace([]byte(text))
	if len(trimmed) == 0 {
		trimmed = []byte("{}")
	}
	limit := argsLimit(c.byClient)
	var object map[string]json.RawMessage
	err := json.Unmarshal(trimmed, &object)
	switch {
	case len(text) > limit:
		c.argsProblem = fmt.Sprintf("they are longer than %d bytes", limit)
		text = text[:limit]
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

// describeJSONError tells the model why text is not a JSON object, with the position of the invalid byte if it is
// known. err is the error from unmarshalling text.
func describeJSONError(text []byte, err error) string {
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return "they are a JSON " + wrongType.Value + ", not an object"
	}
	// Unmarshal returns the same type of error for truncated and for invalid text, but a Decoder does not.
	var value json.RawMessage
	if errors.Is(json.NewDecoder(bytes.NewReader(text)).Decode(&value), io.ErrUnexpectedEOF) {
		return "they end before the JSON object is complete"
	}
	broken, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return "they are not a JSON object"
	}
	const maxExcerpt = 20
	// broken.Offset counts the bytes that were read, including the invalid one.
	invalid := max(0, min(int(broken.Offset)-1, len(text)-1))
	excerpt := bytes.ToValidUTF8(text[invalid:min(len(text), invalid+maxExcerpt)], nil)
	return fmt.Sprintf("they are not a JSON object: at byte %d, %q is not valid JSON", invalid+1, excerpt)
}

// argsAsWritten returns the model's arguments unchanged, for the conversation.
func (c *call) argsAsWritten() string {
	if c.args != nil {
		return string(c.args)
	}
	return c.argsText
}

// executor says, for the call's events, who executes the call: event.Client for a tool of the API client, "" for
// answerd.
func (c *call) executor() event.Executor {
	if c.byClient {
		return event.Client
	}
	return ""
}

// isSet reports whether o says how the call ended. Before a turn's calls are executed, only calls that ended in an
// earlier process have an outcome (restoreCalls).
func (o callOutcome) isSet() bool { return o.resultEvent != nil || o.errorEvent != nil }

// failure returns a *mcp.CallError for this call. Both the model and the API client may read message.
func (exec *toolExecution) failure(kind mcp.ErrorKind, message string) error {
	return &mcp.CallError{Kind: kind, Tool: exec.Tool, Server: exec.Server, Message: message}
}

// canceledFailure returns the failure of a call that was cancelled because ctx ended. Usually the run or the direct
// caller is gone too, and the message is never read. But a run that has used up its time for tools continues, and its
// model needs the reason.
func (exec *toolExecution) canceledFailure(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), budget.ErrToolTimeUsed) {
		return exec.failure(mcp.Cancelled, "The run's time for tools is used up, so the call was given up.")
	}
	return exec.failure(mcp.Cancelled, recorded.CallCancelled)
}

// canceledOr returns the error of a call that could not continue because of err: a cancellation if ctx has ended, and
// otherwise err itself.
func (exec *toolExecution) canceledOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return exec.canceledFailure(ctx)
	}
	return err
}

// recordedDecision returns what a rule or a hook decided about the call in the recording that a rerun repeats. It
// returns the zero value if nothing was decided, or if the run is not a rerun.
func (exec *toolExecution) recordedDecision() recorded.Decision {
	if exec.loop == nil || exec.loop.agent.Repeat == nil {
		return recorded.Decision{}
	}
	return exec.loop.agent.Repeat.Decision(exec.runID, exec.CallID)
}

// contentList returns the result's content blocks. It never returns nil, so that JSON has [] and not null.
func contentList(res *content.Result) []jsonText {
	if res.Content == nil {
		return []jsonText{}
	}
	return res.Content
}

// textResult returns a result with one text block, or without a block if text is "".
func textResult(text string) *content.Result {
	if text == "" {
		return &content.Result{}
	}
	block, _ := json.Marshal(map[string]string{"type": "text", "text": text}) // strings always marshal
	return &content.Result{Content: []jsonText{block}}
}

// Limits on what one result adds to events and metadata, in bytes of JSON.
const (
	maxInEvent  = 256 << 10 // per event: payload, content and structured content together
	maxInline   = 64 << 10  // per block in an event, in base64 characters
	maxMetadata = 1 << 20   // per run: the arguments and results of all calls in the metadata
	minMetadata = 1 << 10   // guaranteed to each call in the metadata, however much the others used
)

// recordResult returns the outcome of a call that succeeded. In a run, the event has at most maxInEvent bytes of the
// result, and a longer result is also stored in full. The event of a direct call has the full result.
//
// The result is stored before its event is appended, because a reader of the event may follow the URL at once. If
// storing fails, the event says that the result is truncated and has no URL.
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

// recordFailure returns the outcome of a call that failed. The event has at most maxForModel bytes of the message. If
// the tool itself reported the failure (exec.toolReport) and the event cannot show the whole report, recordFailure also
// stores the report. If something is missing from the event but the report is not stored, resultURL is "".
func (a *Agent) recordFailure(ctx context.Context, exec *toolExecution, failed *mcp.CallError) callOutcome {
	failure := &event.ToolError{
		Call: exec.Call, Args: exec.args, ArgsText: exec.argsText,
		Kind: string(failed.Kind), Errors: fieldErrors(failed.Fields), DurationMS: exec.duration.Milliseconds(),
	}
	outcome := callOutcome{abort: exec.abort, errorEvent: failure}
	if exec.runID != "" {
		outcome.resultURL = a.resultPath(exec.runID, exec.CallID)
	}
	text, truncated := content.TruncateText(failed.Message, maxForModel, outcome.resultURL)
	// With hooks, do not store the report: the hook saw only the failure's text, so readers must not see more.
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

// storeResult stores a full result in the run's log, for Agent.Result, and reports whether it succeeded. It stores the
// result even if ctx has ended, because the result's event is appended then too. It only logs a failure: the run can
// continue, because its events contain what the model was given.
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

// encodeResult returns the JSON object that Agent.Result decodes. The content, which may be large, is already JSON, so
// encodeResult copies it behind the header's members without parsing it.
func encodeResult(call event.Call, res *content.Result) ([]byte, error) {
	header, err := json.Marshal(storedResultHeader{CallID: call.CallID, Tool: call.Tool, Server: call.Server, IsError: res.IsError})
	if err != nil {
		return nil, err
	}
	const brackets = 64 // an upper bound for the names and brackets below
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

// storedResultHeader holds the members of a stored result that answerd adds to what the server sent.
type storedResultHeader struct {
	CallID  string `json:"call_id"`
	Tool    string `json:"tool"`
	Server  string `json:"server"`
	IsError bool   `json:"is_error"`
}

// Result holds the complete result of one of a run's calls.
type Result struct {
	CallID     string          `json:"call_id"`
	Tool       string          `json:"tool"`
	Server     string          `json:"server"`
	IsError    bool            `json:"is_error"`
	Payload    json.RawMessage `json:"payload"` // computed from Content and Structured, so not stored
	Content    []jsonText      `json:"content"`
	Structured json.RawMessage `json:"structured,omitempty"`
}

// Result returns the full result of one of a run's calls. The call's event may have only a part of it, and the full
// result is then stored separately. The error is event.ErrNotFound if the run has no such call or the call has not
// ended, event.ErrGone if the full result is no longer stored, or an error from reading the log.
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
	sent := content.Result{Content: r.Content, Structured: r.Structured}
	r.Payload = sent.Payload()
	return r, nil
}

// resultFromEvents returns a call's result from the event that ended the call. A result that fits into its event is not
// stored separately. The error is event.ErrNotFound, event.ErrGone if the event has only a part of the result, or an
// error of the log.
func (a *Agent) resultFromEvents(ctx context.Context, run, callID string) (Result, error) {
	for e, err := range a.eventsSoFar(ctx, run) {
		if err != nil {
			return Result{}, err
		}
		result, isComplete := resultOfEvent(e.Body)
		if result.CallID == "" || result.CallID != callID {
			continue
		}
		if !isComplete { // Result looked for the full result first, so the log does not have it
			return Result{}, event.ErrGone
		}
		return result, nil
	}
	return Result{}, event.ErrNotFound
}

// resultOfEvent returns the result contained in the event that ended a call. isComplete is false if the event has only
// a part of the result. For other events, resultOfEvent returns zero values.
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

// resultPath returns the URL path where a call's full result can be read.
func (a *Agent) resultPath(runID, callID string) string {
	return a.BasePath + "/runs/" + runID + "/results/" + url.PathEscape(callID)
}

// fieldErrors converts problems with single fields to the type that events use.
func fieldErrors(fields []mcp.ContentField) []event.FieldError {
	var out []event.FieldError
	for _, f := range fields {
		out = append(out, event.FieldError(f))
	}
	return out
}

// withChild returns o with the id of the call's child run in its event, and with what the child has used, if any.
func (o callOutcome) withChild(exec *toolExecution) callOutcome {
	o.spent = exec.spent
	if o.errorEvent != nil {
		o.errorEvent.ChildRunID = exec.childID
	} else {
		o.resultEvent.ChildRunID = exec.childID
	}
	return o
}
