package agui

import (
	"encoding/json"
	"fmt"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the events of one AG-UI run. It needs all events of the
// run in order, from the first on. The frames of a suspended event end a stream. A reader that
// continues with the same encoder gets later frames as if that event had not been encoded.
//
// A run of the service that is suspended twice is three AG-UI runs, each with a ClientRunID of its own.
// Ids of messages are made of the id of the service's run and the step, which continue from one AG-UI run
// to the next, so they are unique in the thread.
type Encoder struct {
	head   Header
	seq    int64       // the sequence number of the event that is being encoded
	time   int64       // the time of that event, in milliseconds
	frames []sse.Frame // the frames of that event

	step     int
	message  string // the id of the open text message
	thinking string // the id of the open reasoning message
	messages int    // text messages in this step

	args    map[string]bool // calls whose arguments were streamed
	pending []string        // calls that the client is to execute
}

// NewEncoder returns the encoder of a new stream.
func NewEncoder(h Header) *Encoder { return &Encoder{head: h, args: make(map[string]bool)} }

// fields holds the members of an event besides type and timestamp. None may be null, because
// clients validate events and expect optional members to be absent instead.
type fields = map[string]any

// emitEvent adds an AG-UI event to the frames of the current event, unless an earlier stream has
// sent that event.
func (enc *Encoder) emitEvent(kind string, f fields) {
	if enc.seq <= enc.head.After {
		return
	}
	f["type"], f["timestamp"] = kind, enc.time
	data, _ := json.Marshal(f) // cannot fail: f has only texts, numbers and valid JSON
	enc.frames = append(enc.frames, sse.Frame{Data: data})
}

// Encode returns the frames that e adds to the stream. The first event after head.After also
// starts the AG-UI run.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	enc.seq = e.Seq
	enc.time = e.Time
	enc.frames = nil
	if e.Seq == enc.head.After+1 {
		started := enc.runFields(nil)
		if enc.head.V1 {
			started["protocolVersion"] = "1.0"
		}
		enc.emitEvent("RUN_STARTED", started)
		// Tell the client the run's own id, because GET /runs and the other endpoints do not know
		// the client's.
		enc.emitEvent("CUSTOM", fields{"name": "run", "value": fields{"run_id": enc.head.RunID}})
	}
	enc.encodeEvent(e.Body)
	return enc.frames
}

// runFields returns f with the ids of the thread and the AG-UI run.
func (enc *Encoder) runFields(f fields) fields {
	if f == nil {
		f = fields{}
	}
	f["threadId"], f["runId"] = enc.head.ThreadID, enc.head.ClientRunID
	return f
}

// encodeEvent encodes the events of steps, messages and the end of the run, and leaves those of
// calls to encodeCall.
func (enc *Encoder) encodeEvent(body event.Body) {
	switch b := body.(type) {
	case event.StepStart:
		enc.step, enc.messages = b.Step, 0
		enc.emitEvent("STEP_STARTED", fields{"stepName": enc.stepName()})
	case event.StepEnd:
		enc.emitEvent("STEP_FINISHED", fields{"stepName": enc.stepName()})
	case event.StepReset:
		// Messages cannot be withdrawn, but a client may know this custom event.
		enc.endText()
		enc.endReasoning()
		enc.pending = nil // only the last step of a run has calls of the client's tools
		enc.emitEvent("CUSTOM", fields{"name": "step_reset", "value": fields{"step": b.Step, "reason": b.Reason}})
	case event.TextStart:
		enc.message = enc.nextMessage()
		enc.emitEvent("TEXT_MESSAGE_START", fields{"messageId": enc.message, "role": "assistant"})
	case event.TextDelta:
		enc.emitEvent("TEXT_MESSAGE_CONTENT", fields{"messageId": enc.message, "delta": b.Delta})
	case event.TextEnd:
		enc.endText()
	case event.ReasoningStart:
		enc.thinking = fmt.Sprintf("%s-%s", enc.head.RunID, b.PartID)
		enc.emitEvent("REASONING_START", fields{"messageId": enc.thinking})
		enc.emitEvent("REASONING_MESSAGE_START", fields{"messageId": enc.thinking, "role": "reasoning"})
	case event.ReasoningDelta:
		enc.emitEvent("REASONING_MESSAGE_CONTENT", fields{"messageId": enc.thinking, "delta": b.Delta})
	case event.ReasoningEnd:
		enc.endReasoning()
	case event.Budget:
		enc.emitEvent("CUSTOM", fields{"name": "budget", "value": b})
	case event.Suspended:
		interrupts := make([]fields, len(b.Interrupts))
		for n, i := range b.Interrupts {
			interrupts[n] = interruptFields(i)
		}
		enc.emitEvent("RUN_FINISHED", enc.runFields(fields{"outcome": fields{"type": "interrupt", "interrupts": interrupts}}))
	case event.FinalAnswer:
		enc.finishRun(b)
	case event.RunError:
		enc.emitEvent("RUN_ERROR", fields{"message": b.Message, "code": b.Code})
	case event.Cancelled:
		if enc.head.V1 {
			enc.emitEvent("RUN_FINISHED", enc.runFields(fields{"outcome": fields{"type": "cancelled"}}))
			return
		}
		enc.emitEvent("RUN_ERROR", fields{"message": "The run was cancelled.", "code": "cancelled"})
	default:
		enc.encodeCall(b)
	}
}

