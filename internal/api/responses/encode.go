package responses

import (
	"encoding/json"
	"slices"
	"strings"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the events of one response. It needs all of the run's events, in order, also
// those before the response's span, because calls that began earlier continue in this response.
//
// The format requires a snapshot of each item in addition to its deltas, and the whole output again at the end. So the
// Encoder collects the output in resp while it encodes, and Response can return it at any time. An item's output_index
// is its position in that output. It never changes, because items are only appended.
type Encoder struct {
	head   Header
	resp   *response
	seq    int         // the next sequence_number
	frames []sse.Frame // the frames of the event that is being encoded

	message      *openItem[messageItem]   // nil if no text is open
	reasoning    *openItem[reasoningItem] // nil if no reasoning is open
	calls        map[string]*serverCall   // calls that the server executes, by call id, also those that have ended
	structured   bool                     // the answer must be JSON
	reachedLimit string                   // the name of the budget limit that the run reached last; "" if none

	functionCalls []event.ToolCall         // calls of the client's functions in the current step
	openApprovals []event.ApprovalRequired // approvals without a decision
	approvalItems map[string]string        // by call id: the item id of the call's latest approval request
	requested     map[string]bool          // item ids of the approval requests so far
	stepIndex     int                      // index in the output at which the current step begins

	usage       event.Usage // tokens of the run so far
	usageBefore event.Usage // tokens of earlier responses of the run
	ended       bool        // the terminal event of the response has been encoded
}

// openItem is an item in progress with its index in the output.
type openItem[T any] struct {
	item  T
	index int
	text  strings.Builder // so far
}

// serverCall is the state of a call that the server executes.
type serverCall struct {
	// open is the call's item in this response. It is nil if the call has none, because it needs approval, or because
	// its item was closed at the end of an earlier response. The item is then added when the call ends.
	open *openItem[mcpCallItem]
	args string // the complete arguments; "" until they are known
}

// NewEncoder returns an encoder that has not encoded any event yet.
func NewEncoder(h Header) *Encoder {
	return &Encoder{
		head: h, resp: newResponse(h),
		calls: make(map[string]*serverCall), approvalItems: make(map[string]string), requested: make(map[string]bool),
	}
}

// Response returns the response as of the latest event, to be encoded as JSON. Items in progress have their text so
// far.
func (enc *Encoder) Response() any {
	snapshot := *enc.resp // a copy, because in enc.resp open items have no text until they end
	snapshot.Output = slices.Clone(snapshot.Output)
	if open := enc.message; open != nil {
		item := open.item
		item.Content = []textPart{outputText(open.text.String())}
		snapshot.Output[open.index] = item
	}
	if open := enc.reasoning; open != nil {
		item := open.item
		item.Summary = []summaryPart{{Type: "summary_text", Text: open.text.String()}}
		snapshot.Output[open.index] = item
	}
	return &snapshot
}

// HasEnded reports whether the response has ended. Encode then returns no more frames, but the run may continue in
// another response.
func (enc *Encoder) HasEnded() bool { return enc.ended }

// Resume reports that the suspension with the sequence number seq is over, so that it does not end the response. It
// must be called before that suspension is encoded.
func (enc *Encoder) Resume(seq int64) { enc.head.Until = max(enc.head.Until, seq+1) }

// Encode returns the frames for e, which must be the run's next event. It returns nil after the end of the response,
// and for events before the span, which only change the encoder's state.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	if enc.ended {
		return nil
	}
	enc.frames = nil
	if e.Seq == enc.head.After+1 {
		enc.beginResponse()
	}
	enc.encodeEvent(e)
	if e.Seq <= enc.head.After {
		return nil
	}
	return enc.frames
}

