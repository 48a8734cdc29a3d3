package responses

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the events of one response. It needs all events of the
// run in order, from the first on, also those before its span: calls that began earlier continue
// in this response.
//
// The format wants each item as a snapshot, not only as deltas, and the whole output again at the end.
// So the Encoder collects the output in resp while it encodes, and Response can return it at any time.
// output_index is an item's position there; it never changes, because items are only appended.
type Encoder struct {
	head   Header
	resp   *response
	seq    int         // the next sequence_number
	frames []sse.Frame // of the event that is being encoded

	text       *open[messageItem]       // nil if no text is open
	reasoning  *open[reasoningItem]     // nil if no reasoning is open
	calls      map[string]*openCall     // calls that the server executes, by call id
	functions  []event.ToolCall         // calls of the caller's functions
	asked      []event.ApprovalRequired // approval requests without an answer
	requests   map[string]string        // item ids of approval requests, by call id
	structured bool                     // the text of messages must be JSON
	step       int                      // index in the output at which the step begins
	spent      event.Usage              // tokens of the run so far
	before     event.Usage              // tokens of earlier responses of the run
	ended      bool
}

// open is an item in progress with its index in the output.
type open[T any] struct {
	item  T
	index int
	text  strings.Builder // so far
}

// openCall is the state of a call that the server executes, until its response ends.
type openCall struct {
	mcp     *open[mcpCallItem] // nil while the call has no item
	held    bool               // the call needs approval, so its item is added when the call ends
	written bool               // the arguments are complete
	args    string
}

// NewEncoder returns the encoder of a response. It has not seen any event yet.
func NewEncoder(h Header) *Encoder {
	return &Encoder{head: h, resp: newResponse(h), calls: make(map[string]*openCall), requests: make(map[string]string)}
}

// Response returns the response as of the latest event. Items in progress have the text so far.
func (enc *Encoder) Response() any {
	now := *enc.resp // a copy, because the text of open items must not be in the encoder's own
	now.Output = slices.Clone(now.Output)
	if o := enc.text; o != nil {
		item := o.item
		item.Content = []textPart{outputText(o.text.String())}
		now.Output[o.index] = item
	}
	if o := enc.reasoning; o != nil {
		item := o.item
		item.Summary = []summaryPart{{Type: "summary_text", Text: o.text.String()}}
		now.Output[o.index] = item
	}
	return &now
}

// HasEnded reports whether the response has ended. The run may continue after it, in another
// response.
func (enc *Encoder) HasEnded() bool { return enc.ended }

// Resume makes the suspension with that sequence number, which is over, not end the response.
func (enc *Encoder) Resume(seq int64) { enc.head.Until = max(enc.head.Until, seq+1) }

// Encode returns the frames that e adds to the stream. Events before the span only change the
// state.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	if enc.ended {
		return nil
	}
	if e.Seq == enc.head.After+1 {
		enc.beginResponse()
	} else {
		enc.frames = nil
	}
	enc.encodeEvent(e)
	if e.Seq <= enc.head.After {
		return nil
	}
	return enc.frames
}

// beginResponse starts the response. It discards the items of the run's earlier response, and the
// tokens that were counted there.
func (enc *Encoder) beginResponse() {
	enc.resp = newResponse(enc.head)
	enc.seq = 0
	enc.frames = nil
	enc.before = enc.spent
	enc.emitEvent("response.created", enc.responseFields())
	enc.emitEvent("response.in_progress", enc.responseFields())
	for _, list := range enc.head.ToolLists {
		item := listItem{ID: itemID("mcpl", enc.head.ID, list.Server), Type: "mcp_list_tools", ServerLabel: list.Server, Tools: []ListedTool{}}
		index := enc.addItem(item)
		enc.emitEvent("response.mcp_list_tools.in_progress", itemFields(item.ID, index))
		enc.emitEvent("response.mcp_list_tools.completed", itemFields(item.ID, index))
		item.Tools = append(item.Tools, list.Tools...)
		enc.finishItem(index, item)
	}
}

// TokenExpired returns the frames that end a stream before its response, because the caller's token
// has expired. The event has the sequence_number of the event before it, so that a reader who
// resumes after it (starting_after) misses nothing.
func (enc *Encoder) TokenExpired() []sse.Frame {
	data, _ := json.Marshal(fields{ // cannot fail for strings and numbers
		"type": "error", "code": "token_expired", "message": "The access token has expired. The response goes on.", "param": nil,
		"sequence_number": max(enc.seq, enc.head.Skip) - 1,
	})
	return []sse.Frame{{Event: "error", Data: data}}
}

