package agui

import (
	"encoding/json"
	"slices"
	"time"

	"answerd/internal/event"
)

// encodeCall is the events of one tool call.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			enc.pending = append(enc.pending, b.CallID)
		}
		enc.emit("TOOL_CALL_START", fields{"toolCallId": b.CallID, "toolCallName": b.Tool, "parentMessageId": enc.stepMessage()})
	case event.ToolCallArgs:
		enc.args[b.CallID] = true
		enc.emit("TOOL_CALL_ARGS", fields{"toolCallId": b.CallID, "delta": b.Delta})
	case event.ToolCall:
		if !enc.args[b.CallID] {
			args := b.ArgsText
			if b.Args != nil {
				args = string(b.Args)
			}
			enc.emit("TOOL_CALL_ARGS", fields{"toolCallId": b.CallID, "delta": args})
		}
		enc.emit("TOOL_CALL_END", fields{"toolCallId": b.CallID})
	case event.ToolProgress:
		content := fields{"tool": b.Tool, "server": b.Server, "toolCallId": b.CallID, "progress": b.Progress}
		if b.Total != 0 {
			content["total"] = b.Total
		}
		if b.Message != "" {
			content["message"] = b.Message
		}
		enc.emit("ACTIVITY_SNAPSHOT", fields{"messageId": enc.head.Key + "-" + b.CallID + "-progress", "activityType": "tool_progress", "content": content, "replace": true})
	case event.LogMessage:
		enc.emit("CUSTOM", fields{"name": "log", "value": b})
	case event.ToolResult:
		text := string(b.Payload)
		var s string
		if json.Unmarshal(b.Payload, &s) == nil {
			text = s
		}
		enc.result(b.Call, text, nil)
	case event.ToolError:
		enc.result(b.Call, "Error: "+b.Payload, fields{"isError": true, "kind": b.Kind})
	case event.ApprovalRequired:
		enc.asks = append(enc.asks, asked{b.InterruptID, b})
	case event.Elicitation:
		enc.asks = append(enc.asks, asked{b.InterruptID, b})
	case event.ApprovalResolved:
		enc.answered(b.InterruptID)
	case event.ElicitationResolved:
		enc.answered(b.InterruptID)
	}
}

// result is the end of a call. The event has no member for an error: clients of 0.0.59
// get it as text alone.
func (enc *Encoder) result(c event.Call, text string, metadata fields) {
	f := fields{"messageId": enc.head.Key + "-" + c.CallID + "-result", "toolCallId": c.CallID, "role": "tool", "content": text}
	if enc.head.V1 && metadata != nil {
		f["metadata"] = metadata
	}
	enc.emit("TOOL_CALL_RESULT", f)
}

func (enc *Encoder) answered(id string) {
	enc.asks = slices.DeleteFunc(enc.asks, func(a asked) bool { return a.id == id })
}

// interrupts is what a person has to answer before the run goes on.
func (enc *Encoder) interrupts() []fields {
	out := []fields{}
	for _, a := range enc.asks {
		f := fields{"id": a.id}
		switch b := a.body.(type) {
		case event.ApprovalRequired:
			f["reason"], f["message"], f["toolCallId"], f["expiresAt"] = "tool_call", b.Message, b.CallID, instant(b.ExpiresAt)
			f["responseSchema"] = json.RawMessage(approvalSchema)
		case event.Elicitation:
			f["reason"], f["message"], f["expiresAt"] = "input_required", b.Message, instant(b.ExpiresAt)
			if b.Schema != nil {
				f["responseSchema"] = b.Schema
			}
			if b.URL != "" {
				f["metadata"] = fields{"url": b.URL}
			}
		}
		out = append(out, f)
	}
	return out
}

// approvalSchema is what the payload of a resolved approval may be.
const approvalSchema = `{"type":"object","properties":{"approved":{"type":"boolean"},"reason":{"type":"string"},"editedArgs":{"type":"object"}},"required":["approved"]}`

func instant(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
