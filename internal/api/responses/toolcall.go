package responses

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"answerd/internal/event"
)

// encodeCall encodes the events of tool calls and approvals. It only collects calls of the client's functions, which
// addFunctionCalls sends at the end of the run, and approvals, which addApprovalRequests sends when they suspend the
// run.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			return
		}
		c := &serverCall{}
		enc.calls[b.CallID] = c
		if !b.NeedsApproval { // else the approval request comes first in the output
			enc.addCallItem(c, b.Call)
		}
	case event.ToolCallArgs:
		if c := enc.calls[b.CallID]; c != nil && c.open != nil {
			enc.emitEvent("response.mcp_call_arguments.delta", itemFields(c.open.item.ID, c.open.index, "delta", b.Delta))
		}
	case event.ToolCall:
		if b.Executor == event.Client {
			enc.functionCalls = append(enc.functionCalls, b)
			return
		}
		enc.setArguments(enc.calls[b.CallID], b.Arguments())
	case event.ApprovalRequired:
		enc.openApprovals = append(enc.openApprovals, b)
	case event.ApprovalResolved:
		enc.openApprovals = slices.DeleteFunc(enc.openApprovals, func(a event.ApprovalRequired) bool {
			return a.InterruptID == b.InterruptID
		})
	case event.ToolResult:
		output := b.Text()
		enc.endCall(b.Call, b.Args, "completed", &output, nil)
	case event.ToolError:
		enc.endCall(b.Call, b.Args, "failed", nil, callError(b.Kind, b.Payload))
	}
}

// closeOpenCalls finishes the items of calls in progress as incomplete, because clients refuse a response that ends
// with an item in progress. The calls continue in the next response, where endCall adds new items for them.
func (enc *Encoder) closeOpenCalls() {
	// Sort the ids: the stream must be the same each time, but the order of a map is not.
	for _, id := range slices.Sorted(maps.Keys(enc.calls)) {
		open := enc.calls[id].open
		if open == nil || open.item.Status != "in_progress" {
			continue
		}
		enc.calls[id].open = nil
		open.item.Status = "incomplete"
		enc.finishItem(open.index, open.item)
	}
}

// addApprovalRequests adds an item for each approval without a decision. It is called when the run is suspended. The
// event approval_required is too early, because the agent may deny an approval at once, and a client could then not
// answer the request any more. A response that covers a whole run does not repeat a request at a later suspension.
func (enc *Encoder) addApprovalRequests() {
	for _, b := range enc.openApprovals {
		id := itemID("mcpr", enc.head.ID, b.InterruptID)
		if enc.head.Whole && enc.requested[id] {
			continue
		}
		enc.requested[id] = true
		item := approvalItem{
			ID: id, Type: "mcp_approval_request", ServerLabel: serverLabel(b.Server), Name: b.Tool, Arguments: string(b.Args),
		}
		enc.approvalItems[b.CallID] = id
		enc.finishItem(enc.addItem(item), item)
	}
}

// addFunctionCalls adds the calls that the client executes, as the last items of the run's last response. A response
// never has both function calls and open approval requests, because the next request can either have outputs of
// functions or answer approvals.
func (enc *Encoder) addFunctionCalls() {
	for _, b := range enc.functionCalls {
		args := b.Arguments()
		id := itemID("fc", enc.head.ID, b.CallID)
		item := functionItem{ID: id, Type: "function_call", Status: "in_progress", CallID: b.CallID, Name: b.Tool}
		index := enc.addItem(item)
		enc.emitEvent("response.function_call_arguments.delta", itemFields(id, index, "delta", args))
		enc.emitEvent("response.function_call_arguments.done", itemFields(id, index, "name", b.Tool, "arguments", args))
		item.Arguments = args
		item.Status = "completed"
		enc.finishItem(index, item)
	}
}

// addCallItem adds the item of a call that the server executes, and sets c.open. The item refers to the call's approval
// request, if there was one.
func (enc *Encoder) addCallItem(c *serverCall, call event.Call) {
	item := mcpCallItem{
		ID: itemID("mcp", enc.head.ID, call.CallID), Type: "mcp_call", Status: "in_progress",
		ServerLabel: serverLabel(call.Server), Name: call.Tool,
	}
	if id, ok := enc.approvalItems[call.CallID]; ok {
		item.Approval = &id
	}
	c.open = &openItem[mcpCallItem]{item: item, index: enc.addItem(item)}
	enc.emitEvent("response.mcp_call.in_progress", itemFields(item.ID, c.open.index))
}

// setArguments records the complete arguments of a call, and adds them to its item if it has one.
func (enc *Encoder) setArguments(c *serverCall, args string) {
	c.args = args
	if c.open != nil {
		c.open.item.Arguments = args
		enc.emitEvent("response.mcp_call_arguments.done", itemFields(c.open.item.ID, c.open.index, "arguments", args))
	}
}

// endCall finishes the item of a call that the server has executed or refused to execute. If the call has no item in
// this response, endCall adds one first. args are the arguments with which the call was executed, which a person may
// have changed; nil means those that the model wrote. status is completed, with an output, or failed, with a failure
// (callError).
func (enc *Encoder) endCall(call event.Call, args json.RawMessage, status string, output *string, failure any) {
	c := enc.calls[call.CallID]
	if c.open == nil {
		if args != nil {
			c.args = string(args)
		}
		enc.addCallItem(c, call)
		enc.setArguments(c, c.args)
	}
	item, index := &c.open.item, c.open.index
	item.Status = status
	item.Output = output
	item.Error = failure
	enc.emitEvent("response.mcp_call."+status, itemFields(item.ID, index))
	enc.finishItem(index, *item)
}

// serverLabel returns the name of a server, or "answerd" for tools that belong to no server.
func serverLabel(server string) string { return cmp.Or(server, "answerd") }
