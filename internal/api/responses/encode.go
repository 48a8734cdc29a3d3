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

// Encoder encodes the events of one run as the events of one response. It must get all events, from
// the first of the run on.
type Encoder struct {
	head   Header
	resp   *response
	seq    int
	frames []sse.Frame // of the event that is being encoded

	text      *open[messageItem]
	reasoning *open[reasoningItem]
	calls     map[string]*openCall
	functions []event.ToolCall         // of the caller
	asked     []event.ApprovalRequired // approval requests without an answer
	requests  map[string]string        // item ids of approval requests, by call id
	step      int                      // index in the output at which the step begins
	spent     event.Usage              // of the run so far
	before    event.Usage              // of earlier responses of the run
	ended     bool
}

// open is an item in progress, and its index in the output.
type open[T any] struct {
	item  T
	index int
	text  strings.Builder // so far
}

// openCall is a call in progress of a tool that the server executes.
type openCall struct {
	mcp     *open[mcpCallItem] // nil while the call has no item
	held    bool               // the call needs approval, so its item is added when the call ends
	written bool               // the arguments are complete
	args    string
}

// NewEncoder returns the encoder of a new response.
func NewEncoder(h Header) *Encoder {
	return &Encoder{head: h, resp: newResponse(h), calls: make(map[string]*openCall), requests: make(map[string]string)}
}

// Response returns the response after the events so far.
func (enc *Encoder) Response() any {
	now := *enc.resp
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

// Ended reports whether the response has ended. The run may go on after it.
func (enc *Encoder) Ended() bool { return enc.ended }

// Encode returns the frames that e adds to the stream.
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

// beginResponse starts the response and discards the state of the run's earlier response.
func (enc *Encoder) beginResponse() {
	enc.resp, enc.seq, enc.frames, enc.before = newResponse(enc.head), 0, nil, enc.spent
	enc.emitEvent("response.created", enc.responseFields())
	enc.emitEvent("response.in_progress", enc.responseFields())
	for _, l := range enc.head.ToolLists {
		item := listItem{ID: itemID("mcpl", enc.head.ID, l.Server), Type: "mcp_list_tools", ServerLabel: l.Server, Tools: []ListedTool{}}
		i := enc.addItem(item)
		enc.emitEvent("response.mcp_list_tools.in_progress", itemFields(item.ID, i))
		enc.emitEvent("response.mcp_list_tools.completed", itemFields(item.ID, i))
		item.Tools = append(item.Tools, l.Tools...)
		enc.finishItem(i, item)
	}
}

// TokenExpired returns the frames that end a stream before its response, because the caller's token
// has expired. The event has the sequence_number of the event before it, so that a reader who
// resumes after it (starting_after) misses nothing.
func (enc *Encoder) TokenExpired() []sse.Frame {
	data, _ := json.Marshal(fields{ // nothing in it can fail
		"type": "error", "code": "token_expired", "message": "The access token has expired. The response goes on.", "param": nil,
		"sequence_number": max(enc.seq, enc.head.Skip) - 1,
	})
	return []sse.Frame{{Event: "error", Data: data}}
}

func (enc *Encoder) encodeEvent(e event.Event) {
	switch b := e.Body.(type) {
	case event.TextStart:
		enc.textStart(b)
	case event.TextDelta:
		enc.text.text.WriteString(b.Delta)
		enc.emitEvent("response.output_text.delta", itemFields(enc.text.item.ID, enc.text.index, "content_index", 0, "delta", b.Delta, "logprobs", []any{}))
	case event.TextEnd:
		enc.textEnd()
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
		if e.Seq > enc.head.After && !enc.head.EndsWith(e) {
			return // the suspension is for an approval that this response asked for together with others
		}
		enc.closeOpenCalls()
		enc.addApprovalRequests()
		enc.endResponse("completed", e)
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

// fields are the members of an event besides type and sequence_number.
type fields = map[string]any

// itemFields returns the members that name the item of an event, and more members, which are given
// as name, value, name, value.
func itemFields(item string, index int, more ...any) fields {
	f := fields{"item_id": item, "output_index": index}
	for i := 0; i < len(more); i += 2 {
		f[more[i].(string)] = more[i+1]
	}
	return f
}

func (enc *Encoder) responseFields() fields { return fields{"response": enc.resp} }

// emitEvent adds an event to the stream.
func (enc *Encoder) emitEvent(kind string, f fields) {
	f["type"], f["sequence_number"] = kind, enc.seq
	enc.seq++
	if enc.seq <= enc.head.Skip {
		return
	}
	data, _ := json.Marshal(f) // nothing in it can fail
	enc.frames = append(enc.frames, sse.Frame{Event: kind, Data: data})
}

// addItem adds an item to the output and returns its index.
func (enc *Encoder) addItem(item any) (index int) {
	index = len(enc.resp.Output)
	enc.resp.Output = append(enc.resp.Output, item)
	enc.emitEvent("response.output_item.added", fields{"output_index": index, "item": item})
	return index
}

// finishItem puts the final state of an item into the output.
func (enc *Encoder) finishItem(index int, item any) {
	enc.resp.Output[index] = item
	enc.emitEvent("response.output_item.done", fields{"output_index": index, "item": item})
}

func (enc *Encoder) textStart(b event.TextStart) {
	o := &open[messageItem]{item: messageItem{ID: itemID("msg", enc.head.ID, b.PartID), Type: "message", Status: "in_progress", Role: "assistant", Content: []textPart{}}}
	o.index = enc.addItem(o.item)
	enc.text = o
	enc.emitEvent("response.content_part.added", itemFields(o.item.ID, o.index, "content_index", 0, "part", outputText("")))
}

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

func (enc *Encoder) reasoningStart(b event.ReasoningStart) {
	o := &open[reasoningItem]{item: reasoningItem{ID: itemID("rs", enc.head.ID, b.PartID), Type: "reasoning", Status: "in_progress", Summary: []summaryPart{}}}
	o.index = enc.addItem(o.item)
	enc.reasoning = o
	enc.emitEvent("response.reasoning_summary_part.added", itemFields(o.item.ID, o.index, "summary_index", 0, "part", summaryPart{Type: "summary_text"}))
}

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

// stepReset finishes the items of the step as incomplete, because items that were added to the
// stream cannot be withdrawn.
func (enc *Encoder) stepReset() {
	if o := enc.text; o != nil {
		enc.text = nil
		o.item.Status, o.item.Content = "incomplete", []textPart{outputText(o.text.String())}
		enc.finishItem(o.index, o.item)
	}
	if o := enc.reasoning; o != nil {
		enc.reasoning = nil
		o.item.Status, o.item.Summary = "incomplete", []summaryPart{{Type: "summary_text", Text: o.text.String()}}
		enc.finishItem(o.index, o.item)
	}
	enc.functions = nil // only the last step of a run has calls of the caller's functions
	for i, item := range enc.resp.Output[enc.step:] {
		// Items that were finished stay so in the stream. The response at the end is what counts.
		if m, ok := item.(messageItem); ok {
			m.Status = "incomplete"
			enc.resp.Output[enc.step+i] = m
		}
	}
	// Sorted, because the stream must be the same each time it is read.
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

func (enc *Encoder) finalAnswer(b event.FinalAnswer, e event.Event) {
	enc.spent = b.Metadata.Usage
	enc.addFunctionCalls()
	switch b.FinishReason {
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

// endResponse adds the terminal event. The format has none for cancelled, so a cancelled response
// ends with response.incomplete and the status cancelled.
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
