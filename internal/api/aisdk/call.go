package aisdk

import (
	"encoding/json"

	"answerd/internal/event"
)

// encodeCall is the events of one tool call.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			enc.names[b.CallID] = b.Tool
		}
		enc.emit(enc.of(b.CallID, chunk{"type": "tool-input-start", "toolName": b.Tool}))
	case event.ToolCallArgs:
		enc.emit(chunk{"type": "tool-input-delta", "toolCallId": b.CallID, "inputTextDelta": b.Delta})
	case event.ToolCall:
		if b.Args == nil {
			enc.emit(enc.of(b.CallID, chunk{"type": "tool-input-error", "toolName": b.Tool, "input": b.ArgsText, "errorText": "The arguments are not a JSON object."}))
			return
		}
		enc.emit(enc.of(b.CallID, chunk{"type": "tool-input-available", "toolName": b.Tool, "input": b.Args}))
	case event.ToolResult:
		// output must be there, and may be null.
		enc.emit(enc.of(b.CallID, chunk{"type": "tool-output-available", "output": b.Payload}))
	case event.ToolError:
		if enc.refused[b.CallID] {
			enc.emit(chunk{"type": "tool-output-denied", "toolCallId": b.CallID})
			return
		}
		enc.emit(enc.of(b.CallID, chunk{"type": "tool-output-error", "errorText": b.Payload}))
	case event.ApprovalRequired:
		enc.asked[b.CallID] = true
		enc.emit(chunk{"type": "tool-approval-request", "approvalId": b.InterruptID, "toolCallId": b.CallID})
	case event.ApprovalResolved:
		enc.refused[b.CallID] = enc.asked[b.CallID] && !b.Approved
	case event.ToolProgress:
		data := chunk{"callId": b.CallID, "tool": b.Tool, "progress": b.Progress}
		if b.Total != 0 {
			data["total"] = b.Total
		}
		if b.Message != "" {
			data["message"] = b.Message
		}
		enc.emit(chunk{"type": "data-tool-progress", "id": b.CallID, "data": data})
	case event.LogMessage:
		enc.emit(chunk{"type": "data-log", "transient": true, "data": chunk{
			"callId": b.CallID, "tool": b.Tool, "level": b.Level, "logger": b.Logger, "data": b.Data}})
	case event.Elicitation:
		enc.emit(chunk{"type": "tool-input-available", "toolCallId": b.InterruptID, "toolName": Elicitation, "dynamic": true, "input": question(b)})
	case event.ElicitationResolved:
		enc.emit(chunk{"type": "tool-output-available", "toolCallId": b.InterruptID, "dynamic": true, "output": chunk{"action": b.Action}})
	}
}

// of marks a chunk as one of that call. Client tools are those that the page declares,
// which the SDK knows by name; all others are dynamic.
func (enc *Encoder) of(callID string, c chunk) chunk {
	c["toolCallId"] = callID
	if enc.names[callID] == "" {
		c["dynamic"], c["providerExecuted"] = true, true
	}
	return c
}

func question(b event.Elicitation) chunk {
	in := chunk{"mode": b.Mode, "message": b.Message, "expiresAt": b.ExpiresAt}
	if b.Schema != nil {
		in["schema"] = json.RawMessage(b.Schema)
	}
	if b.URL != "" {
		in["url"] = b.URL
	}
	return in
}
