package responses

import (
	"cmp"
	"encoding/json"
	"slices"

	"answerd/internal/event"
)

// encodeCall is the events of one tool call.
func (enc *Encoder) encodeCall(body event.Body) {
	switch b := body.(type) {
	case event.ToolCallStart:
		c := &openCall{held: b.NeedsApproval}
		enc.calls[b.CallID] = c
		if !c.held {
			enc.announce(c, b.Call, b.Executor)
		}
	case event.ToolCallArgs:
		enc.argsDelta(enc.calls[b.CallID], b.Delta)
	case event.ToolCall:
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

// ask adds an item for every approval that the run waits for. Only when it does: one that
// is denied at once, because nobody can be asked, is nothing that a client could answer.
func (enc *Encoder) ask() {
	for _, b := range enc.asked {
		item := approvalItem{ID: itemID("mcpr", enc.head.ID, b.InterruptID), Type: "mcp_approval_request", ServerLabel: label(b.Server), Name: b.Tool, Arguments: string(b.Args)}
		enc.requests[b.CallID] = item.ID
		enc.done(enc.add(item), item)
	}
}

// announce adds the item of a call.
func (enc *Encoder) announce(c *openCall, call event.Call, by event.Executor) {
	if by == event.Client {
		c.function = &open[functionItem]{item: functionItem{ID: itemID("fc", enc.head.ID, call.CallID), Type: "function_call", Status: "in_progress", CallID: call.CallID, Name: call.Tool}}
		c.function.index = enc.add(c.function.item)
		return
	}
	c.mcp = &open[mcpCallItem]{item: mcpCallItem{ID: itemID("mcp", enc.head.ID, call.CallID), Type: "mcp_call", Status: "in_progress", ServerLabel: label(call.Server), Name: call.Tool}}
	if id, ok := enc.requests[call.CallID]; ok {
		c.mcp.item.Approval = &id
	}
	c.mcp.index = enc.add(c.mcp.item)
	enc.emit("response.mcp_call.in_progress", at(c.mcp.item.ID, c.mcp.index))
}

func (enc *Encoder) argsDelta(c *openCall, delta string) {
	switch {
	case c.function != nil:
		enc.emit("response.function_call_arguments.delta", at(c.function.item.ID, c.function.index, "delta", delta))
	case c.mcp != nil:
		enc.emit("response.mcp_call_arguments.delta", at(c.mcp.item.ID, c.mcp.index, "delta", delta))
	}
}

// callWritten is a call whose arguments are complete, which is all there is of one that
// the caller executes.
func (enc *Encoder) callWritten(c *openCall, b event.ToolCall) {
	c.written = true
	if c.args = b.ArgsText; b.Args != nil {
		c.args = string(b.Args)
	}
	switch {
	case c.function != nil:
		o := c.function
		o.item.Arguments, o.item.Status = c.args, "completed"
		enc.emit("response.function_call_arguments.done", at(o.item.ID, o.index, "name", o.item.Name, "arguments", c.args))
		enc.done(o.index, o.item)
	case c.mcp != nil:
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
		enc.announce(c, call, "")
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
