package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
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
	byClient    bool     // the caller executes it
	edited      bool     // a person changed args
	foundTools  []string // the names of the tools that it found, if it was a tool search
}

// toolExecution holds a tool call while it is executed. Calls of a run and direct calls differ
// only in the values of these fields.
type toolExecution struct {
	*call
	tool          catalog.Tool
	exists        bool   // the run has a tool of this name
	preapproved   bool   // the caller of a direct call has agreed to it in advance
	refusal       string // why the call is refused; "" if it is not
	contextParams map[string]string
	caller        auth.Identity     // on whose behalf
	runID         string            // "" for a direct call
	notifications *notificationSink // receives the server's notifications during the call; nil for a direct call
	loop          *loop             // answers the server's requests during the call; nil for a direct call
	index         int               // position of the call in its turn, from 0
	replayed      *replay.Call      // what other processes did for the call; nil if nothing
	pending       *pendingInput     // what its server requires before the call is sent again; nil if nothing
	asks          string            // the agent that the call asks; "" for any other tool
	// builtin executes a tool of the agent's own; nil for a server's tool.
	builtin func(context.Context, *toolExecution) (*content.Result, error)

	result     *content.Result // set by execute
	childID    string          // of a call that asks an agent: the child run, once there is one
	spent      *event.Spent    // by the child run, once it has ended
	toolReport *content.Result // the tool's own report of its failure
	hookResult *content.Result // a hook's answer in place of the tool's; nil if no hook answered
	abort      *abortError     // set by a hook that ends the run
	duration   time.Duration   // of execute

	rule            string   // the rule of auth.Rules that allows the call; "" without rules
	decision        decision // whether the call may be made
	approvedVersion string   // the tool's version that a person approved; "" if no person was asked
}

// callOutcome tells how a call ended: resultEvent or errorEvent is set.
type callOutcome struct {
	resultEvent *event.ToolResult
	errorEvent  *event.ToolError
	fullResult  *content.Result // of a call that succeeded
	resultURL   string          // where the full result can be read; "" if nowhere
	abort       *abortError     // set if the run ends with the call
	spent       *event.Spent    // by the child run of the call; nil if it has none
}

const maxArgs = 64 << 10 // bytes of one call's arguments

const maxForModel = 256 << 10 // bytes of text that one result adds to the conversation

// decision records whether a call may be made, and who decided that.
type decision struct {
	verdict string // "" until it is decided
	by      string // subject of the person who decided; "" if no decision was needed, or the person is anonymous
	why     string // the reason of a denial
	edited  bool   // a person changed the arguments
}

// The verdicts of a decision.
const (
	allowed  = "allowed"  // no approval is needed
	approved = "approved" // a person approved this call
	denied   = "denied"
	replaced = "replaced" // a hook answered instead; the tool was not called
)

// pendingInput is what a call requires before it is sent again, and what any process needs to do so.
// Notes of the run have it. Readers never see it, since the server's requestState may be a secret.
//
// Protocol 2026-07-28 lets a server end a request with what it requires, and the client sends the request again
// with the answers. No connection stays open meanwhile, so such a run can be parked, and another process can
// send the request again: it has not been executed before. A question within an open request (HeldOpen) keeps
// the run in this process instead.
type pendingInput struct {
	Required *content.InputRequired `json:"required,omitempty"`
	// Interrupts are the ids of the questions to the owner, by the key of the server's request.
	Interrupts map[string]string `json:"interrupts,omitempty"`
	Asked      int               `json:"asked,omitempty"` // questions of the call so far
	// SignIn is what the owner has to do first, and SignInInterrupt the id of the question for it.
	SignIn          *content.SignIn `json:"sign_in,omitempty"`
	SignInInterrupt string          `json:"sign_in_interrupt,omitempty"`
	SignInExpires   int64           `json:"sign_in_expires,omitempty"` // in ms since the Unix epoch, of the log's time

	// The call as it was sent.
	Args            jsonText `json:"args"`
	Edited          bool     `json:"edited,omitempty"`
	ApprovedVersion string   `json:"approved_version,omitempty"`

	answers map[string]mcp.ElicitationResult // to what is Required; nil before the owner was asked
}

