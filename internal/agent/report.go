package agent

import (
	"bytes"
	"context"
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// Bounds of what one result adds elsewhere. They count bytes of JSON.
const (
	maxForModel = 256 << 10 // to the conversation
	maxInEvent  = 256 << 10 // to its event: payload, content and structured content together
	maxInline   = 64 << 10  // characters of base64 of one block in an event
	maxMetadata = 1 << 20   // of all calls of a run to its metadata
	minMetadata = 1 << 10   // of one of them, whatever the others took
)

// report is the ending of a call that worked. Within a run its event is bounded, and what
// that leaves out is kept whole beside it; a direct call has nothing but its answer.
func (a *Agent) report(ctx context.Context, in *invocation, res *content.Result) ending {
	end := ending{result: res, worked: &event.ToolResult{
		Call: in.Call, Args: in.args, DurationMS: in.took.Milliseconds(), SchemaViolations: fieldErrors(res.Violations),
	}}
	w := end.worked
	if in.runID == "" {
		w.Payload, w.Content, w.Structured = res.Payload(), contentOf(res), res.Structured
		return end
	}
	end.where = placeOf(in.runID, in.CallID)
	brief := res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline, URL: end.where})
	if brief.Incomplete {
		if !a.keep(ctx, in, res) {
			end.where = ""
			brief = res.Truncate(content.TruncateOptions{MaxBytes: maxInEvent, MaxBinary: maxInline})
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
		Call: in.Call, Args: in.args, ArgsText: in.argsText, Kind: string(failed.Kind), Errors: fieldErrors(failed.Fields), DurationMS: in.took.Milliseconds(),
	}}
	if in.runID != "" {
		end.where = placeOf(in.runID, in.CallID)
	}
	text, cut := content.TruncateText(failed.Message, maxForModel, end.where)
	// A hook was shown the text of the failure and nothing else, so nobody is shown more.
	own := in.reported != nil && a.Hooks == nil
	if in.runID != "" && own && (cut || !in.reported.IsText()) {
		end.failed.Truncated = &event.Truncated{Bytes: in.reported.Size(), URL: end.where}
		cut = !a.keep(ctx, in, in.reported)
	}
	if cut {
		end.where = ""
		text, _ = content.TruncateText(failed.Message, maxForModel, "")
		end.failed.Truncated = &event.Truncated{Bytes: len(failed.Message)}
	}
	end.failed.Payload = text
	return end
}

// keep keeps a result whole in the log of its run. Without it the run goes on: the
// parts of the result that matter for it are in its events.
func (a *Agent) keep(ctx context.Context, in *invocation, res *content.Result) bool {
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
		err = a.Log.SaveResult(context.WithoutCancel(ctx), in.runID, in.CallID, whole.Bytes())
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
