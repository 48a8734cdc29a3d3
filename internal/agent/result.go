package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"answerd/internal/event"
	"answerd/internal/mcp/content"
)

// Result is the whole result of a call of a run.
type Result struct {
	CallID     string          `json:"call_id"`
	Tool       string          `json:"tool"`
	Server     string          `json:"server"`
	IsError    bool            `json:"is_error"`
	Payload    json.RawMessage `json:"payload"` // not kept: it follows from the others
	Content    []jsonText      `json:"content"`
	Structured json.RawMessage `json:"structured,omitempty"`
}

// Result returns the whole result of a call of a run, which its event may only have a
// part of. event.ErrNotFound if the run has no such call, or it has not ended yet;
// event.ErrGone if it is no longer kept.
func (a *Agent) Result(ctx context.Context, run, callID string) (Result, error) {
	kept, err := a.Log.Result(ctx, run, callID)
	if errors.Is(err, event.ErrNotFound) {
		return a.resultInEvents(ctx, run, callID)
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

// resultInEvents finds the result that its event has whole, and so was not kept beside.
func (a *Agent) resultInEvents(ctx context.Context, run, callID string) (Result, error) {
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
					return wholeOf(b.Call, b.Truncated, Result{Payload: b.Payload, Content: b.Content, Structured: b.Structured})
				}
			case event.ToolError:
				if b.CallID == callID {
					quoted, _ := json.Marshal(b.Payload) // strings always marshal
					text := jsonText(`{"type":"text","text":` + string(quoted) + `}`)
					return wholeOf(b.Call, b.Truncated, Result{IsError: true, Payload: quoted, Content: []jsonText{text}})
				}
			}
		}
		if len(page.Events) == 0 || page.Ended {
			return Result{}, event.ErrNotFound
		}
	}
}

func wholeOf(c event.Call, t *event.Truncated, r Result) (Result, error) {
	if t != nil {
		return Result{}, event.ErrGone // it could not be kept
	}
	r.CallID, r.Tool, r.Server = c.CallID, c.Tool, c.Server
	return r, nil
}
