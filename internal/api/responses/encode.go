package responses

import (
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder turns the events of one run into the events of one response. It must see all
// of them, from the first of the run on.
type Encoder struct {
	head   Header
	resp   *response
	seq    int
	frames []sse.Frame // of the event that is being encoded

	text      *open[messageItem]
	reasoning *open[reasoningItem]
	calls     map[string]*openCall
	requests  map[string]string // approval requests by call id
}

// open is an item that is not done yet, and its place in the output.
type open[T any] struct {
	item  T
	index int
}

// openCall is a tool call on its way: one of the first two is set once it was announced.
type openCall struct {
	mcp      *open[mcpCallItem]
	function *open[functionItem]
	held     bool // a person must agree first: it is announced when it runs
	args     string
}

// NewEncoder returns the encoder of a response that no event has gone through.
func NewEncoder(h Header) *Encoder {
	return &Encoder{head: h, resp: newResponse(h), calls: make(map[string]*openCall), requests: make(map[string]string)}
}

// Response is the response as it stands after the last event.
func (enc *Encoder) Response() any { return enc.resp }

// Encode returns the frames that e adds to the stream.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	if e.Seq == enc.head.After+1 {
		enc.begin()
	} else {
		enc.frames = nil
	}
	enc.encode(e)
	if e.Seq <= enc.head.After {
		return nil
	}
	return enc.frames
}

// begin begins the response, forgetting what an earlier one of the run said.
func (enc *Encoder) begin() {
	enc.resp, enc.seq, enc.frames = newResponse(enc.head), 0, nil
	enc.emit("response.created", enc.snapshot())
	enc.emit("response.in_progress", enc.snapshot())
	for _, l := range enc.head.Lists {
		item := listItem{ID: "mcpl_" + l.Server, Type: "mcp_list_tools", ServerLabel: l.Server, Tools: []ListedTool{}}
		i := enc.add(item)
		enc.emit("response.mcp_list_tools.in_progress", at(item.ID, i))
		enc.emit("response.mcp_list_tools.completed", at(item.ID, i))
		item.Tools = append(item.Tools, l.Tools...)
		enc.done(i, item)
	}
}

func (enc *Encoder) encode(e event.Event) {
	switch b := e.Body.(type) {
	case event.TextStart:
		enc.textStart(b)
	case event.TextDelta:
		enc.text.item.Content[0].Text += b.Delta
		enc.emit("response.output_text.delta", at(enc.text.item.ID, enc.text.index, "content_index", 0, "delta", b.Delta, "logprobs", []any{}))
	case event.TextEnd:
		enc.textEnd()
	case event.ReasoningStart:
		enc.reasoningStart(b)
	case event.ReasoningDelta:
		enc.reasoning.item.Summary[0].Text += b.Delta
		enc.emit("response.reasoning_summary_text.delta", at(enc.reasoning.item.ID, enc.reasoning.index, "summary_index", 0, "delta", b.Delta))
	case event.ReasoningEnd:
		enc.reasoningEnd()
	case event.StepReset:
		enc.stepReset()
	case event.Suspended:
		enc.end("completed", e)
	case event.FinalAnswer:
		enc.finalAnswer(b, e)
	case event.RunError:
		enc.resp.Error = &responseError{b.Code, b.Message}
		enc.end("failed", e)
	case event.Cancelled:
		enc.end("cancelled", e)
	default:
		enc.encodeCall(b)
	}
}

// fields are the members of an event besides its type and number.
type fields = map[string]any

// at are the members that say what an event is about, and others in pairs.
func at(item string, index int, more ...any) fields {
	f := fields{"item_id": item, "output_index": index}
	for i := 0; i < len(more); i += 2 {
		f[more[i].(string)] = more[i+1]
	}
	return f
}

func (enc *Encoder) snapshot() fields { return fields{"response": enc.resp} }

// emit adds an event to the stream.
func (enc *Encoder) emit(kind string, f fields) {
	f["type"], f["sequence_number"] = kind, enc.seq
	enc.seq++
	data, _ := json.Marshal(f) // nothing in it can fail
	enc.frames = append(enc.frames, sse.Frame{Event: kind, Data: data})
}

