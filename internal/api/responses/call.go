package responses

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"answerd/internal/event"
)

// encodeCall is the events of one tool call.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		if b.Executor == event.Client {
			return
		}
		c := &openCall{held: b.NeedsApproval}
		enc.calls[b.CallID] = c
		if !c.held {
			enc.announce(c, b.Call)
		}
	case event.ToolCallArgs:
		if c := enc.calls[b.CallID]; c != nil && c.mcp != nil {
			enc.emit("response.mcp_call_arguments.delta", at(c.mcp.item.ID, c.mcp.index, "delta", b.Delta))
		}
	case event.ToolCall:
		if b.Executor == event.Client {
			enc.functions = append(enc.functions, b)
			return
		}
		enc.callWritten(enc.calls[b.CallID], b)
	case event.ApprovalRequired:
		enc.asked = append(enc.asked, b)
	case event.ApprovalResolved:
		enc.asked = slices.DeleteFunc(enc.asked, func(a event.ApprovalRequired) bool { return a.InterruptID == b.InterruptID })
	case event.ToolResult:
		enc.callEnd(b.Call, b.Args, "completed", plain(b.Payload), nil)
	case event.ToolError:
		enc.callEnd(b.Call, b.Args, "failed", nil, callError(b.Kind, b.Payload))
	}
}

// pause closes the items of calls that go on in the next response, where each is announced
// again: a response that ends with an item open is one that clients refuse.
func (enc *Encoder) pause() {
	for _, id := range slices.Sorted(maps.Keys(enc.calls)) {
		c := enc.calls[id]
		if c.mcp == nil || c.mcp.item.Status != "in_progress" {
			continue
		}
		o := c.mcp
		c.mcp = nil
		o.item.Status = "incomplete"
		enc.done(o.index, o.item)
	}
}

// ask adds an item for every approval that the run waits for. Only when it does: one that
// is denied at once, because nobody can be asked, is nothing that a client could answer.
func (enc *Encoder) ask() {
	for _, b := range enc.asked {
		item := approvalItem{ID: itemID("mcpr", enc.head.ID, b.InterruptID), Type: "mcp_approval_request", ServerLabel: label(b.Server), Name: b.Tool, Arguments: string(b.Args)}
		enc.requests[b.CallID] = item.ID
		enc.done(enc.add(item), item)
	}
}

// giveCalls adds the calls that are the caller's to make. They come when everything else
// has happened: whoever gets one goes on with its output, and could not also answer an
// approval that the response asks for.
func (enc *Encoder) giveCalls() {
	for _, b := range enc.functions {
		args := b.ArgsText
		if b.Args != nil {
			args = string(b.Args)
		}
		item := functionItem{ID: itemID("fc", enc.head.ID, b.CallID), Type: "function_call", Status: "in_progress", CallID: b.CallID, Name: b.Tool}
		i := enc.add(item)
		enc.emit("response.function_call_arguments.delta", at(item.ID, i, "delta", args))
		enc.emit("response.function_call_arguments.done", at(item.ID, i, "name", b.Tool, "arguments", args))
		item.Arguments, item.Status = args, "completed"
		enc.done(i, item)
	}
}

// announce adds the item of a call.
func (enc *Encoder) announce(c *openCall, call event.Call) {
	c.mcp = &open[mcpCallItem]{item: mcpCallItem{ID: itemID("mcp", enc.head.ID, call.CallID), Type: "mcp_call", Status: "in_progress", ServerLabel: label(call.Server), Name: call.Tool}}
	if id, ok := enc.requests[call.CallID]; ok {
		c.mcp.item.Approval = &id
	}
	c.mcp.index = enc.add(c.mcp.item)
	enc.emit("response.mcp_call.in_progress", at(c.mcp.item.ID, c.mcp.index))
}

// callWritten is a call whose arguments are complete.
func (enc *Encoder) callWritten(c *openCall, b event.ToolCall) {
	c.written = true
	if c.args = b.ArgsText; b.Args != nil {
		c.args = string(b.Args)
	}
	if c.mcp != nil {
		c.mcp.item.Arguments = c.args
		enc.emit("response.mcp_call_arguments.done", at(c.mcp.item.ID, c.mcp.index, "arguments", c.args))
	}
}

// callEnd is the end of a call that we executed, or refused to. args are those that it was
// made with, which a person may have changed.
func (enc *Encoder) callEnd(call event.Call, args json.RawMessage, status string, output *string, failure any) {
	c := enc.calls[call.CallID]
	if c.mcp == nil { // it was held until now
		if args != nil {
			c.args = string(args)
		}
		enc.announce(c, call)
		c.mcp.item.Arguments = c.args
		enc.emit("response.mcp_call_arguments.done", at(c.mcp.item.ID, c.mcp.index, "arguments", c.args))
	}
	o := c.mcp
	o.item.Status, o.item.Output, o.item.Error = status, output, failure
	enc.emit("response.mcp_call."+status, at(o.item.ID, o.index))
	enc.done(o.index, o.item)
}

// label is what stands for a server: its name, or ours for the tools that no server has.
func label(server string) string { return cmp.Or(server, "answerd") }

// plain is a payload as text: a string as it is, anything else as its JSON.
func plain(payload json.RawMessage) *string {
	text := string(payload)
	var s string
	if json.Unmarshal(payload, &s) == nil {
		text = s
	}
	return &text
}
