package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// Bounds of what one result adds elsewhere. They count bytes of JSON.
const (
	maxForModel = 256 << 10 // to the conversation
	maxInEvent  = 256 << 10 // to its event: payload, content and structured content together
	maxInline   = 64 << 10  // characters of base64 of one block in an event
	maxMetadata = 1 << 20   // of all calls of a run to its metadata
	minMetadata = 1 << 10   // of one of them, whatever the others took
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
		return a.resultInEvents(run, callID)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read a result: %w", err)
	}
	var r Result
	if err := json.Unmarshal(kept, &r); err != nil {
		return Result{}, fmt.Errorf("decode a kept result: %w", err)
	}
	r.Payload = (&mcp.Result{Content: r.Content, Structured: r.Structured}).Payload()
	return r, nil
}

// resultInEvents finds the result that its event has whole, and so was not kept beside.
func (a *Agent) resultInEvents(run, callID string) (Result, error) {
	for pos := int64(0); ; {
		page, err := a.Log.After(run, pos)
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

// report is the ending of a call that worked. Within a run its event is bounded, and what
// that leaves out is kept whole beside it; a direct call has nothing but its answer.
func (a *Agent) report(ctx context.Context, in *invocation, res *mcp.Result) ending {
	end := ending{result: res, worked: &event.ToolResult{Call: in.Call, Args: in.args, DurationMS: in.took.Milliseconds()}}
	w := end.worked
	if in.runID == "" {
		w.Payload, w.Content, w.Structured = res.Payload(), contentOf(res), res.Structured
		return end
	}
	end.where = in.where()
	brief := res.Brief(mcp.BriefOptions{Max: maxInEvent, Binary: maxInline, Where: end.where})
	if brief.Cut {
		if !a.keep(ctx, in, res) {
			end.where = ""
			brief = res.Brief(mcp.BriefOptions{Max: maxInEvent, Binary: maxInline})
		}
		w.Truncated = &event.Truncated{Bytes: res.Size(), URL: end.where}
	}
	w.Payload, w.Content, w.Structured = brief.Payload, brief.Content, brief.Structured
	return end
}

// reportFailure is the ending of a call that failed. A tool's own report is kept whole
// where its text in the event is not all of it.
func (a *Agent) reportFailure(ctx context.Context, in *invocation, failed *mcp.CallError) ending {
	end := ending{abort: in.abort, failed: &event.ToolError{
		Call: in.Call, Args: in.args, ArgsText: in.argsText, Kind: string(failed.Kind), DurationMS: in.took.Milliseconds(),
	}}
	if in.runID != "" {
		end.where = in.where()
	}
	text, cut := mcp.CutText(failed.Message, maxForModel, end.where)
	// A hook was shown the text of the failure and nothing else, so nobody is shown more.
	own := in.reported != nil && failed.Kind == mcp.Execution && a.Hooks == nil
	if in.runID != "" && own && (cut || !in.reported.IsText()) {
		end.failed.Truncated = &event.Truncated{Bytes: in.reported.Size(), URL: end.where}
		cut = !a.keep(ctx, in, in.reported)
	}
	if cut {
		end.where = ""
		text, _ = mcp.CutText(failed.Message, maxForModel, "")
		end.failed.Truncated = &event.Truncated{Bytes: len(failed.Message)}
	}
	end.failed.Payload = text
	return end
}

// keep keeps a result whole in the log of its run. Without it the run goes on: the
// parts of the result that matter for it are in its events.
func (a *Agent) keep(ctx context.Context, in *invocation, res *mcp.Result) bool {
	head, err := json.Marshal(keptHead{in.CallID, in.Tool, in.Server, res.IsError})
	if err == nil {
		// The rest is JSON already, and large: it is copied and not read again.
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
		// Like its event, it outlives a turn that is given up.
		err = a.Log.KeepResult(context.WithoutCancel(ctx), in.runID, in.CallID, whole.Bytes())
	}
	if err != nil {
		a.Logger.WarnContext(ctx, "a result is not kept whole", "run_id", in.runID, "call_id", in.CallID, "bytes", res.Size(), "error", err)
	}
	return err == nil
}

// keptHead is what a kept result has besides what its server sent.
type keptHead struct {
	CallID  string `json:"call_id"`
	Tool    string `json:"tool"`
	Server  string `json:"server"`
	IsError bool   `json:"is_error"`
}

// where is the path at which the whole result of a run's call can be read.
func (in *invocation) where() string {
	return "/runs/" + in.runID + "/results/" + url.PathEscape(in.CallID)
}

// message is the ending as the model is told of it.
func (l *loop) message(c *call, end ending) llm.Message {
	m := llm.Message{Role: llm.ToolRole, CallID: c.CallID, Tool: c.Tool}
	if end.failed != nil {
		m.Text, m.Failed = l.budget.takeResult(string(errorObject(end.failed.Payload)), end.where), true
		return m
	}
	text, media := l.shown.exhibit(c, end.result)
	text, _ = mcp.CutText(text, maxForModel, end.where)
	m.Text, m.Media = l.budget.takeResult(text, end.where), media
	return m
}

// errorObject is a failure in the conversation and in the metadata.
func errorObject(text string) jsonText {
	quoted, _ := json.Marshal(map[string]string{"error": text}) // strings always marshal
	return quoted
}

// record adds a call to the metadata (S2.8). What a run returns of its calls is bounded
// as a whole; beyond that, each is there with its beginning.
func (l *loop) record(c *call, end ending) {
	params := c.params()
	if len(params) > l.metadataLeft() {
		text, _ := mcp.CutText(string(params), minMetadata, "")
		params, _ = json.Marshal(map[string]string{"args_text": text})
	}
	l.metaSize += len(params)
	var result jsonText
	if end.failed != nil {
		text, _ := mcp.CutText(end.failed.Payload, l.metadataLeft(), end.where)
		result = errorObject(text)
	} else {
		result = mcp.CutValue(end.worked.Payload, l.metadataLeft(), end.where)
	}
	l.metaSize += len(result)
	l.meta.ToolNames = append(l.meta.ToolNames, c.Tool)
	l.meta.ToolParams = append(l.meta.ToolParams, params)
	l.meta.ToolResults = append(l.meta.ToolResults, result)
}

// metadataLeft is how many bytes the next entry may have.
func (l *loop) metadataLeft() int { return max(maxMetadata-l.metaSize, minMetadata) }