// beginResponse starts the response at the first event of its span. It discards the output of the events before,
// remembers their tokens as those of earlier responses, and adds the tool lists.
func (enc *Encoder) beginResponse() {
	enc.resp = newResponse(enc.head)
	enc.seq = 0
	enc.usageBefore = enc.usage
	enc.emitEvent("response.created", enc.responseFields())
	enc.emitEvent("response.in_progress", enc.responseFields())
	for _, list := range enc.head.ToolLists {
		id := itemID("mcpl", enc.head.ID, list.Server)
		item := listItem{ID: id, Type: "mcp_list_tools", ServerLabel: list.Server, Tools: []ListedTool{}}
		index := enc.addItem(item)
		enc.emitEvent("response.mcp_list_tools.in_progress", itemFields(item.ID, index))
		enc.emitEvent("response.mcp_list_tools.completed", itemFields(item.ID, index))
		item.Tools = append(item.Tools, list.Tools...)
		enc.finishItem(index, item)
	}
}

// TokenExpired returns the frames that end the stream early because the caller's token has expired. Its error event is
// not an event of the response. It repeats the sequence_number of the last event that the client has, so that a client
// that sends this number as starting_after misses nothing.
func (enc *Encoder) TokenExpired() []sse.Frame {
	data, _ := json.Marshal(fields{ // cannot fail for strings and numbers
		"type": "error", "code": "token_expired", "message": "The access token has expired. The response goes on.",
		"param": nil, "sequence_number": max(enc.seq, enc.head.Skip) - 1,
	})
	return []sse.Frame{{Event: "error", Data: data}}
}

// encodeEvent adds the frames of e to enc.frames and updates the response. It leaves the events of calls and approvals
// to encodeCall. If the answer must be JSON, clients parse the text of every message. So the texts of steps that are not
// the answer are left out, and encodeAnswer adds the answer.
func (enc *Encoder) encodeEvent(e event.Event) {
	switch b := e.Body.(type) {
	case event.Start:
		enc.structured = b.StructuredOutput
	case event.TextStart:
		if !enc.structured {
			enc.openMessage(b.PartID)
		}
	case event.TextDelta:
		if !enc.structured {
			enc.addText(b.Delta)
		}
	case event.TextEnd:
		if !enc.structured {
			enc.closeMessage()
		}
	case event.ReasoningStart:
		enc.openReasoning(b)
	case event.ReasoningDelta:
		enc.addReasoning(b.Delta)
	case event.ReasoningEnd:
		enc.closeReasoning()
	case event.StepStart:
		enc.stepIndex = len(enc.resp.Output)
	case event.StepEnd:
		if b.FinishReason == "cancelled" || b.FinishReason == "error" {
			enc.markIncomplete() // the run ended while the model wrote
		}
		if b.Usage != nil {
			enc.usage = enc.usage.Plus(*b.Usage)
		}
	case event.StepReset:
		enc.resetStep()
	case event.Budget:
		if b.Used >= b.Max {
			enc.reachedLimit = b.Limit
		}
	case event.Suspended:
		enc.encodeSuspension(e)
	case event.FinalAnswer:
		enc.encodeAnswer(b, e)
	case event.RunError:
		enc.resp.Error = &responseError{b.OpenAICode(), b.MessageWithErrors()}
		enc.endResponse("failed", e)
	case event.Cancelled:
		enc.endResponse("cancelled", e)
	default:
		enc.encodeCall(b)
	}
}

// encodeSuspension encodes the suspension e. If e ends the response (Span.EndsWith), it closes calls in progress and
// adds a request for each approval that the run waits for. A suspension before the span is encoded as the end of an
// earlier response, so that open calls get new items in this one.
func (enc *Encoder) encodeSuspension(e event.Event) {
	if enc.head.Whole {
		// This includes a suspension that is over: a client that followed the run got the requests while it was
		// suspended, and the stream must be the same each time.
		enc.addApprovalRequests()
	}
	if e.Seq > enc.head.After && !enc.head.EndsWith(e) {
		return
	}
	enc.closeOpenCalls()
	enc.addApprovalRequests()
	enc.endResponse("completed", e)
}

// structuredAnswerPart is used instead of a part id in the item of an answer that must be JSON. Such an answer is sent
// as a whole, so it is not the text of one of the run's parts.
const structuredAnswerPart = "answer"

// fields holds an event's members other than type and sequence_number.
type fields = map[string]any

