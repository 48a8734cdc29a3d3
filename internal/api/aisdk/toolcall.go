package aisdk

import (
	"answerd/internal/event"
)

// encodeCall encodes the events of tool calls, approvals and elicitations.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			enc.clients[b.CallID] = true
			return
		}
		enc.emitChunk(enc.callChunk(b.Call, chunk{"type": "tool-input-start", "toolName": b.Tool}))
	case event.ToolCallArgs:
		if enc.clients[b.CallID] {
			return
		}
		enc.emitChunk(chunk{"type": "tool-input-delta", "toolCallId": b.CallID, "inputTextDelta": b.Delta})
	case event.ToolCall:
		if enc.clients[b.CallID] {
			enc.held = append(enc.held, b)
			return
		}
		enc.encodeInput(b)
	case event.ToolResult:
		// The SDK requires the member output, which may be null.
		enc.emitChunk(enc.callEndChunk(b.Call, chunk{"type": "tool-output-available", "output": b.Payload}))
	case event.ToolError:
		if enc.refused[b.CallID] {
			enc.emitChunk(chunk{"type": "tool-output-denied", "toolCallId": b.CallID})
			return
		}
		enc.emitChunk(enc.callEndChunk(b.Call, chunk{"type": "tool-output-error", "errorText": b.Payload}))
	case event.ApprovalRequired:
		if enc.head.NoApprovals {
			return
		}
		if b.ChildRunID != "" {
			enc.encodeChildCall(b)
			return
		}
		enc.emitChunk(chunk{"type": "tool-approval-request", "approvalId": b.InterruptID, "toolCallId": b.CallID})
	case event.ApprovalResolved:
		if enc.children[b.InterruptID] {
			enc.endChildCall(b)
			return
		}
		enc.refused[b.CallID] = !b.Approved && !enc.head.NoApprovals
	case event.ToolProgress:
		data := chunk{"callId": b.CallID, "tool": b.Tool, "server": b.Server, "progress": b.Progress}
		if b.Total != 0 {
			data["total"] = b.Total
		}
		if b.Message != "" {
			data["message"] = b.Message
		}
		enc.emitChunk(chunk{"type": "data-tool-progress", "id": b.CallID, "data": data})
	case event.LogMessage:
		enc.emitChunk(chunk{"type": "data-log", "transient": true, "data": chunk{
			"callId": b.CallID, "tool": b.Tool, "server": b.Server, "level": b.Level, "logger": b.Logger, "data": b.Data}})
	case event.Elicitation:
		enc.asked[b.InterruptID] = b
		enc.emitChunk(elicitationCall(b, false))
	case event.ElicitationResolved:
		enc.emitChunk(elicitationCall(enc.asked[b.InterruptID], true))
		var output any = chunk{"action": b.Action}
		if given := enc.head.Outputs[b.InterruptID]; given != nil {
			output = given
		}
		enc.emitChunk(chunk{"type": "tool-output-available", "toolCallId": b.InterruptID, "dynamic": true, "output": output})
	}
}

// encodeChildCall encodes the approval of a call that an asked agent wants to make, as a call of its own: the part
// of the parent's call shows another tool and other arguments, and has room for one approval. That part gets an
// output until its own comes, because the SDK's helper posts approvals only if all other calls of the step have one.
func (enc *Encoder) encodeChildCall(b event.ApprovalRequired) {
	enc.children[b.InterruptID] = true
	waits := chunk{"type": "tool-output-available", "output": chunk{"status": "suspended"}}
	enc.emitChunk(enc.callEndChunk(event.Call{CallID: b.CallID}, waits))
	call := event.Call{CallID: b.InterruptID, Tool: b.Tool, Server: b.Server}
	enc.emitChunk(enc.callChunk(call, chunk{"type": "tool-input-available", "toolName": b.Tool, "input": b.Args}))
	enc.emitChunk(chunk{"type": "tool-approval-request", "approvalId": b.InterruptID, "toolCallId": b.InterruptID})
}

// endChildCall ends that call with the decision. Only the asked agent gets the result.
func (enc *Encoder) endChildCall(b event.ApprovalResolved) {
	if !b.Approved {
		enc.emitChunk(chunk{"type": "tool-output-denied", "toolCallId": b.InterruptID})
		return
	}
	call := event.Call{CallID: b.InterruptID}
	enc.emitChunk(enc.callEndChunk(call, chunk{"type": "tool-output-available", "output": chunk{"approved": true}}))
}

// encodeInput encodes the complete input of a call. For arguments that are not a JSON object, the
// protocol has a chunk with the text and an error.
func (enc *Encoder) encodeInput(b event.ToolCall) {
	c := chunk{"type": "tool-input-available", "toolName": b.Tool, "input": b.Args}
	if b.Args == nil {
		c = chunk{"type": "tool-input-error", "toolName": b.Tool, "input": b.ArgsText, "errorText": "The arguments are not a JSON object."}
	}
	enc.emitChunk(enc.callChunk(b.Call, c))
}

// encodeHeldCalls encodes the calls that the page executes. It waits until the end of the run,
// when the run needs nothing else, because the SDK's sendAutomaticallyWhen helpers post when all
// calls of a step have an output. Sent earlier, the page's results would be posted while a person
// has not yet approved another call, or an approval would not be posted while the page's call is
// open.
func (enc *Encoder) encodeHeldCalls() {
	for _, b := range enc.held {
		enc.encodeInput(b)
	}
}

// callChunk adds to a chunk the members that identify the call, and the server of its tool. The
// SDK knows client tools, which the page declares, by name; all others are dynamic.
func (enc *Encoder) callChunk(call event.Call, c chunk) chunk {
	if call.Server != "" {
		c["providerMetadata"] = chunk{"answerd": chunk{"server": call.Server}}
	}
	return enc.callEndChunk(call, c)
}

// callEndChunk adds the members that identify the call to a chunk that ends it. Unlike callChunk
// it adds no metadata, which version 5 refuses there.
func (enc *Encoder) callEndChunk(call event.Call, c chunk) chunk {
	c["toolCallId"] = call.CallID
	if !enc.clients[call.CallID] {
		c["dynamic"], c["providerExecuted"] = true, true
	}
	return c
}

// elicitationCall returns the call of the client tool that represents an elicitation. An answered
// elicitation becomes a call that the provider executes. Otherwise the SDK's sendAutomaticallyWhen
// helper would post the answer again when the run is suspended for something else or cancelled.
func elicitationCall(b event.Elicitation, answered bool) chunk {
	in := chunk{"mode": b.Mode, "message": b.Message, "expiresAt": b.ExpiresAt}
	if b.Schema != nil {
		in["schema"] = b.Schema
	}
	if b.URL != "" {
		in["url"] = b.URL
	}
	c := chunk{"type": "tool-input-available", "toolCallId": b.InterruptID, "toolName": ElicitationTool, "dynamic": true, "input": in}
	if answered {
		c["providerExecuted"] = true
	}
	return c
}