// interruptIDs returns the ids of the questions; none of a nil pendingInput.
func (p *pendingInput) interruptIDs() []string {
	if p == nil {
		return nil
	}
	ids := slices.Collect(maps.Values(p.Interrupts))
	if p.SignInInterrupt != "" {
		ids = append(ids, p.SignInInterrupt)
	}
	return ids
}

// notificationSink appends a server's notifications during one call as events. While the run is
// suspended it waits. Package mcp calls it for one notification at a time, and not after the
// call.
type notificationSink struct {
	run  *run
	call event.Call
	err  error // the first failure to append
}

// appendProgress appends a progress notification as tool_progress.
func (s *notificationSink) appendProgress(ctx context.Context, p mcp.Progress) {
	s.appendEvent(ctx, event.ToolProgress{Call: s.call, Progress: p.Progress, Total: p.Total, Message: p.Message})
}

// appendLog appends a log message. If messages before it were dropped, it first appends a line
// that says so.
func (s *notificationSink) appendLog(ctx context.Context, m mcp.LogMessage) {
	if m.Omitted > 0 {
		text, _ := json.Marshal(fmt.Sprintf("%d log messages were left out here.", m.Omitted)) // strings always marshal
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: "warning", Logger: "answerd", Data: text})
	}
	if m.Data != nil {
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: m.Level, Logger: m.Logger, Data: m.Data})
	}
}

// appendEvent appends an event of the call. It returns no error, because package mcp has no use for one: execute
// looks at err after the call. So a log that fails ends the run, and does not only lose a notification.
func (s *notificationSink) appendEvent(ctx context.Context, b event.Body) {
	err := func() (err error) {
		defer recoverTo(&err) // a panic must not reach package mcp, whose goroutine this is
		if err := s.run.awaitOrder(ctx, b); err != nil {
			return err
		}
		if err := s.run.appendWhenResumed(ctx, b); err != nil {
			return err
		}
		return s.run.suspension.recheck()
	}()
	if err != nil && s.err == nil {
		s.err = err
	}
}

// parseArgs parses the model's arguments. It never guesses: a text that is not a JSON object is
// kept as text, and the model gets an error that explains what is wrong.
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

// describeJSONError explains to the model why text is not a JSON object, and at which byte.
func describeJSONError(text []byte, err error) string {
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return "they are a JSON " + wrongType.Value + ", not an object"
	}
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
	return fmt.Sprintf("they are not a JSON object: at byte %d, %q is not valid JSON", at+1, bytes.ToValidUTF8(text[at:min(len(text), at+20)], nil))
}

// argsAsWritten returns the model's arguments unchanged, for the conversation.
func (c *call) argsAsWritten() string {
	if c.args != nil {
		return string(c.args)
	}
	return c.argsText
}

// executor returns who executes the call, as events say it; "" means answerd.
func (c *call) executor() event.Executor {
	if c.byClient {
		return event.Client
	}
	return ""
}

// isSet reports whether the call has ended, in this process or in another one.
func (o callOutcome) isSet() bool { return o.resultEvent != nil || o.errorEvent != nil }

// failure returns a failure of the call with a message for the model and the caller.
func (exec *toolExecution) failure(kind mcp.ErrorKind, message string) error {
	return &mcp.CallError{Kind: kind, Tool: exec.Tool, Server: exec.Server, Message: message}
}

// canceledFailure returns the failure of a call that ctx ended. Usually the run or its caller
// has gone. But a run whose time for tools is used up continues, and its model needs the reason.
func (exec *toolExecution) canceledFailure(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), budget.ErrToolTimeUsed) {
		return exec.failure(mcp.Cancelled, "The run's time for tools is used up, so the call was given up.")
	}
	return exec.failure(mcp.Cancelled, recorded.CallCancelled)
}