// add announces an item: it has its place in the output from now on.
func (enc *Encoder) add(item any) (index int) {
	index = len(enc.resp.Output)
	enc.resp.Output = append(enc.resp.Output, item)
	enc.emit("response.output_item.added", fields{"output_index": index, "item": item})
	return index
}

// done is the last word about an item.
func (enc *Encoder) done(index int, item any) {
	enc.resp.Output[index] = item
	enc.emit("response.output_item.done", fields{"output_index": index, "item": item})
}

func (enc *Encoder) textStart(b event.TextStart) {
	o := &open[messageItem]{item: messageItem{ID: "msg_" + b.PartID, Type: "message", Status: "in_progress", Role: "assistant", Content: []textPart{}}}
	o.index = enc.add(o.item)
	o.item.Content = []textPart{outputText("")}
	enc.text = o
	enc.emit("response.content_part.added", at(o.item.ID, o.index, "content_index", 0, "part", o.item.Content[0]))
}

func (enc *Encoder) textEnd() {
	o := enc.text
	enc.text = nil
	part := o.item.Content[0]
	enc.emit("response.output_text.done", at(o.item.ID, o.index, "content_index", 0, "text", part.Text, "logprobs", []any{}))
	enc.emit("response.content_part.done", at(o.item.ID, o.index, "content_index", 0, "part", part))
	o.item.Status = "completed"
	enc.done(o.index, o.item)
}

func (enc *Encoder) reasoningStart(b event.ReasoningStart) {
	o := &open[reasoningItem]{item: reasoningItem{ID: "rs_" + b.PartID, Type: "reasoning", Status: "in_progress", Summary: []summaryPart{}}}
	o.index = enc.add(o.item)
	o.item.Summary = []summaryPart{{Type: "summary_text"}}
	enc.reasoning = o
	enc.emit("response.reasoning_summary_part.added", at(o.item.ID, o.index, "summary_index", 0, "part", o.item.Summary[0]))
}

func (enc *Encoder) reasoningEnd() {
	o := enc.reasoning
	enc.reasoning = nil
	part := o.item.Summary[0]
	enc.emit("response.reasoning_summary_text.done", at(o.item.ID, o.index, "summary_index", 0, "text", part.Text))
	enc.emit("response.reasoning_summary_part.done", at(o.item.ID, o.index, "summary_index", 0, "part", part))
	o.item.Status = "completed"
	enc.done(o.index, o.item)
}

// stepReset closes what the step had begun, as incomplete: an item that was announced
// cannot be taken back.
func (enc *Encoder) stepReset() {
	if enc.text != nil {
		o := enc.text
		enc.text = nil
		o.item.Status = "incomplete"
		enc.done(o.index, o.item)
	}
	if enc.reasoning != nil {
		o := enc.reasoning
		enc.reasoning = nil
		o.item.Status = "incomplete"
		enc.done(o.index, o.item)
	}
}

func (enc *Encoder) finalAnswer(b event.FinalAnswer, e event.Event) {
	u := b.Metadata.Usage
	enc.resp.Usage = &usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, TotalTokens: u.TotalTokens}
	switch b.FinishReason {
	case "length", "max_turns", "budget_exceeded":
		enc.resp.IncompleteDetails = &incomplete{"max_output_tokens"}
		enc.end("incomplete", e)
	case "content_filter":
		enc.resp.IncompleteDetails = &incomplete{"content_filter"}
		enc.end("incomplete", e)
	default:
		enc.end("completed", e)
	}
}

// end is the terminal event. There is none for cancelled, so clients get the one that
// says incomplete, with the status in the response.
func (enc *Encoder) end(status string, e event.Event) {
	enc.resp.Status = status
	kind := "response." + status
	if status == "completed" {
		completed := e.Time / 1000
		enc.resp.CompletedAt = &completed
	}
	if status == "cancelled" {
		kind = "response.incomplete"
	}
	enc.emit(kind, enc.snapshot())
	enc.frames = append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
}
