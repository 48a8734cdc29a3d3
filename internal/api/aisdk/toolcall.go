package aisdk

import "answerd/internal/event"

// encodeCall encodes the events of tool calls, approvals and elicitations. Calls that the page executes are only
// collected here. encodeHeldCalls sends them at the end of the run.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			enc.pageCalls[b.CallID] = true
			return
		}
		enc.emitChunk(enc.callChunk(b.Call, chunk{"type": "tool-input-start", "toolName": b.Tool}))
	case event.ToolCallArgs:
		if enc.pageCalls[b.CallID] {
			return
		}
		enc.emitChunk(chunk{"type": "tool-input-delta", "toolCallId": b.CallID, "inputTextDelta": b.Delta})
	case event.ToolCall:
		if enc.pageCalls[b.CallID] {
			enc.heldCalls = append(enc.heldCalls, b)
			return
		}
		enc.encodeInput(b)
	case event.ToolResult:
		// The SDK requires the member output, which may be null.
		enc.emitChunk(enc.callEndChunk(b.Call, chunk{"type": "tool-output-available", "output": b.Payload}))
	case event.ToolError:
		if enc.denied[b.CallID] {
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
		if enc.childApprovals[b.InterruptID] {
			enc.endChildCall(b)
			return
		}
		enc.denied[b.CallID] = !b.Approved && !enc.head.NoApprovals
	case event.ToolProgress:
		enc.encodeProgress(b)
	case event.LogMessage:
		enc.emitChunk(chunk{"type": "data-log", "transient": true, "data": chunk{
			"callId": b.CallID, "tool": b.Tool, "server": b.Server, "level": b.Level, "logger": b.Logger, "data": b.Data}})
	case event.Elicitation:
		enc.elicitations[b.InterruptID] = b
		enc.emitChunk(elicitationCall(b))
	case event.ElicitationResolved:
		enc.endElicitation(b)
	}
}

// encodeProgress encodes a call's progress as a data part. The SDK replaces the call's previous part, which has the
// same id.
func (enc *Encoder) encodeProgress(b event.ToolProgress) {
	data := chunk{"callId": b.CallID, "tool": b.Tool, "server": b.Server, "progress": b.Progress}
	if b.Total != 0 {
		data["total"] = b.Total
	}
	if b.Message != "" {
		data["message"] = b.Message
	}
	enc.emitChunk(chunk{"type": "data-tool-progress", "id": b.CallID, "data": data})
}

// endElicitation ends an elicitation's call. It marks the call as executed by the provider: otherwise the SDK's
// sendAutomaticallyWhen helper would post the answer again when the run is suspended for another interrupt, or
// cancelled. The output is the one that the page posted or, if the page posted none for this stream, the action alone.
func (enc *Encoder) endElicitation(b event.ElicitationResolved) {
	call := elicitationCall(enc.elicitations[b.InterruptID])
	call["providerExecuted"] = true
	enc.emitChunk(call)
	var output any = chunk{"action": b.Action}
	if posted := enc.head.Outputs[b.InterruptID]; posted != nil {
		output = posted
	}
	enc.emitChunk(chunk{"type": "tool-output-available", "toolCallId": b.InterruptID, "dynamic": true, "output": output})
}

// encodeChildCall encodes an approval that a child run needs for one of its calls. It becomes a separate call that has
// the interrupt's id, because the part of the parent's call shows the parent's tool and arguments, and can have only
// one approval. The parent's call gets the output {"status":"suspended"} until its result arrives, because the SDK's
// helper posts a decision only when all other calls of the step have an output.
func (enc *Encoder) encodeChildCall(b event.ApprovalRequired) {
	enc.childApprovals[b.InterruptID] = true
	suspended := chunk{"type": "tool-output-available", "output": chunk{"status": "suspended"}}
	enc.emitChunk(enc.callEndChunk(event.Call{CallID: b.CallID}, suspended))
	call := event.Call{CallID: b.InterruptID, Tool: b.Tool, Server: b.Server}
	enc.emitChunk(enc.callChunk(call, chunk{"type": "tool-input-available", "toolName": b.Tool, "input": b.Args}))
	enc.emitChunk(chunk{"type": "tool-approval-request", "approvalId": b.InterruptID, "toolCallId": b.InterruptID})
}

// endChildCall ends the call that encodeChildCall began. Its output is only the decision, because the result of the
// child run's call is not an event of this run.
func (enc *Encoder) endChildCall(b event.ApprovalResolved) {
	if !b.Approved {
		enc.emitChunk(chunk{"type": "tool-output-denied", "toolCallId": b.InterruptID})
		return
	}
	call := event.Call{CallID: b.InterruptID}
	enc.emitChunk(enc.callEndChunk(call, chunk{"type": "tool-output-available", "output": chunk{"approved": true}}))
}

// encodeInput encodes a call's complete arguments. If they are not a JSON object, it sends the text that the model
// wrote with an error, for which the protocol has a chunk.
func (enc *Encoder) encodeInput(b event.ToolCall) {
	c := chunk{"type": "tool-input-available", "toolName": b.Tool, "input": b.Args}
	if b.Args == nil {
		c = chunk{"type": "tool-input-error", "toolName": b.Tool, "input": b.ArgsText, "errorText": "The arguments are not a JSON object."}
	}
	enc.emitChunk(enc.callChunk(b.Call, c))
}

// encodeHeldCalls sends the calls that the page executes. It runs at the final answer, because the SDK's
// sendAutomaticallyWhen helpers post as soon as all calls of a step have an output. If the calls were sent earlier, the
// page would post its results before a person has approved another call of the step, or could not post an approval
// until its own call has a result.
func (enc *Encoder) encodeHeldCalls() {
	for _, b := range enc.heldCalls {
		enc.encodeInput(b)
	}
}

// callChunk adds the members that identify call, and the name of its tool's MCP server, to c. It returns c.
func (enc *Encoder) callChunk(call event.Call, c chunk) chunk {
	if call.Server != "" {
		c["providerMetadata"] = chunk{"answerd": chunk{"server": call.Server}}
	}
	return enc.callEndChunk(call, c)
}

// callEndChunk adds the members that identify call to c, a chunk that ends the call, and returns c. A tool that the
// page did not declare is dynamic. Unlike callChunk, it adds no metadata, because version 5 refuses it in these chunks.
func (enc *Encoder) callEndChunk(call event.Call, c chunk) chunk {
	c["toolCallId"] = call.CallID
	if !enc.pageCalls[call.CallID] {
		c["dynamic"], c["providerExecuted"] = true, true
	}
	return c
}

// elicitationCall returns the chunk with which an elicitation becomes a call of the client tool "elicitation".
func elicitationCall(b event.Elicitation) chunk {
	input := chunk{"mode": b.Mode, "message": b.Message, "expiresAt": b.ExpiresAt}
	if b.Schema != nil {
		input["schema"] = b.Schema
	}
	if b.URL != "" {
		input["url"] = b.URL
	}
	return chunk{"type": "tool-input-available", "toolCallId": b.InterruptID, "toolName": ElicitationTool, "dynamic": true, "input": input}
}