// encodeEvent encodes the events of texts, steps and the end of the run, and leaves those of calls
// to encodeCall.
func (enc *Encoder) encodeEvent(e event.Event) {
	switch b := e.Body.(type) {
	case event.Start:
		enc.structured = b.StructuredOutput
	case event.TextStart, event.TextDelta, event.TextEnd:
		if !enc.structured { // else clients would parse each message, also of steps that are not the answer
			enc.encodeText(b)
		}
	case event.ReasoningStart:
		enc.reasoningStart(b)
	case event.ReasoningDelta:
		enc.reasoning.text.WriteString(b.Delta)
		enc.emitEvent("response.reasoning_summary_text.delta", itemFields(enc.reasoning.item.ID, enc.reasoning.index, "summary_index", 0, "delta", b.Delta))
	case event.ReasoningEnd:
		enc.reasoningEnd()
	case event.StepStart:
		enc.step = len(enc.resp.Output)
	case event.StepEnd:
		if b.Usage != nil {
			enc.spent = enc.spent.Plus(*b.Usage)
		}
	case event.StepReset:
		enc.stepReset()
	case event.Suspended:
		enc.suspended(e)
	case event.FinalAnswer:
		enc.finalAnswer(b, e)
	case event.RunError:
		enc.resp.Error = &responseError{cmp.Or(b.Reason, b.Code), b.Message}
		enc.endResponse("failed", e)
	case event.Cancelled:
		enc.endResponse("cancelled", e)
	default:
		enc.encodeCall(b)
	}
}

// suspended ends the response with requests for the approvals that the run waits for. It does not end the
// response if the suspension is over, or is for an approval that this response requested with others.
func (enc *Encoder) suspended(e event.Event) {
	if enc.head.Whole {
		enc.addApprovalRequests() // also for a suspension that is over: the stream must be the same each time
	}
	if e.Seq > enc.head.After && !enc.head.EndsWith(e) {
		return
	}
	enc.closeOpenCalls()
	enc.addApprovalRequests()
	enc.endResponse("completed", e)
}

// encodeText encodes the events of a text.
func (enc *Encoder) encodeText(b event.Body) {
	switch b := b.(type) {
	case event.TextStart:
		enc.textStart(b)
	case event.TextDelta:
		enc.text.text.WriteString(b.Delta)
		enc.emitEvent("response.output_text.delta", itemFields(enc.text.item.ID, enc.text.index, "content_index", 0, "delta", b.Delta, "logprobs", []any{}))
	case event.TextEnd:
		enc.textEnd()
	}
}

// structuredAnswerPart is the part id of an answer that must be JSON. It is sent as a whole.
const structuredAnswerPart = "answer"

// fields holds the members of an event besides type and sequence_number.
type fields = map[string]any

// itemFields returns the members that identify the item of an event, and more members, which are
// given as name, value, name, value.
func itemFields(item string, index int, more ...any) fields {
	f := fields{"item_id": item, "output_index": index}
	for i := 0; i < len(more); i += 2 {
		f[more[i].(string)] = more[i+1]
	}
	return f
}

// responseFields returns the member of events that carry the whole response.
func (enc *Encoder) responseFields() fields { return fields{"response": enc.resp} }

// emitEvent adds an event to the stream, unless the reader already has it.
func (enc *Encoder) emitEvent(kind string, f fields) {
	f["type"], f["sequence_number"] = kind, enc.seq
	enc.seq++
	if enc.seq <= enc.head.Skip {
		return
	}
	data, _ := json.Marshal(f) // cannot fail: f has only texts, numbers and valid JSON
	enc.frames = append(enc.frames, sse.Frame{Event: kind, Data: data})
}

// addItem adds an item to the output and returns its index.
func (enc *Encoder) addItem(item any) (index int) {
	index = len(enc.resp.Output)
	enc.resp.Output = append(enc.resp.Output, item)
	enc.emitEvent("response.output_item.added", fields{"output_index": index, "item": item})
	return index
}

// finishItem replaces an item in the output by its final state. Clients take an item from
// response.output_item.done, or from the response at the end, so both have all of it.
func (enc *Encoder) finishItem(index int, item any) {
	enc.resp.Output[index] = item
	enc.emitEvent("response.output_item.done", fields{"output_index": index, "item": item})
}

// textStart adds a message item with one empty text part.
func (enc *Encoder) textStart(b event.TextStart) {
	o := &open[messageItem]{item: messageItem{ID: itemID("msg", enc.head.ID, b.PartID), Type: "message", Status: "in_progress", Role: "assistant", Content: []textPart{}}}
	o.index = enc.addItem(o.item)
	enc.text = o
	enc.emitEvent("response.content_part.added", itemFields(o.item.ID, o.index, "content_index", 0, "part", outputText("")))
}

// textEnd finishes the open message item.
func (enc *Encoder) textEnd() {
	o := enc.text
	enc.text = nil
	part := outputText(o.text.String())
	o.item.Content = []textPart{part}
	enc.emitEvent("response.output_text.done", itemFields(o.item.ID, o.index, "content_index", 0, "text", part.Text, "logprobs", []any{}))
	enc.emitEvent("response.content_part.done", itemFields(o.item.ID, o.index, "content_index", 0, "part", part))
	o.item.Status = "completed"
	enc.finishItem(o.index, o.item)
}

