package responses

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"answerd/internal/event"
)

// encodeCall encodes the events of tool calls and approvals. Calls of the caller's functions are
// only collected: addFunctionCalls adds them at the end.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			return
		}
		c := &openCall{held: b.NeedsApproval}
		enc.calls[b.CallID] = c
		if !c.held {
			enc.addCallItem(c, b.Call)
		}
	case event.ToolCallArgs:
		if c := enc.calls[b.CallID]; c != nil && c.mcp != nil {
			enc.emitEvent("response.mcp_call_arguments.delta", itemFields(c.mcp.item.ID, c.mcp.index, "delta", b.Delta))
		}
	case event.ToolCall:
		if b.Executor == event.Client {
			enc.functions = append(enc.functions, b)
			return
		}
		enc.setArguments(enc.calls[b.CallID], b)
	case event.ApprovalRequired:
		enc.asked = append(enc.asked, b)
	case event.ApprovalResolved:
		enc.asked = slices.DeleteFunc(enc.asked, func(a event.ApprovalRequired) bool { return a.InterruptID == b.InterruptID })
	case event.ToolResult:
		enc.endCall(b.Call, b.Args, "completed", plainText(b.Payload), nil)
	case event.ToolError:
		enc.endCall(b.Call, b.Args, "failed", nil, callError(b.Kind, b.Payload))
	}
}

// closeOpenCalls finishes the items of open calls as incomplete. Clients refuse a response that
// ends with an item in progress. The calls continue in the next response, which has new items for
// them.
func (enc *Encoder) closeOpenCalls() {
	for _, id := range slices.Sorted(maps.Keys(enc.calls)) {
		c := enc.calls[id]
		if c.mcp == nil || c.mcp.item.Status != "in_progress" {
			continue
		}
		o := c.mcp
		c.mcp = nil
		o.item.Status = "incomplete"
		enc.finishItem(o.index, o.item)
	}
}

// addApprovalRequests adds an item for each approval that the run is suspended for. That waits for
// the suspension, because an approval may be denied at once, and a client could not answer its
// request any more. A response that covers a whole run has each only once, however often the run is
// suspended for it.
func (enc *Encoder) addApprovalRequests() {
	for _, b := range enc.asked {
		if enc.head.Whole && enc.requests[b.CallID] == itemID("mcpr", enc.head.ID, b.InterruptID) {
			continue
		}
		item := approvalItem{ID: itemID("mcpr", enc.head.ID, b.InterruptID), Type: "mcp_approval_request", ServerLabel: serverLabel(b.Server), Name: b.Tool, Arguments: string(b.Args)}
		enc.requests[b.CallID] = item.ID
		enc.finishItem(enc.addItem(item), item)
	}
}

// addFunctionCalls adds the calls that the caller executes, as the last items. They follow all
// approval requests: a caller continues with the outputs of functions, and cannot also answer an
// approval request of the same response.
func (enc *Encoder) addFunctionCalls() {
	for _, b := range enc.functions {
		args := b.ArgsText
		if b.Args != nil {
			args = string(b.Args)
		}
		item := functionItem{ID: itemID("fc", enc.head.ID, b.CallID), Type: "function_call", Status: "in_progress", CallID: b.CallID, Name: b.Tool}
		i := enc.addItem(item)
		enc.emitEvent("response.function_call_arguments.delta", itemFields(item.ID, i, "delta", args))
		enc.emitEvent("response.function_call_arguments.done", itemFields(item.ID, i, "name", b.Tool, "arguments", args))
		item.Arguments, item.Status = args, "completed"
		enc.finishItem(i, item)
	}
}

// addCallItem adds the item of a call that the server executes.
func (enc *Encoder) addCallItem(c *openCall, call event.Call) {
	c.mcp = &open[mcpCallItem]{item: mcpCallItem{ID: itemID("mcp", enc.head.ID, call.CallID), Type: "mcp_call", Status: "in_progress", ServerLabel: serverLabel(call.Server), Name: call.Tool}}
	if id, ok := enc.requests[call.CallID]; ok {
		c.mcp.item.Approval = &id
	}
	c.mcp.index = enc.addItem(c.mcp.item)
	enc.emitEvent("response.mcp_call.in_progress", itemFields(c.mcp.item.ID, c.mcp.index))
}

// setArguments records the complete arguments of a call, and sends them if the call has an item.
func (enc *Encoder) setArguments(c *openCall, b event.ToolCall) {
	c.written = true
	c.args = b.ArgsText
	if b.Args != nil {
		c.args = string(b.Args)
	}
	if c.mcp != nil {
		c.mcp.item.Arguments = c.args
		enc.emitEvent("response.mcp_call_arguments.done", itemFields(c.mcp.item.ID, c.mcp.index, "arguments", c.args))
	}
}

// endCall finishes the item of a call that the server executed or refused to execute. args are the
// arguments of the execution, which a person may have changed.
func (enc *Encoder) endCall(call event.Call, args json.RawMessage, status string, output *string, failure any) {
	c := enc.calls[call.CallID]
	if c.mcp == nil { // the call was held until now
		if args != nil {
			c.args = string(args)
		}
		enc.addCallItem(c, call)
		c.mcp.item.Arguments = c.args
		enc.emitEvent("response.mcp_call_arguments.done", itemFields(c.mcp.item.ID, c.mcp.index, "arguments", c.args))
	}
	o := c.mcp
	o.item.Status = status
	o.item.Output = output
	o.item.Error = failure
	enc.emitEvent("response.mcp_call."+status, itemFields(o.item.ID, o.index))
	enc.finishItem(o.index, o.item)
}

// serverLabel returns the name of a server, or "answerd" for tools that belong to no server.
func serverLabel(server string) string { return cmp.Or(server, "answerd") }