// itemFields returns the members that identify an item in an event, and the members in more, in which names and values
// alternate.
func itemFields(item string, index int, more ...any) fields {
	f := fields{"item_id": item, "output_index": index}
	for i := 0; i < len(more); i += 2 {
		f[more[i].(string)] = more[i+1]
	}
	return f
}

// responseFields returns the member response, with the response so far, for events at the response's start and end.
func (enc *Encoder) responseFields() fields { return fields{"response": enc.resp} }

// emitEvent adds an event to enc.frames, unless the client already has it (Header.Skip). kind is its type, and f has
// its other members. The event gets the next sequence_number in both cases. emitEvent modifies f.
func (enc *Encoder) emitEvent(kind string, f fields) {
	f["type"] = kind
	f["sequence_number"] = enc.seq
	enc.seq++
	if enc.seq <= enc.head.Skip {
		return
	}
	data, _ := json.Marshal(f) // cannot fail: f has only texts, numbers and valid JSON
	enc.frames = append(enc.frames, sse.Frame{Event: kind, Data: data})
}

// addItem appends an item to the output, adds the event that announces it, and returns its index in the output.
func (enc *Encoder) addItem(item any) (index int) {
	index = len(enc.resp.Output)
	enc.resp.Output = append(enc.resp.Output, item)
	enc.emitEvent("response.output_item.added", fields{"output_index": index, "item": item})
	return index
}

// finishItem replaces an item in the output by its final state. Clients take an item either from
// response.output_item.done or from the response at the end, so both have the whole item.
func (enc *Encoder) finishItem(index int, item any) {
	enc.resp.Output[index] = item
	enc.emitEvent("response.output_item.done", fields{"output_index": index, "item": item})
}

// openMessage opens a message item for the part with that id. The item's content is one text part.
func (enc *Encoder) openMessage(partID string) {
	id := itemID("msg", enc.head.ID, partID)
	item := messageItem{ID: id, Type: "message", Status: "in_progress", Role: "assistant", Content: []textPart{}}
	enc.message = &openItem[messageItem]{item: item, index: enc.addItem(item)}
	enc.emitEvent("response.content_part.added", enc.messageFields("part", outputText("")))
}

// addText adds text to the open message item.
func (enc *Encoder) addText(delta string) {
	enc.message.text.WriteString(delta)
	enc.emitEvent("response.output_text.delta", enc.messageFields("delta", delta, "logprobs", []any{}))
}

// messageFields returns the members of an event about the open message item; more is as in itemFields.
func (enc *Encoder) messageFields(more ...any) fields {
	f := itemFields(enc.message.item.ID, enc.message.index, more...)
	f["content_index"] = 0 // a message item has one part
	return f
}

// closeMessage finishes the open message item.
func (enc *Encoder) closeMessage() {
	message := enc.message
	part := outputText(message.text.String())
	enc.emitEvent("response.output_text.done", enc.messageFields("text", part.Text, "logprobs", []any{}))
	enc.emitEvent("response.content_part.done", enc.messageFields("part", part))
	enc.message = nil
	message.item.Content = []textPart{part}
	message.item.Status = "completed"
	enc.finishItem(message.index, message.item)
}

// openReasoning opens a reasoning item. Its text is a summary part, because clients show the summary of reasoning and
// not its content.
func (enc *Encoder) openReasoning(b event.ReasoningStart) {
	id := itemID("rs", enc.head.ID, b.PartID)
	item := reasoningItem{ID: id, Type: "reasoning", Status: "in_progress", Summary: []summaryPart{}}
	enc.reasoning = &openItem[reasoningItem]{item: item, index: enc.addItem(item)}
	f := itemFields(item.ID, enc.reasoning.index, "summary_index", 0, "part", summaryPart{Type: "summary_text"})
	enc.emitEvent("response.reasoning_summary_part.added", f)
}

// addReasoning adds text to the open reasoning item.
func (enc *Encoder) addReasoning(delta string) {
	open := enc.reasoning
	open.text.WriteString(delta)
	f := itemFields(open.item.ID, open.index, "summary_index", 0, "delta", delta)
	enc.emitEvent("response.reasoning_summary_text.delta", f)
}