// reasoningStart adds a reasoning item. Its text is a summary part, which is the part that clients
// show.
func (enc *Encoder) reasoningStart(b event.ReasoningStart) {
	o := &open[reasoningItem]{item: reasoningItem{ID: itemID("rs", enc.head.ID, b.PartID), Type: "reasoning", Status: "in_progress", Summary: []summaryPart{}}}
	o.index = enc.addItem(o.item)
	enc.reasoning = o
	enc.emitEvent("response.reasoning_summary_part.added", itemFields(o.item.ID, o.index, "summary_index", 0, "part", summaryPart{Type: "summary_text"}))
}

// reasoningEnd finishes the open reasoning item.
func (enc *Encoder) reasoningEnd() {
	o := enc.reasoning
	enc.reasoning = nil
	part := summaryPart{Type: "summary_text", Text: o.text.String()}
	o.item.Summary = []summaryPart{part}
	enc.emitEvent("response.reasoning_summary_text.done", itemFields(o.item.ID, o.index, "summary_index", 0, "text", part.Text))
	enc.emitEvent("response.reasoning_summary_part.done", itemFields(o.item.ID, o.index, "summary_index", 0, "part", part))
	o.item.Status = "completed"
	enc.finishItem(o.index, o.item)
}

// stepReset finishes the open items of the step as incomplete, because the agent repeats the step
// and items that were added to the stream cannot be withdrawn.
func (enc *Encoder) stepReset() {
	if o := enc.text; o != nil {
		enc.text = nil
		o.item.Status, o.item.Content = "incomplete", []textPart{outputText(o.text.String())}
		enc.finishItem(o.index, o.item)
	}
	if o := enc.reasoning; o != nil {
		enc.reasoning = nil
		o.item.Status = "incomplete"
		o.item.Summary = []summaryPart{{Type: "summary_text", Text: o.text.String()}}
		enc.finishItem(o.index, o.item)
	}
	enc.functions = nil // only the last step of a run has calls of the caller's functions
	for i, item := range enc.resp.Output[enc.step:] {
		// In the stream, finished items stay finished. The response at the end says what is valid.
		if m, ok := item.(messageItem); ok {
			m.Status = "incomplete"
			enc.resp.Output[enc.step+i] = m
		}
	}
	// The order of a map differs each time, and the stream must not.
	for _, id := range slices.Sorted(maps.Keys(enc.calls)) {
		c := enc.calls[id]
		if c.written {
			continue
		}
		delete(enc.calls, id)
		if o := c.mcp; o != nil {
			o.item.Status = "incomplete"
			enc.finishItem(o.index, o.item)
		}
	}
}

// finalAnswer ends the response with the calls of the caller's functions, if any. A limit of the run
// is reported as max_output_tokens: the format has no other reason for an answer that was cut off.
func (enc *Encoder) finalAnswer(answer event.FinalAnswer, e event.Event) {
	enc.spent = answer.Metadata.Usage
	if enc.structured && answer.Answer != "" {
		for _, text := range []event.Body{event.TextStart{PartID: structuredAnswerPart}, event.TextDelta{PartID: structuredAnswerPart, Delta: answer.Answer}, event.TextEnd{PartID: structuredAnswerPart}} {
			enc.encodeText(text)
		}
	}
	enc.addFunctionCalls()
	switch answer.FinishReason {
	case "length", "max_turns", "budget_exceeded":
		enc.resp.IncompleteDetails = &incomplete{"max_output_tokens"}
		enc.endResponse("incomplete", e)
	case "content_filter":
		enc.resp.IncompleteDetails = &incomplete{"content_filter"}
		enc.endResponse("incomplete", e)
	default:
		enc.endResponse("completed", e)
	}
}

// endResponse adds the terminal event and [DONE]. The usage is that of this response, so that the
// responses of one run add up to its usage. The format has no event for a cancelled response, so
// it ends with response.incomplete and the status cancelled.
func (enc *Encoder) endResponse(status string, e event.Event) {
	enc.resp.Status, enc.ended = status, e.Seq > enc.head.After
	enc.resp.Usage = &usage{
		InputTokens:  enc.spent.InputTokens - enc.before.InputTokens,
		OutputTokens: enc.spent.OutputTokens - enc.before.OutputTokens,
		TotalTokens:  enc.spent.TotalTokens - enc.before.TotalTokens,
	}
	kind := "response." + status
	if status == "completed" {
		completed := e.Time / 1000
		enc.resp.CompletedAt = &completed
	}
	if status == "cancelled" {
		kind = "response.incomplete"
	}
	enc.emitEvent(kind, enc.responseFields())
	enc.frames = append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
}