// recordedDecision returns what a rule or a hook decided about the call, if the run repeats a recorded one.
func (exec *toolExecution) recordedDecision() (d recorded.Decision) {
	if exec.loop != nil && exec.loop.agent.Repeat != nil {
		d = exec.loop.agent.Repeat.Decision(exec.runID, exec.CallID)
	}
	return d
}

// contentList returns the content blocks of a result, never nil.
func contentList(res *content.Result) []jsonText {
	if res.Content == nil {
		return []jsonText{}
	}
	return res.Content
}

// Bounds of what one result adds elsewhere, in bytes of JSON.
const (
	maxInEvent  = 256 << 10 // to its event: payload, content and structured content together
	maxInline   = 64 << 10  // characters of base64 of one block in an event
	maxMetadata = 1 << 20   // of all calls of a run to its metadata
	minMetadata = 1 << 10   // of one call, whatever the other calls used
)

// recordResult returns the outcome of a call that succeeded. The event of a run's call is
// bounded; a result that exceeds the bound is also stored in full. A direct call returns the
// full result. The result is stored before its event is appended, because a reader of the event may follow its
// URL at once. If it cannot be stored, the event says that it is truncated and has no URL.
func (a *Agent) recordResult(ctx context.Context, exec *toolExecution, res *content.Result) callOutcome {
	end := callOutcome{fullResult: res, resultEvent: &event.ToolResult{
		Call: exec.Call, Args: exec.args, DurationMS: exec.duration.Milliseconds(), SchemaViolations: fieldErrors(res.Violations),
	}}
	result := end.resultEvent
	if exec.runID == "" {
		result.Payload = res.Payload()
		result.Content = contentList(res)
		result.Structured = res.Structured
		return end
	}
	end.resultURL = a.resultPath(exec.runID, exec.CallID)
	brief := res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline, URL: end.resultURL})
	if brief.Incomplete {
		if !a.storeResult(ctx, exec, res) {
			end.resultURL = ""
			brief = res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline})
		}
		result.Truncated = &event.Truncated{Bytes: res.Size(), URL: end.resultURL}
	}
	result.Payload = brief.Payload
	result.Content = brief.Content
	result.Structured = brief.Structured
	return end
}

// recordFailure returns the outcome of a call that failed. A tool's own report is also stored in
// full if the event has only a part of its text.
func (a *Agent) recordFailure(ctx context.Context, exec *toolExecution, failed *mcp.CallError) callOutcome {
	end := callOutcome{abort: exec.abort, errorEvent: &event.ToolError{
		Call:       exec.Call,
		Args:       exec.args,
		ArgsText:   exec.argsText,
		Kind:       string(failed.Kind),
		Errors:     fieldErrors(failed.Fields),
		DurationMS: exec.duration.Milliseconds(),
	}}
	if exec.runID != "" {
		end.resultURL = a.resultPath(exec.runID, exec.CallID)
	}
	text, cut := content.TruncateText(failed.Message, maxForModel, end.resultURL)
	// A hook saw only the text of the failure, so nothing else may be shown.
	mayStore := exec.runID != "" && exec.toolReport != nil && a.Hooks == nil
	if mayStore && (cut || !exec.toolReport.IsText()) {
		end.errorEvent.Truncated = &event.Truncated{Bytes: exec.toolReport.Size(), URL: end.resultURL}
		cut = !a.storeResult(ctx, exec, exec.toolReport)
	}
	if cut {
		end.resultURL = ""
		text, _ = content.TruncateText(failed.Message, maxForModel, "")
		end.errorEvent.Truncated = &event.Truncated{Bytes: len(failed.Message)}
	}
	end.errorEvent.Payload = text
	return end
}

