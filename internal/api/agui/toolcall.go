package agui

import (
	"encoding/json"
	"fmt"
	"time"

	"answerd/internal/event"
)

// encodeCall encodes the events of tool calls. The client's own calls look like those of the service, and their ids are
// also collected in pendingCalls for finishRun.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			enc.pendingCalls = append(enc.pendingCalls, b.CallID)
		}
		enc.emitEvent("TOOL_CALL_START", fields{"toolCallId": b.CallID, "toolCallName": b.Tool, "parentMessageId": enc.stepMessageID()})
	case event.ToolCallArgs:
		enc.streamedArgs[b.CallID] = true
		enc.emitEvent("TOOL_CALL_ARGS", fields{"toolCallId": b.CallID, "delta": b.Delta})
	case event.ToolCall:
		if !enc.streamedArgs[b.CallID] { // the model's endpoint sent the arguments as a whole, or not at all
			enc.emitEvent("TOOL_CALL_ARGS", fields{"toolCallId": b.CallID, "delta": b.Arguments()})
		}
		enc.emitEvent("TOOL_CALL_END", fields{"toolCallId": b.CallID})
	case event.ToolProgress:
		content := fields{"tool": b.Tool, "server": b.Server, "toolCallId": b.CallID, "progress": b.Progress}
		if b.Total != 0 {
			content["total"] = b.Total
		}
		if b.Message != "" {
			content["message"] = b.Message
		}
		enc.emitEvent("ACTIVITY_SNAPSHOT", fields{
			"messageId": enc.head.RunID + "-" + b.CallID + "-progress", "activityType": "tool_progress",
			"content": content, "replace": true,
		})
	case event.LogMessage:
		enc.emitEvent("CUSTOM", fields{"name": "log", "value": b})
	case event.ToolResult:
		enc.encodeResult(b.Call, b.Text(), nil)
	case event.ToolError:
		enc.encodeResult(b.Call, "Error: "+b.Payload, fields{"isError": true, "kind": b.Kind})
	}
}

// encodeResult encodes the result of the call c. metadata describes an error, and is nil if the call succeeded. Version
// 0.0.59 has no member for metadata, so its clients recognize a failed call only by its text.
func (enc *Encoder) encodeResult(c event.Call, text string, metadata fields) {
	id := enc.head.RunID + "-" + c.CallID + "-result"
	f := fields{"messageId": id, "toolCallId": c.CallID, "role": "tool", "content": text}
	if enc.head.V1 && metadata != nil {
		f["metadata"] = metadata
	}
	enc.emitEvent("TOOL_CALL_RESULT", f)
}

// interruptFields returns the interrupt in AG-UI's form. responseSchema describes the payload with which the client
// resolves it.
func interruptFields(interrupt event.Interrupt) fields {
	expiresAt := time.UnixMilli(interrupt.ExpiresAt).UTC() // AG-UI requires an ISO 8601 time
	f := fields{"id": interrupt.ID, "message": interrupt.Message, "expiresAt": expiresAt.Format(time.RFC3339)}
	switch interrupt.Kind {
	case event.KindApproval:
		f["reason"] = "tool_call"
		f["toolCallId"] = interrupt.CallID
		// A child run's call is not in this stream: toolCallId is the parent's call, which shows other arguments. So
		// the message contains the child's arguments.
		if interrupt.ChildRunID != "" {
			f["message"] = fmt.Sprintf("%s\n\nArguments: %s", interrupt.Message, interrupt.Args)
		}
		f["responseSchema"] = json.RawMessage(approvalSchema)
		return f
	case event.KindBudget:
		f["reason"] = "budget"
		f["responseSchema"] = json.RawMessage(budgetSchema)
		f["metadata"] = fields{"limit": interrupt.Limit, "used": interrupt.Used, "max": interrupt.Max}
		return f
	}
	f["reason"] = "input_required"
	if interrupt.Schema != nil {
		f["responseSchema"] = interrupt.Schema
	}
	if interrupt.URL != "" {
		f["metadata"] = fields{"url": interrupt.URL}
	}
	return f
}

// approvalSchema describes the payload that resolves an approval (Answer.InputFor).
const approvalSchema = `{"type":"object","properties":{"approved":{"type":"boolean"},"reason":{"type":"string"},"editedArgs":{"type":"object"}},"required":["approved"]}`

// budgetSchema describes the payload that resolves a budget limit (Answer.InputFor).
const budgetSchema = `{"type":"object","properties":{"approved":{"type":"boolean"},"reason":{"type":"string"},"max":{"type":"number"}},"required":["approved"]}`
