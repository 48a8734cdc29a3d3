package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"answerd/internal/agent/record"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

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
func (a *Agent) recordResult(ctx context.Context, x *toolExecution, res *content.Result) callOutcome {
	end := callOutcome{fullResult: res, resultEvent: &event.ToolResult{
		Call: x.Call, Args: x.args, DurationMS: x.duration.Milliseconds(), SchemaViolations: fieldErrors(res.Violations),
	}}
	w := end.resultEvent
	if x.runID == "" {
		w.Payload, w.Content, w.Structured = res.Payload(), contentList(res), res.Structured
		return end
	}
	end.resultURL = a.resultPath(x.runID, x.CallID)
	brief := res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline, URL: end.resultURL})
	if brief.Incomplete {
		if !a.storeResult(ctx, x, res) {
			end.resultURL = ""
			brief = res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline})
		}
		w.Truncated = &event.Truncated{Bytes: res.Size(), URL: end.resultURL}
	}
	w.Payload, w.Content, w.Structured = brief.Payload, brief.Content, brief.Structured
	return end
}

// recordFailure returns the outcome of a call that failed. A tool's own report is also stored in
// full if the event has only a part of its text.
func (a *Agent) recordFailure(ctx context.Context, x *toolExecution, failed *mcp.CallError) callOutcome {
	end := callOutcome{abort: x.abort, errorEvent: &event.ToolError{
		Call: x.Call, Args: x.args, ArgsText: x.argsText, Kind: string(failed.Kind), Errors: fieldErrors(failed.Fields), DurationMS: x.duration.Milliseconds(),
	}}
	if x.runID != "" {
		end.resultURL = a.resultPath(x.runID, x.CallID)
	}
	text, cut := content.TruncateText(failed.Message, maxForModel, end.resultURL)
	// A hook saw only the text of the failure, so nothing else may be shown.
	own := x.toolReport != nil && a.Hooks == nil
	if x.runID != "" && own && (cut || !x.toolReport.IsText()) {
		end.errorEvent.Truncated = &event.Truncated{Bytes: x.toolReport.Size(), URL: end.resultURL}
		cut = !a.storeResult(ctx, x, x.toolReport)
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
func (a *Agent) storeResult(ctx context.Context, x *toolExecution, res *content.Result) bool {
	head, err := json.Marshal(storedResultHeader{x.CallID, x.Tool, x.Server, res.IsError})
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
		err = a.Log.SaveResult(context.WithoutCancel(ctx), x.runID, x.CallID, whole.Bytes())
	}
	if err != nil {
		a.Logger.WarnContext(ctx, "the whole result of a call could not be stored", "run_id", x.runID, "call_id", x.CallID, "bytes", res.Size(), "error", err)
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

// completeResult returns r as the result of a call, or event.ErrGone if the event has only a part of it: such a
// result would have been found in the log if it had been stored.
func completeResult(c event.Call, t *event.Truncated, r Result) (Result, error) {
	if t != nil {
		return Result{}, event.ErrGone // it could not be stored
	}
	r.CallID, r.Tool, r.Server = c.CallID, c.Tool, c.Server
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

// result returns the result of the call, or its failure, for the end of the child.
func (c *childRun) result(end event.Event) (*content.Result, error) {
	switch b := end.Body.(type) {
	case event.FinalAnswer:
		block, err := json.Marshal(map[string]string{"type": "text", "text": b.Answer})
		if err != nil {
			return nil, fmt.Errorf("encode the answer of a child run: %w", err)
		}
		return &content.Result{Content: []json.RawMessage{block}}, nil
	case event.RunError:
		return nil, c.x.failure(mcp.Execution, strings.TrimSpace(fmt.Sprintf("The agent %s failed (%s): %s\n%s", c.x.asks, b.Code, b.Message, b.PartialAnswer)))
	}
	return nil, c.x.failure(mcp.Cancelled, "The agent "+c.x.asks+" was cancelled.")
}

// lostFailure returns the failure of a call whose child cannot be read any more, or the error of the log.
func (c *childRun) lostFailure(err error) error {
	if errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrNotFound) {
		return c.x.failure(mcp.UnknownOutcome, "What the agent "+c.x.asks+" did is no longer kept.")
	}
	return err
}

// withChild adds the child run of the call to its event.
func (o callOutcome) withChild(x *toolExecution) callOutcome {
	o.spent = x.spent
	if x.childID == "" {
		return o
	}
	if o.errorEvent != nil {
		o.errorEvent.ChildRunID = x.childID
	} else {
		o.resultEvent.ChildRunID = x.childID
	}
	return o
}

// countChild adds to the metadata of the answer what a child has used.
func (l *loop) countChild(s event.Spent) {
	if l.childSpent.Cost == nil && l.childSpent.Calls == 0 && l.childSpent.Usage == (event.Usage{}) {
		l.childSpent.Cost = new(float64)
	}
	l.childSpent = l.childSpent.Plus(s)
	l.addUsage(s.Usage)
}

// cost returns what the run and its children have cost; nil if a price is unknown.
func (l *loop) cost() *float64 {
	all, children := l.metadata.Usage, l.childSpent.Usage
	own := l.budget.CostOf(event.Usage{
		InputTokens: all.InputTokens - children.InputTokens, OutputTokens: all.OutputTokens - children.OutputTokens, TotalTokens: all.TotalTokens - children.TotalTokens,
	})
	if children == (event.Usage{}) {
		return own
	}
	return event.Spent{Cost: own}.Plus(event.Spent{Cost: l.childSpent.Cost}).Cost
}