// TokenExpired returns the events that end a stream before its run ends, because the caller's
// token has expired. The protocol has only an error for that.
func (enc *Encoder) TokenExpired() []sse.Frame {
	enc.seq, enc.frames = max(enc.seq, enc.head.After+1), nil
	enc.emitEvent("RUN_ERROR", fields{"message": "The access token has expired. The run goes on.", "code": "token_expired"})
	return enc.frames
}

// finishRun encodes the end of a run with an answer. Clients of 1.0 also get the usage, and the calls
// that they must execute before the next run.
func (enc *Encoder) finishRun(answer event.FinalAnswer) {
	result := fields{"answer": answer.Answer, "finish_reason": answer.FinishReason, "metadata": answer.Metadata}
	if answer.Output != nil {
		result["output"] = answer.Output
	}
	f := enc.runFields(fields{"result": result})
	outcome := fields{"type": "success"}
	if enc.head.V1 {
		if len(enc.pending) > 0 {
			outcome["pendingToolCallIds"] = enc.pending
		}
		u := answer.Metadata.Usage
		f["usage"] = []fields{{"model": answer.Metadata.Model, "inputTokens": u.InputTokens, "outputTokens": u.OutputTokens, "totalTokens": u.TotalTokens}}
	}
	f["outcome"] = outcome
	enc.emitEvent("RUN_FINISHED", f)
}

// stepName returns the name of the current step. STEP_STARTED and STEP_FINISHED must have the same.
func (enc *Encoder) stepName() string { return fmt.Sprintf("step-%d", enc.step) }

// stepMessage returns the id of the message that the calls of the current step belong to.
func (enc *Encoder) stepMessage() string { return fmt.Sprintf("%s-%s", enc.head.RunID, enc.stepName()) }

// nextMessage returns the id of the next text message. The first one of a step has the id that
// stepMessage returns.
func (enc *Encoder) nextMessage() string {
	enc.messages++
	if enc.messages == 1 {
		return enc.stepMessage()
	}
	return fmt.Sprintf("%s-%d", enc.stepMessage(), enc.messages)
}

// endText closes the open text message.
func (enc *Encoder) endText() {
	if enc.message != "" {
		enc.emitEvent("TEXT_MESSAGE_END", fields{"messageId": enc.message})
		enc.message = ""
	}
}

// endReasoning closes the open reasoning message.
func (enc *Encoder) endReasoning() {
	if enc.thinking != "" {
		enc.emitEvent("REASONING_MESSAGE_END", fields{"messageId": enc.thinking})
		enc.emitEvent("REASONING_END", fields{"messageId": enc.thinking})
		enc.thinking = ""
	}
}