// closeReasoning finishes the open reasoning item.
func (enc *Encoder) closeReasoning() {
	reasoning := enc.reasoning
	enc.reasoning = nil
	id, index := reasoning.item.ID, reasoning.index
	part := summaryPart{Type: "summary_text", Text: reasoning.text.String()}
	enc.emitEvent("response.reasoning_summary_text.done", itemFields(id, index, "summary_index", 0, "text", part.Text))
	enc.emitEvent("response.reasoning_summary_part.done", itemFields(id, index, "summary_index", 0, "part", part))
	reasoning.item.Summary = []summaryPart{part}
	reasoning.item.Status = "completed"
	enc.finishItem(index, reasoning.item)
}

// resetStep marks the current step's messages as incomplete, because the agent repeats the step. The run's events have
// closed all of the step's texts, reasoning and calls before, and items of a stream cannot be withdrawn. So only the
// response at the end says which messages are valid.
func (enc *Encoder) resetStep() {
	enc.functionCalls = nil // only the last step of a run has calls of the client's functions
	enc.markIncomplete()
}

// markIncomplete marks the current step's messages as incomplete in the response at the end.
func (enc *Encoder) markIncomplete() {
	output := enc.resp.Output[enc.stepIndex:]
	for i, item := range output {
		if message, ok := item.(messageItem); ok {
			message.Status = "incomplete"
			output[i] = message
		}
	}
}

// encodeAnswer ends the response with the answer. It first adds a structured answer, or the calls of the client's
// functions; the text beside such calls is not a structured answer. If one of the run's limits cut the answer off, the
// reason is max_output_tokens, because the format has no reason for such limits. An answer after max_tool_calls calls
// is complete, because OpenAI's API only ignores further calls.
func (enc *Encoder) encodeAnswer(answer event.FinalAnswer, e event.Event) {
	enc.usage = answer.Metadata.Usage
	if enc.structured && answer.Answer != "" && answer.FinishReason != "tool_calls" {
		enc.openMessage(structuredAnswerPart)
		enc.addText(answer.Answer)
		enc.closeMessage()
	}
	enc.addFunctionCalls()
	if answer.FinishReason == "length" || answer.FinishReason == "content_filter" {
		enc.markIncomplete() // the model's endpoint cut the text off
	}
	usedMaxToolCalls := enc.reachedLimit == "tool_calls" && enc.head.Echo.MaxToolCalls != nil
	switch reason := answer.FinishReason; {
	case reason == "budget_exceeded" && usedMaxToolCalls:
		enc.endResponse("completed", e)
	case reason == "length", reason == "max_turns", reason == "budget_exceeded":
		enc.resp.IncompleteDetails = &incomplete{"max_output_tokens"}
		enc.endResponse("incomplete", e)
	case reason == "content_filter":
		enc.resp.IncompleteDetails = &incomplete{"content_filter"}
		enc.endResponse("incomplete", e)
	default:
		enc.endResponse("completed", e)
	}
}

// endResponse sets the response's status and usage, and adds its terminal event and [DONE]. e is the run's event that
// ends the response. The usage is that of this response alone, so that the responses of a run add up to the run's
// usage. The format has no event for a cancelled response, which ends with response.incomplete and the status
// cancelled.
func (enc *Encoder) endResponse(status string, e event.Event) {
	enc.ended = e.Seq > enc.head.After // e may also end an earlier response of the run
	enc.resp.Status = status
	enc.resp.Usage = &usage{
		InputTokens:  enc.usage.InputTokens - enc.usageBefore.InputTokens,
		OutputTokens: enc.usage.OutputTokens - enc.usageBefore.OutputTokens,
		TotalTokens:  enc.usage.TotalTokens - enc.usageBefore.TotalTokens,
	}
	kind := "response." + status
	switch status {
	case "completed":
		seconds := e.Time / 1000
		enc.resp.CompletedAt = &seconds
	case "cancelled":
		kind = "response.incomplete"
	}
	enc.emitEvent(kind, enc.responseFields())
	enc.frames = append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
}