// storeResult stores a full result in the log of its run, and reports whether that succeeded. If
// it fails the run continues, because its events have what the model was given.
func (a *Agent) storeResult(ctx context.Context, exec *toolExecution, res *content.Result) bool {
	head, err := json.Marshal(storedResultHeader{exec.CallID, exec.Tool, exec.Server, res.IsError})
	if err == nil {
		// The content is already JSON, and large: it is copied and not parsed again.
		whole := bytes.NewBuffer(make([]byte, 0, len(head)+res.Size()+len(res.Content)+64))
		whole.Write(head[:len(head)-len("}")])
		whole.WriteString(`,"content":[`)
		for i, block := range res.Content {
			if i > 0 {
				whole.WriteByte(',')
			}
			whole.Write(block)
		}
		whole.WriteByte(']')
		if res.Structured != nil {
			whole.WriteString(`,"structured":`)
			whole.Write(res.Structured)
		}
		whole.WriteByte('}')
		// Like its event, the result is stored even if the turn was cancelled.
		err = a.Log.SaveResult(context.WithoutCancel(ctx), exec.runID, exec.CallID, whole.Bytes())
	}
	if err != nil {
		a.Logger.WarnContext(ctx, "the whole result of a call could not be stored",
			"run_id", exec.runID, "call_id", exec.CallID, "bytes", res.Size(), "error", err)
	}
	return err == nil
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
	Payload    json.RawMessage `json:"payload"` // not stored, because it follows from the others
	Content    []jsonText      `json:"content"`
	Structured json.RawMessage `json:"structured,omitempty"`
}

// Result returns the full result of a call of a run; its event may have only a part of it. Errors:
// event.ErrNotFound if the run has no such call, or it has not ended; event.ErrGone if the result
// is no longer stored.
func (a *Agent) Result(ctx context.Context, run, callID string) (Result, error) {
	if record.IsReserved(callID) {
		return Result{}, event.ErrNotFound
	}
	kept, err := a.Log.Result(ctx, run, callID)
	if errors.Is(err, event.ErrNotFound) {
		return a.resultFromEvents(ctx, run, callID)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read a result: %w", err)
	}
	var r Result
	if err := json.Unmarshal(kept, &r); err != nil {
		return Result{}, fmt.Errorf("decode a kept result: %w", err)
	}
	r.Payload = (&content.Result{Content: r.Content, Structured: r.Structured}).Payload()
	return r, nil
}

// resultFromEvents returns a result whose event is complete, so that it was not stored
// separately.
func (a *Agent) resultFromEvents(ctx context.Context, run, callID string) (Result, error) {
	for pos := int64(0); ; {
		page, err := a.Log.After(ctx, run, pos)
		if err != nil {
			return Result{}, fmt.Errorf("find a result: %w", err)
		}
		for _, e := range page.Events {
			pos = e.Seq
			switch b := e.Body.(type) {
			case event.ToolResult:
				if b.CallID == callID {
					return completeResult(b.Call, b.Truncated, Result{Payload: b.Payload, Content: b.Content, Structured: b.Structured})
				}
			case event.ToolError:
				if b.CallID == callID {
					quoted, _ := json.Marshal(b.Payload) // strings always marshal
					text := jsonText(`{"type":"text","text":` + string(quoted) + `}`)
					return completeResult(b.Call, b.Truncated, Result{IsError: true, Payload: quoted, Content: []jsonText{text}})
				}
			}
		}
		if len(page.Events) == 0 || page.Ended {
			return Result{}, event.ErrNotFound
		}
	}
}

// completeResult returns the complete result of a call, or event.ErrGone if the event has only a part of it: such a
// result would have been found in the log if it had been stored.
func completeResult(c event.Call, t *event.Truncated, r Result) (Result, error) {
	if t != nil {
		return Result{}, event.ErrGone // it could not be stored
	}
	r.CallID = c.CallID
	r.Tool = c.Tool
	r.Server = c.Server
	return r, nil
}

// resultPath returns the URL path at which a result can be read in full.
func (a *Agent) resultPath(runID, callID string) string {
	return a.BasePath + "/runs/" + runID + "/results/" + url.PathEscape(callID)
}

// fieldErrors returns problems of single fields in the form of events.
func fieldErrors(fields []mcp.ContentField) []event.FieldError {
	var out []event.FieldError
	for _, f := range fields {
		out = append(out, event.FieldError(f))
	}
	return out
}

// withChild adds the child run of the call to its event.
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
